"""libSVM files with one label per row: sparse data for ordinary classification.

A row is `label index:value index:value ...  # comment`. Unlike in XMC text, the label
may be negative or a decimal, and there are comments and query ids.
"""

import contextlib
import functools
import re
from os import PathLike
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from hetjax.arguments import Whole, checked
from hetjax.data.dataset import Dataset, Split, note
from hetjax.data.readers import DataError
from hetjax.data.readers.sparse_text import as_wide_as, read_rows, shown
from hetjax.data.readers.text_files import unsuffixed
from hetjax.recipes import by_name

_QUERY = re.compile(rb"qid:\d+")
_INTEGER = re.compile(rb"[+-]?0*\d{1,19}")
_EXACT = 2**53  # float64 represents all integers below this one
_SHOWN = 10  # labels in a note, at most


@by_name
@checked
def read_libsvm(
    train: str | PathLike,
    test: str | PathLike,
    *,
    first_index: Whole = 1,
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
    paths = Path(train), Path(test)
    notes: list[str] = []
    parts = [
        _read_part(split, path, first_index, notes)
        for split, path in zip(("train", "test"), paths, strict=True)
    ]
    features = 1 + max(int(x.indices.max(initial=-1)) for x, _ in parts)
    if not features:
        raise DataError(f"{paths[0]}: there are no features here or in {paths[1]}")
    in_train, in_test = (np.unique(labels) for _, labels in parts)
    classes = np.union1d(in_train, in_test)
    unseen = np.setdiff1d(in_test, in_train)
    of_labels = [
        f"labels {_listed(classes)} are the classes {_listed(range(len(classes)))}",
        f"test: labels {_listed(unseen)} do not occur in train" * bool(unseen.size),
    ]
    splits = [
        Split(
            as_wide_as(x, features), np.searchsorted(classes, labels).astype(np.int32)
        )
        for x, labels in parts
    ]
    return Dataset(
        *splits,
        num_classes=len(classes),
        name=unsuffixed(paths[0].name) if name is None else name,
        notes=tuple(filter(None, of_labels + notes)),
    )


def _listed(numbers: np.ndarray | range) -> str:
    """The numbers for a note, without the middle if there are many."""
    words = [str(int(number)) for number in numbers]
    if len(words) > _SHOWN:
        words[3:-1] = ["..."]
    return ", ".join(words)


def _read_part(
    split: str, path: Path, first_index: int, notes: list[str]
) -> tuple[sp.csr_array, np.ndarray]:
    """The features and labels of one file; remarks are appended to `notes`."""
    queries = 0

    def labels_of(line: bytes, words: list[bytes]) -> list[int]:
        nonlocal queries
        if not words:
            return []
        label = _label(words.pop(0))
        if words and _QUERY.fullmatch(words[0]):
            del words[0]
            queries += 1
        return [label]

    rows = read_rows(path, labels_of, first_index, comments=True)
    meant = rows.label_counts > 0  # all but blank lines
    if not meant.any():
        raise DataError(f"{path}: no rows, the file is empty")
    x = rows.x if meant.all() else rows.x[meant]
    notes += (
        note(split, np.diff(x.indptr) == 0, "row", "without features"),
        note(split, rows.summed, "duplicate feature", "summed"),
        note(split, queries, "query id", "ignored"),
        note(split, ~meant[: np.flatnonzero(meant)[-1]], "blank line", "ignored"),
    )
    return x, rows.labels


@functools.lru_cache(maxsize=1 << 16)  # few labels are distinct
def _label(word: bytes) -> int:
    """The label of a word; a ValueError if it is invalid."""
    found = shown(word)
    if b":" in word:
        raise ValueError(
            f"a row must begin with its label, but this one begins with {found}"
        )
    if b"," in word:
        raise ValueError(
            f"{found} is several labels; use read_xmc for files with such rows"
        )
    label = None
    if _INTEGER.fullmatch(word):
        label = int(word)
    elif b"_" not in word:
        with contextlib.suppress(ValueError):
            number = float(word)
            label = int(number) if abs(number) < _EXACT and number % 1 == 0 else None
    if label is None:
        raise ValueError(
            f"label {found} is not an integer; are these regression targets?"
        )
    if abs(label) >= 2**63:
        raise ValueError(
            f"label {found} is beyond 64 bits: number the classes from 0 on"
        )
    return label
