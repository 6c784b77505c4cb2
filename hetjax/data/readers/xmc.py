"""Multi-label sparse data: XMC text and multi-label libSVM.

A row is `label,label feature:value feature:value ...`; the first line may be a header
`rows features labels`.
"""

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from hetjax.arguments import Whole, checked
from hetjax.data.dataset import Dataset, Split, note
from hetjax.data.readers import DataError, copies, text_files
from hetjax.data.readers.sparse_text import (
    LARGEST,
    as_wide_as,
    csr_of,
    integer,
    read_rows,
    shown,
)
from hetjax.recipes import by_name

_HEADER = re.compile(rb"\s*([+-]?\d{1,18})\s+([+-]?\d{1,18})\s+([+-]?\d{1,18})\s*")
_PARTS = ("data", "indices", "indptr")


class _Header(NamedTuple):
    rows: int
    features: int
    labels: int


@by_name
@checked
def read_xmc(
    train: str | PathLike,
    test: str | PathLike,
    *,
    first_index: Whole = 0,
    name: str | None = None,
    cache: bool | str | PathLike | None = None,
) -> Dataset:
    """Reads two XMC or multi-label libSVM files as sparse data with several labels.

    A row that begins with a blank, or directly with `feature:value`, has no labels; a
    row may have no features. Features count from `first_index` (often 1 in libSVM
    files), labels always from zero. Repeated features in a row are summed, repeated
    labels count once. `Dataset.notes` counts both, and the rows without labels or
    without features.

    Sizes come from a header (two headers must agree; a single one serves both files),
    else from the largest index in both files. Empty lines (without even a blank) at the
    end are ignored. Empty lines between rows are rows without labels and features if
    the header's number of rows requires it; otherwise they are ignored and noted.

    Files may be compressed by gzip, bzip2 or xz, and from Python 3.14 on by Zstandard,
    which is detected from their content. Anything that cannot be read, including
    missing files, is a `DataError`. `name` defaults to the name of the training file's
    folder.

    `cache`: if the files together have 32 MB or more, a parsed copy is cached in
    $HETJAX_CACHE, or else the user's cache folder (half the text's size; it may be
    deleted). True caches files of any size, a path is the cache folder, False neither
    makes nor uses a copy. A copy of files that have changed is not used.
    """
    paths = Path(train), Path(test)
    read = functools.cache(lambda: _read(paths, first_index))
    data = _from_copy(paths, first_index, cache, read) or read()
    name = paths[0].resolve().parent.name if name is None else name
    return dataclasses.replace(data, name=name)


@by_name
@checked
def read_folder(
    path: str | PathLike,
    *,
    first_index: Whole = 0,
    name: str | None = None,
    cache: bool | str | PathLike | None = None,
) -> Dataset:
    """Reads train.txt and test.txt, or else their .txt.gz (.bz2, .xz): `read_xmc`."""
    files = [text_files.find(Path(path), f"{split}.txt") for split in ("train", "test")]
    return read_xmc(*files, first_index=first_index, name=name, cache=cache)


def _from_copy(
    paths: tuple[Path, Path],
    first_index: int,
    cache: bool | str | PathLike | None,
    read: Callable[[], Dataset],
) -> Dataset | None:
    """The data set in its cached copy, written first; None if there is to be none."""
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if cache is False or (cache is None and size < text_files.LARGE):
        return None

    def write(folder: Path) -> dict[str, Any]:
        data = read()
        for split in ("train", "test"):
            for axis in ("x", "y"):
                matrix = getattr(getattr(data, split), axis)
                for part in _PARTS:
                    np.save(folder / f"{split}_{axis}_{part}", getattr(matrix, part))
        sizes = {"features": data.num_features, "labels": data.num_classes}
        return {**sizes, "notes": data.notes}

    options = ["xmc", *(str(path.resolve()) for path in paths), int(first_index)]
    folder = copies.copy_folder(
        paths[0].resolve().parent, options, None if isinstance(cache, bool) else cache
    )
    try:
        # "c": writing into an array is possible, and does not change the file
        copy = copies.load_or_write(folder, paths, write, mode="c")
    except copies.CannotWrite as error:
        warnings.warn(f"{error}; cache=False asks for none", stacklevel=3)
        return None
    labels = copy.facts["labels"]
    splits = []
    for split in ("train", "test"):
        matrices = []
        for axis, columns in (("x", copy.facts["features"]), ("y", labels)):
            parts = tuple(copy.arrays[f"{split}_{axis}_{part}"] for part in _PARTS)
            shape = len(parts[2]) - 1, columns
            matrices.append(sp.csr_array(parts, shape=shape))
            # otherwise scipy reads everything to check
            matrices[-1].has_canonical_format = True
        splits.append(Split(*matrices))
    return Dataset(*splits, num_classes=labels, notes=tuple(copy.facts["notes"]))


