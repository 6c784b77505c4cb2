"""Reads libSVM files with one label per row: sparse data for ordinary classification.

A row is `label index:value index:value ...  # comment`. Unlike in XMC text, the label
may be negative or a decimal, and there are comments and query ids. These parts are read
here and blanked out; the rest is parsed as XMC text, with the same checks and messages.
"""

import re
from os import PathLike
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import scipy.sparse as sp

from hetjax.data.dataset import Dataset, Split, note
from hetjax.data.readers import DataError
from hetjax.data.readers.csr_builder import (
    LARGEST,
    CsrBuilder,
    CsrRows,
    as_wide_as,
    check_sums,
    csr_rows,
    largest_column,
    row_starts,
)
from hetjax.data.readers.sparse_text import Bounds, Rows, parse
from hetjax.data.readers.text_files import chunks, from_first_bad_line, unsuffixed
from hetjax.recipes import by_name

_COMMENT = re.compile(rb"#[^\n]*")
_QUERY = re.compile(rb"^([ \t]*[^ \t\n]+)[ \t]+qid:\d+(?=[ \t\n])", re.MULTILINE)
_ODD_BLANKS = (b"\r", b"\v", b"\f")
_BLANKED = bytes.maketrans(b"".join(_ODD_BLANKS), b" " * len(_ODD_BLANKS))
_FIRST_WORD = re.compile(rb"^[ \t]*([^ \t\n]*)", re.MULTILINE)
_INTEGER = re.compile(rb"[+-]?\d+")
_EXACT = 2**53  # float64 represents all integers below this one
_BLANK = -(2**63)  # in place of the label of a blank line
_SHOWN = 10  # labels in a note, at most


class _Chunk(NamedTuple):
    """The content of a chunk of lines."""

    x: CsrRows
    labels: np.ndarray  # [lines] int64, _BLANK for a blank line
    summed: int  # repeated features within a row
    queries: int  # query ids


class _SvmPart(NamedTuple):
    """The content of one file, and notes about it."""

    x: sp.csr_array  # [N, features] float32
    labels: np.ndarray  # [N] int64, as in the file
    notes: tuple[str, ...]


@by_name
def read_libsvm(
    train: str | PathLike,
    test: str | PathLike,
    *,
    first_index: int = 1,
    name: str | None = None,
) -> Dataset:
    """Reads two libSVM files as sparse data with one class per row.

    x: [N, F] float32 CSR; F follows from the largest index in both files. y: [N] int32.
    Labels are any integers of 64 bits (-1 and +1, 1 to K; "2.0" is 2). Those of both
    files, in rising order, become the classes 0, 1, ...; `Dataset.notes` has the
    mapping. Features count from `first_index`, in any order; repeated features in a
    row are summed, and noted. Blank lines, comments (from "#" to the line's end) and
    query ids ("qid:3" after the label) are ignored. For several labels per row see
    `read_xmc`.

    Files may be compressed by gzip, bzip2 or xz, and from Python 3.14 on by Zstandard,
    which is detected from their content. Anything that cannot be read, including
    missing files, is a `DataError`. `name` defaults to the training file's name,
    without .gz and the like.
    """
    if first_index < 0:
        raise ValueError(f"first_index is {first_index}; it must be 0 or more")
    paths = Path(train), Path(test)
    parts = [
        _read_part(split, path, first_index)
        for split, path in zip(("train", "test"), paths, strict=True)
    ]
    features = 1 + max(largest_column(part.x) for part in parts)
    if not features:
        raise DataError(f"{paths[0]}: there are no features here or in {paths[1]}")
    labels = [np.unique(part.labels) for part in parts]
    classes = np.union1d(*labels)
    splits = [
        Split(
            as_wide_as(part.x, features),
            np.searchsorted(classes, part.labels).astype(np.int32),
        )
        for part in parts
    ]
    return Dataset(
        train=splits[0],
        test=splits[1],
        num_classes=len(classes),
        name=unsuffixed(paths[0].name) if name is None else name,
        notes=_notes_of_labels(classes, *labels) + parts[0].notes + parts[1].notes,
    )


def _notes_of_labels(
    classes: np.ndarray, train: np.ndarray, test: np.ndarray
) -> tuple[str, ...]:
    """Notes on the mapping of labels to classes, and on labels missing in train."""
    ids = range(len(classes))
    notes = [f"labels {_listed(classes)} are the classes {_listed(ids)}"]
    unseen = np.setdiff1d(test, train)
    if unseen.size:
        notes.append(f"test: labels {_listed(unseen)} do not occur in train")
    return tuple(notes)


