"""AG News: rows of CSV with a class from 1 to 4, a title and a description.

Line breaks of the texts are single backslashes in these files ("dwindling\\band"),
though their documentation says backslash and n. Every backslash becomes a space; a
letter after it belongs to the next word.
"""

import csv
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from hetjax.data.dataset import Dataset, Split
from hetjax.data.dataset_checks import check_whole
from hetjax.data.readers import DataError, mapped_copies, wordpiece
from hetjax.data.readers.text_files import BYTE_ORDER_MARK, LARGE, opened

FILES = ("train.csv", "test.csv")
CLASSES = 4  # world, sports, business, science and technology
_OFFICIAL = {"train": 120_000, "test": 7_600}
VOCABULARY = "vocab.txt"
_SHORTEST, _LONGEST = 3, 1 << 16  # [tokens]
_LEAST_TOKENS = 6


class Texts(NamedTuple):
    """The content of a file, N rows."""

    texts: list[str]  # N
    labels: np.ndarray  # [N] int32


def check_arguments(length: Any, vocabulary: Any, vocabulary_size: Any) -> None:
    """Raises an error for invalid arguments, or without the package tokenizers."""
    check_whole("length", length, _SHORTEST, _LONGEST)
    check_whole("vocabulary_size", vocabulary_size, _LEAST_TOKENS)
    if not (vocabulary is None or isinstance(vocabulary, str | PathLike)):
        raise ValueError(f"vocabulary={vocabulary!r}: pass the path of a vocab.txt")
    wordpiece.check_installed()


def files_in(folder: Path) -> dict[str, Path]:
    """The file of each split; a DataError if one is missing."""
    paths = [folder / file for file in FILES]
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: no such file; download it to this folder, too")
    return dict(zip(_OFFICIAL, paths, strict=True))


def read_tokens(
    paths: dict[str, Path],
    length: int,
    vocabulary: Path | int,
    cache: str | PathLike | None,
) -> Dataset:
    """The tokens of both files; `vocabulary`: a file, or the size of one to train."""
    root = paths["train"].parent
    own = [vocabulary] if isinstance(vocabulary, Path) else []

    def write(writer: mapped_copies.MappedWriter) -> None:
        splits = {name: read_texts(path) for name, path in paths.items()}
        if isinstance(vocabulary, Path):
            tokens = wordpiece.read_vocabulary(vocabulary)
        else:
            tokens = wordpiece.train_vocabulary(splits["train"].texts, vocabulary)
            lines = "".join(f"{token}\n" for token in tokens)
            writer.file(VOCABULARY, [lines.encode()])
        for name, split in splits.items():
            _write_split(writer, name, split, tokens, length)

    def needed() -> int:
        # a row is a line, or several
        rows = sum(path.read_bytes().count(b"\n") for path in paths.values())
        return rows * (length * np.dtype(np.uint16).itemsize + 4)

    chosen = [str(path.resolve()) for path in own] or vocabulary
    place = mapped_copies.copy_folder(root, ["ag_news", length, chosen], cache)
    first_pass = mapped_copies.FirstPass(
        sources=lambda: mapped_copies.fingerprint(root, [*paths.values(), *own]),
        write=write,
        needed=needed,
    )
    copy = mapped_copies.load_or_write(place, first_pass)
    splits = {name: _mapped_split(copy, name) for name in paths}
    notes = [
        f"{name}: {len(split)} texts, the official files have {_OFFICIAL[name]}"
        for name, split in splits.items()
        if len(split) != _OFFICIAL[name]
    ]
    if not own:
        notes.append(f"its vocabulary is {copy.folder / VOCABULARY}")
    return Dataset(**splits, num_classes=CLASSES, name="ag_news", notes=tuple(notes))


def _write_split(
    writer: mapped_copies.MappedWriter,
    name: str,
    split: Texts,
    vocabulary: list[str],
    length: int,
) -> None:
    """Write the tokens and labels of a split."""
    shape = (len(split.texts), length)
    dtype = np.uint16 if len(vocabulary) <= 1 << 16 else np.int32
    hidden = True if sum(map(len, split.texts)) < LARGE else None
    with tqdm(
        desc=f"tokenizing {name}", total=shape[0], disable=hidden, unit="text"
    ) as bar:

        def parts() -> Iterator[np.ndarray]:
            for rows in wordpiece.encoded(split.texts, vocabulary, length):
                bar.update(len(rows))
                yield rows

        writer.array(f"{name}_x", shape, dtype, parts())
    writer.array(f"{name}_y", split.labels.shape, np.int32, [split.labels])


def _mapped_split(copy: mapped_copies.Copy, name: str) -> Split:
    """The tokens as a memory map, and the few labels in memory."""
    return Split(copy.arrays[f"{name}_x"], np.array(copy.arrays[f"{name}_y"]))


def read_texts(path: Path) -> Texts:
    """The rows of a file, as texts without backslashes, and classes from zero on."""
    reader = csv.reader(_lines(path), strict=True)
    texts, labels = [], []
    while True:
        line = reader.line_num + 1  # the first of the row
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"{path}:{line}: not a row of CSV ({error}); damaged? fetch it again"
            ) from error
        if row is None:
            break
        labels.append(_label(row, f"{path}:{line}"))
        texts.append(f"{row[1]} {row[2]}".replace("\\", " "))
    if not texts:
        raise DataError(f"{path}: no rows, the file is empty; fetch it again")
    return Texts(texts, np.array(labels, np.int32))


def _label(row: list[str], where: str) -> int:
    """The class of a row of three fields, from zero on."""
    if len(row) != 3:
        raise DataError(
            f"{where}: {len(row)} fields, but a row has 3: class, title, description"
        )
    known = [str(number) for number in range(1, CLASSES + 1)]
    if row[0].strip() not in known:
        hint = "; a header? remove it" if where.endswith(":1") else ""
        raise DataError(f"{where}: the class {row[0][:40]!r} is not 1..{CLASSES}{hint}")
    return known.index(row[0].strip())


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text in UTF-8."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
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
