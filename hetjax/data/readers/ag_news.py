"""AG News as WordPiece tokens: rows of CSV with a class, a title and a description.

Line breaks of the texts are single backslashes in these files ("dwindling\\band"),
though their documentation says backslash and n. Every backslash becomes a space; a
letter after it belongs to the next word. The package tokenizers makes BERT's lower-case
tokens; of its training, only the order of the first tokens is chosen here.
"""

import csv
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from hetjax.data.dataset import Dataset, Split
from hetjax.data.readers import DataError, copies, reading
from hetjax.data.readers.text_files import BYTE_ORDER_MARK, LARGE, opened

FILES = {"train": "train.csv", "test": "test.csv"}
VOCABULARY = "vocab.txt"
_CLASSES = 4  # world, sports, business, science and technology
_OFFICIAL = {"train": 120_000, "test": 7_600}
_PAD, _UNKNOWN, _START, _END, _MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
_AT_A_TIME = 1000  # texts that are encoded together


class Texts(NamedTuple):
    """The content of a file, N rows."""

    texts: list[str]  # N
    labels: np.ndarray  # [N] int32


def tokenizers_package() -> Any:
    """The package tokenizers; an ImportError has the install command."""
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            'tokens of texts need the package tokenizers: pip install "hetjax[text]"'
        ) from error
    return tokenizers


def read_tokens(
    root: Path, length: int, vocabulary: Path | int, cache: str | PathLike | None
) -> Dataset:
    """The tokens of both files; `vocabulary`: a file, or the size of one to train."""
    paths = {name: root / file for name, file in FILES.items()}
    for path in paths.values():
        if not path.is_file():
            raise DataError(f"{path}: no such file; download it to this folder, too")
    own = [vocabulary] if isinstance(vocabulary, Path) else []

    def write(folder: Path) -> dict[str, Any]:
        splits = {name: read_texts(path) for name, path in paths.items()}
        number = sum(len(split.texts) for split in splits.values())
        copies.check_space(folder, 2 * length * number)
        if isinstance(vocabulary, Path):
            tokens = read_vocabulary(vocabulary)
        else:
            tokens = train_vocabulary(splits["train"].texts, vocabulary)
            lines = "".join(f"{token}\n" for token in tokens)
            (folder / VOCABULARY).write_bytes(lines.encode())
        for name, (texts, labels) in splits.items():
            dtype = np.uint16 if len(tokens) <= 1 << 16 else np.int32
            parts = encoded(texts, tokens, length, name)
            shape = len(texts), length
            copies.write_array(folder / f"{name}_x.npy", shape, dtype, parts)
            np.save(folder / f"{name}_y", labels)
        return {}

    chosen = [str(path.resolve()) for path in own] or vocabulary
    place = copies.copy_folder(root, ["ag_news", length, chosen], cache)
    copy = copies.load_or_write(place, [*paths.values(), *own], write)
    splits = {
        name: Split(copy.arrays[f"{name}_x"], np.array(copy.arrays[f"{name}_y"]))
        for name in paths
    }
    notes = [
        f"{name}: {len(split)} texts, the official files have {_OFFICIAL[name]}"
        for name, split in splits.items()
        if len(split) != _OFFICIAL[name]
    ]
    if not own:
        notes.append(f"its vocabulary is {copy.folder / VOCABULARY}")
    return Dataset(**splits, num_classes=_CLASSES, name="ag_news", notes=tuple(notes))


