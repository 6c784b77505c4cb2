"""BERT's lower-case WordPiece tokens, by the package tokenizers.

Text is cleaned, converted to lower case without accents, and split at white space and
punctuation. A word's first token is its longest prefix in the vocabulary; tokens that
continue a word begin with "##". A word that cannot be split into tokens is [UNK].
Source: Devlin et al. (2019), arXiv:1810.04805.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetjax.data.readers import DataError

PAD, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
_AT_A_TIME = 1000  # texts that are encoded together


def check_installed() -> None:
    """Raises an ImportError with the install command unless tokenizers is installed."""
    _package()


def _package() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            'tokens of texts need the package tokenizers: pip install "hetjax[text]"'
        ) from error
    return tokenizers


def read_vocabulary(path: Path) -> list[str]:
    """The tokens in a vocab.txt, one per line; [PAD] must be the first."""
    try:
        tokens = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file ({error})") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason})") from error
    lines: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if token in lines:
            raise DataError(
                f"{path}:{number}: the token {token!r} is also in line {lines[token]}"
            )
        lines[token] = number
    missing = [token for token in (PAD, UNKNOWN, START, END) if token not in lines]
    if missing:
        raise DataError(
            f"{path}: no token {', '.join(missing)}; pass the vocab.txt of a BERT model"
        )
    if lines[PAD] != 1:
        raise DataError(
            f"{path}:{lines[PAD]}: {PAD} must be in line 1, since texts are padded "
            "with zeros"
        )
    return tokens


def train_vocabulary(texts: Sequence[str], size: int) -> list[str]:
    """At most `size` tokens, independent of the order of the texts.

    The commonest pair of neighboring tokens is joined repeatedly. The package breaks
    ties by the tokens' numbers, and numbers characters in an order that varies between
    trainings. Characters after "##" are therefore listed in advance, in sorted order;
    the package itself sorts those that begin a word.
    """
    package = _package()
    model = package.Tokenizer(package.models.WordPiece(unk_token=UNKNOWN))
    model.normalizer, model.pre_tokenizer = normal, words = _parts()
    inner: set[str] = set()
    for text in texts:
        for word, _ in words.pre_tokenize_str(normal.normalize_str(text)):
            inner.update(word[1:])
    first = [PAD, UNKNOWN, START, END, MASK, *(f"##{c}" for c in sorted(inner))]
    trainer = package.trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=first, show_progress=False
    )
    model.train_from_iterator(texts, trainer)
    numbers = model.get_vocab()
    if len(numbers) > size:
        raise ValueError(
            f"vocabulary_size is {size}, but the characters of the texts alone are "
            f"{len(numbers)} tokens: pass at least {len(numbers)}"
        )
    return sorted(numbers, key=numbers.__getitem__)


def _parts() -> tuple[Any, Any]:
    """The normalizer of texts, and the function that splits them into words."""
    package = _package()
    return (
        package.normalizers.BertNormalizer(lowercase=True),
        package.pre_tokenizers.BertPreTokenizer(),
    )


def encoded(
    texts: Sequence[str], vocabulary: Sequence[str], length: int
) -> Iterator[np.ndarray]:
    """The tokens of the texts, in order, in blocks of rows [n, length] int64.

    Each row is [CLS] ... [SEP], truncated to `length` tokens and padded with zeros.
    """
    package = _package()
    numbers = {token: number for number, token in enumerate(vocabulary)}
    model = package.Tokenizer(package.models.WordPiece(numbers, unk_token=UNKNOWN))
    model.normalizer, model.pre_tokenizer = _parts()
    model.post_processor = package.processors.BertProcessing(
        (END, numbers[END]), (START, numbers[START])
    )
    model.enable_truncation(length)
    model.enable_padding(length=length, pad_id=numbers[PAD], pad_token=PAD)
    for first in range(0, len(texts), _AT_A_TIME):
        some = list(texts[first : first + _AT_A_TIME])
        yield np.array([found.ids for found in model.encode_batch(some)], np.int64)