def _listed(numbers: np.ndarray | range) -> str:
    """The numbers for a note, without the middle if there are many."""
    words = [str(int(number)) for number in numbers]
    if len(words) > _SHOWN:
        words[3:-1] = ["..."]
    return ", ".join(words)


def _read_part(split: str, path: Path, first_index: int) -> _SvmPart:
    """The rows of one file, of the largest possible width."""
    all_x = CsrBuilder(LARGEST)
    all_labels = [np.zeros(0, np.int64)]
    summed = 0
    queries = 0

    def read(text: bytes, first_line: int) -> _Chunk:
        return _read_block(text, first_index, path, first_line)

    for first_line, text in chunks(path, skip_header=False):
        found = from_first_bad_line(read, text, first_line)
        summed += found.summed
        queries += found.queries
        all_x.append(found.x)
        all_labels.append(found.labels)
    labels = np.concatenate(all_labels)
    meant = labels != _BLANK
    if not meant.any():
        raise DataError(f"{path}: no rows, the file is empty")
    x = all_x.finish(meant)
    last = int(np.flatnonzero(meant)[-1])
    notes = (
        note(split, np.diff(x.indptr) == 0, "row", "without features"),
        note(split, summed, "duplicate feature", "summed"),
        note(split, queries, "query id", "ignored"),
        note(split, ~meant[:last], "blank line", "ignored"),
    )
    return _SvmPart(x, labels[meant], tuple(filter(None, notes)))


def _read_block(text: bytes, first_index: int, path: Path, first_line: int) -> _Chunk:
    """The rows of a text of whole lines; each line is checked by itself."""
    text, queries = _without_extras(text)
    labels = _labels(text, path, first_line)
    blanked = _FIRST_WORD.sub(lambda found: b" " * len(found[0]), text)
    rows = parse(blanked, Bounds(0, LARGEST, 1), path, first_line)
    _check_first(rows, first_index, path, first_line)
    features = rows.features - np.int32(first_index)
    x = csr_rows(rows.features_per_row, features, rows.values, LARGEST)
    check_sums(x, path, first_line)
    return _Chunk(x, labels, len(rows.features) - len(x.data), queries)


def _without_extras(text: bytes) -> tuple[bytes, int]:
    """The text without comments and query ids, and the number of query ids."""
    if b"#" in text:
        text = _COMMENT.sub(b"", text)
    if any(byte in text for byte in _ODD_BLANKS):
        text = text.translate(_BLANKED)
    queries = 0
    if b"qid:" in text:
        text, queries = _QUERY.subn(rb"\1", text)
    return text, queries


def _labels(text: bytes, path: Path, first_line: int) -> np.ndarray:
    """Each line's label [lines] int64, `_BLANK` for a blank line."""
    words = _FIRST_WORD.findall(text)[:-1]  # the last one follows the last newline
    values = {}
    for word in dict.fromkeys(words):  # in order of the lines; few labels are distinct
        try:
            values[word] = _label(word)
        except ValueError as error:
            line = first_line + words.index(word)
            raise DataError(f"{path}:{line}: {error}") from None
    return np.array([values[word] for word in words], np.int64)


def _label(word: bytes) -> int:
    """The label of a word, `_BLANK` if it is empty; a ValueError if it is invalid."""
    if not word:
        return _BLANK
    shown = repr(word[:40].decode(errors="replace"))
    if b":" in word:
        _fail(f"a row must begin with its label, but this one begins with {shown}")
    if b"," in word:
        _fail(f"{shown} is several labels; use read_xmc for files with such rows")
    label = None if b"_" in word else _integer(word)
    if label is None:
        _fail(f"label {shown} is not an integer; are these regression targets?")
    if abs(label) >= 2**63:
        _fail(f"label {shown} is beyond 64 bits: number the classes from 0 on")
    return label


def _integer(word: bytes) -> int | None:
    """The word as an integer, also with a decimal point; None if it is no integer."""
    if _INTEGER.fullmatch(word):
        return int(word)
    try:
        label = float(word)
    except ValueError:
        return None
    return int(label) if abs(label) < _EXACT and label == int(label) else None


def _check_first(rows: Rows, first_index: int, path: Path, first_line: int) -> None:
    """Raises a DataError for an index below the first."""
    wrong = np.flatnonzero(rows.features < first_index)
    if wrong.size:
        row = np.searchsorted(row_starts(rows.features_per_row), wrong[0], "right") - 1
        index = rows.features[wrong[0]]
        hint = "; numbered from zero? then pass first_index=0" if not index else ""
        raise DataError(
            f"{path}:{first_line + row}: feature {index} is below first_index, "
            f"which is {first_index}{hint}"
        )


def _fail(message: str) -> NoReturn:
    raise ValueError(message)