def read_texts(path: Path) -> Texts:
    """The rows of a file, as texts without backslashes, and classes from zero on."""
    reader = csv.reader(_lines(path), strict=True)
    texts, labels = [], []
    while True:
        where = f"{path}:{reader.line_num + 1}"  # the first line of the row
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"{where}: not a row of CSV ({error}); damaged? fetch it again"
            ) from error
        if row is None:
            break
        if len(row) != 3:
            raise DataError(
                f"{where}: {len(row)} fields, but a row has 3: class, title, "
                "description"
            )
        label = row[0].strip()
        if label not in map(str, range(1, _CLASSES + 1)):
            hint = "; a header? remove it" if not texts else ""
            raise DataError(
                f"{where}: the class {row[0][:40]!r} is not 1..{_CLASSES}{hint}"
            )
        labels.append(int(label) - 1)
        texts.append(f"{row[1]} {row[2]}".replace("\\", " "))
    if not texts:
        raise DataError(f"{path}: no rows, the file is empty; fetch it again")
    return Texts(texts, np.array(labels, np.int32))


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text in UTF-8."""
    with opened(path) as file:
        for number, line in enumerate(iter(file.readline, b""), start=1):
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                found = f"byte 0x{line[error.start]:02x} in column {error.start + 1}"
                raise DataError(
                    f"{path}:{number}: not UTF-8 ({found}); damaged, or saved by "
                    "another program? fetch it again"
                ) from error


def read_vocabulary(path: Path) -> list[str]:
    """The tokens in a vocab.txt, one per line; [PAD] must be the first."""
    with reading(path):
        tokens = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    lines: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if token in lines:
            raise DataError(
                f"{path}:{number}: the token {token!r} is also in line {lines[token]}"
            )
        lines[token] = number
    missing = [token for token in (_PAD, _UNKNOWN, _START, _END) if token not in lines]
    if missing:
        raise DataError(
            f"{path}: no token {', '.join(missing)}; pass the vocab.txt of a BERT model"
        )
    if lines[_PAD] != 1:
        raise DataError(
            f"{path}:{lines[_PAD]}: {_PAD} must be in line 1, since texts are padded "
            "with zeros"
        )
    return tokens


def train_vocabulary(texts: Sequence[str], size: int) -> list[str]:
    """At most `size` tokens, independent of the order of the texts.

    The package numbers characters in an order that varies between trainings, and breaks
    ties by the tokens' numbers. Characters inside of words ("##c") are therefore listed
    in advance, in sorted order; the package itself sorts those that begin a word.
    """
    model = tokenizers_package().BertWordPieceTokenizer()
    inner: set[str] = set()
    for text in texts:
        for word, _ in model.pre_tokenizer.pre_tokenize_str(model.normalize(text)):
            inner.update(word[1:])
    first = [_PAD, _UNKNOWN, _START, _END, _MASK, *(f"##{c}" for c in sorted(inner))]
    model.train_from_iterator(
        texts,
        vocab_size=size,
        limit_alphabet=1 << 30,
        special_tokens=first,
        show_progress=False,
    )
    numbers = model.get_vocab()
    if len(numbers) > size:
        raise ValueError(
            f"vocabulary_size is {size}, but the characters of the texts alone are "
            f"{len(numbers)} tokens: pass at least {len(numbers)}"
        )
    return sorted(numbers, key=numbers.__getitem__)


def encoded(
    texts: Sequence[str], vocabulary: Sequence[str], length: int, name: str
) -> Iterator[np.ndarray]:
    """The tokens of the texts, in order, in blocks of rows [n, length] int64.

    Each row is [CLS] ... [SEP], truncated to `length` tokens and padded with zeros.
    """
    numbers = {token: number for number, token in enumerate(vocabulary)}
    model = tokenizers_package().BertWordPieceTokenizer(numbers)
    model.enable_truncation(length)
    model.enable_padding(length=length, pad_id=0, pad_token=_PAD)
    hidden = True if sum(map(len, texts)) < LARGE else None
    with tqdm(desc=f"tokenizing {name}", total=len(texts), disable=hidden) as bar:
        for first in range(0, len(texts), _AT_A_TIME):
            some = list(texts[first : first + _AT_A_TIME])
            bar.update(len(some))
            yield np.array([row.ids for row in model.encode_batch(some)], np.int64)