def _read(paths: tuple[Path, Path], first_index: int) -> Dataset:
    """The data set of a training and a test file."""
    train, test = headers = [_read_header(path) for path in paths]
    if train and test and train[1:] != test[1:]:
        raise DataError(
            f"{paths[1]}:1: the header says {test.features} features and {test.labels} "
            f"labels, but the header of {paths[0]} says {train.features} and "
            f"{train.labels}; do both belong to the same data set?"
        )
    promised = train or test
    sizes = promised[1:] if promised else (LARGEST, LARGEST)
    notes: list[str] = []
    splits = [
        _read_split(split, path, header, sizes, first_index, notes)
        for split, path, header in zip(("train", "test"), paths, headers, strict=True)
    ]
    if not promised:
        largest = [[m.indices.max(initial=-1) for m in (s.x, s.y)] for s in splits]
        sizes = [1 + int(size) for size in np.max(largest, axis=0)]
        if not all(sizes):
            missing = "labels" if sizes[0] else "features"
            raise DataError(f"{paths[0]}: there are no {missing} here or in {paths[1]}")
        splits = [Split(*map(as_wide_as, (s.x, s.y), sizes)) for s in splits]
    return Dataset(*splits, num_classes=sizes[1], notes=tuple(filter(None, notes)))


def _read_header(path: Path) -> _Header | None:
    """The first line as a header if it is three integers; None if it is a row."""
    with text_files.opened(path) as file:
        line = file.readline(text_files.LONGEST_LINE)
    line = line.removeprefix(text_files.BYTE_ORDER_MARK)
    found = _HEADER.fullmatch(line)
    if not found:
        words = line.decode(errors="replace").split()
        if len(words) > 1 and b":" not in line:
            raise DataError(
                f"{path}:1: feature {words[1][:40]!r} is not index:value, and the line "
                "is not a header of three numbers (rows features labels)"
            )
        return None
    header = _Header(*(int(number) for number in found.groups()))
    if min(header) < 1 or max(header) > LARGEST:
        found = (
            f"{header.rows} rows, {header.features} features, {header.labels} labels"
        )
        raise DataError(f"{path}:1: header of {found}; each must be 1..{LARGEST}")
    return header


def _read_split(
    split: str,
    path: Path,
    header: _Header | None,
    sizes: Sequence[int],
    first_index: int,
    notes: list[str],
) -> Split:
    """The matrices of one file; remarks are appended to `notes`."""
    features, labels = sizes
    rows = read_rows(
        path,
        functools.partial(_labels_of, most=labels),
        first_index,
        features,
        skip_header=header is not None,
    )
    ones = np.ones(len(rows.labels), np.float32)
    y = csr_of(rows.label_counts, rows.labels, ones, labels)
    y.data[:] = 1  # a repeated label in a row counts once
    content = int(np.flatnonzero(~rows.empty).max(initial=-1)) + 1
    meant = _rows_meant(path, header, rows.empty, content)
    x = rows.x
    if not meant.all():
        x, y = x[meant], y[meant]
    notes += (
        note(split, np.diff(y.indptr) == 0, "row", "without labels"),
        note(split, np.diff(x.indptr) == 0, "row", "without features"),
        note(split, rows.summed, "duplicate feature", "summed"),
        note(split, len(rows.labels) - y.nnz, "duplicate label", "counted once"),
        note(split, ~meant[:content], "empty line", "ignored"),
    )
    return Split(x, y)


def _labels_of(line: bytes, words: list[bytes], most: int) -> list[int]:
    """The labels of a row, whose word is removed; a ValueError if they are wrong."""
    if not words or b":" in words[0] or line[:1].isspace():
        return []
    word = words.pop(0)
    parts = word.split(b",")
    if b"" in parts:
        raise ValueError(
            f"a label is missing in {shown(word)}; is there a blank after a comma? "
            "Separate labels by commas alone: 1,2"
        )
    labels = [integer(part) for part in parts]
    for label in labels:
        if not 0 <= label < most:
            hint = "; numbered from one? labels count from zero: subtract 1 from each"
            raise ValueError(
                f"label {label} is outside 0..{most - 1}{hint * (label == most)}"
            )
    return labels


def _rows_meant(
    path: Path, header: _Header | None, empty: np.ndarray, content: int
) -> np.ndarray:
    """[lines] bool: whether each is a row; empty ones if the header counts them.

    `content` is the number of lines up to the last one that is not empty.
    """
    filled = int(np.count_nonzero(~empty))
    if header is None and not filled:
        raise DataError(f"{path}: no rows, the file is empty")
    if header is None or header.rows == filled:
        return ~empty
    if content <= header.rows <= len(empty):
        return np.arange(len(empty)) < header.rows
    raise DataError(
        f"{path}: the header promises {header.rows} rows, but there are {filled}; "
        "truncated, or a wrong header?"
    )
