"""Reads multi-label sparse data: XMC text and multi-label libSVM.

A row is `label,label feature:value feature:value ...`; the first line may be a header
`rows features labels`. The text is read in chunks of whole lines, which `sparse_text`
converts to numbers; each chunk becomes a block of rows of a CSR matrix. Parsed copies
of large files are cached (`parsed_copies`).
"""

import dataclasses
import re
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from hetjax.data.dataset import Dataset, Split, note
from hetjax.data.readers import DataError, parsed_copies
from hetjax.data.readers.csr_builder import (
    LARGEST,
    CsrBuilder,
    CsrRows,
    as_wide_as,
    check_sums,
    csr_rows,
    largest_column,
)
from hetjax.data.readers.sparse_text import Bounds, Rows, parse
from hetjax.data.readers.text_files import (
    BYTE_ORDER_MARK,
    LONGEST_LINE,
    chunks,
    find,
    from_first_bad_line,
    opened,
)
from hetjax.recipes import by_name

_HEADER = re.compile(rb"\s*([+-]?\d{1,18})\s+([+-]?\d{1,18})\s+([+-]?\d{1,18})\s*")


class _Header(NamedTuple):
    rows: int
    features: int
    labels: int


class _XmcPart(NamedTuple):
    """The content of one file, and notes about it."""

    x: sp.csr_array  # [N, features] float32
    y: sp.csr_array  # [N, labels] float32, 1.0 at every true label
    notes: tuple[str, ...]


@by_name
def read_xmc(
    train: str | PathLike,
    test: str | PathLike,
    *,
    first_index: int = 0,
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
    if first_index < 0:
        raise ValueError(f"first_index is {first_index}; it must be 0 or more")
    paths = Path(train), Path(test)
    place = parsed_copies.copy_folder(paths, first_index, cache)
    if place is None:
        data = _read(paths, first_index)
    else:
        data = parsed_copies.load_or_read(
            place, paths, lambda: _read(paths, first_index)
        )
    name = paths[0].resolve().parent.name if name is None else name
    return dataclasses.replace(data, name=name)


def _read(paths: tuple[Path, Path], first_index: int) -> Dataset:
    """The data set of a training and a test file."""
    headers = [_read_header(path) for path in paths]
    features, labels = _promised_sizes(paths, headers)
    bounds = Bounds(first_index, features or LARGEST, labels or LARGEST)
    parts = [
        _read_part(split, path, header, bounds)
        for split, path, header in zip(("train", "test"), paths, headers, strict=True)
    ]
    features = features or 1 + max(largest_column(part.x) for part in parts)
    labels = labels or 1 + max(largest_column(part.y) for part in parts)
    if not features or not labels:
        missing = "labels" if features else "features"
        raise DataError(f"{paths[0]}: there are no {missing} here or in {paths[1]}")
    splits = [
        Split(as_wide_as(part.x, features), as_wide_as(part.y, labels))
        for part in parts
    ]
    return Dataset(
        train=splits[0],
        test=splits[1],
        num_classes=labels,
        notes=parts[0].notes + parts[1].notes,
    )


@by_name
def read_folder(
    path: str | PathLike,
    *,
    first_index: int = 0,
    name: str | None = None,
    cache: bool | str | PathLike | None = None,
) -> Dataset:
    """Reads train.txt and test.txt, or else their .txt.gz (.bz2, .xz): `read_xmc`."""
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    files = []
    for split in ("train", "test"):
        found = find(folder, f"{split}.txt")
        if found is None:
            names = sorted(entry.name for entry in folder.iterdir())
            content = ", ".join(names[:20] + ["..."] * (len(names) > 20)) or "nothing"
            wanted = f"{split}.txt or {split}.txt.gz"
            raise DataError(f"{folder}: looked for {wanted}; it holds {content}")
        files.append(found)
    return read_xmc(*files, first_index=first_index, name=name, cache=cache)


def _read_header(path: Path) -> _Header | None:
    """The first line as a header if it is three integers; None if it is a row."""
    with opened(path) as file:
        line = file.readline(LONGEST_LINE).removeprefix(BYTE_ORDER_MARK)
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


def _promised_sizes(
    paths: tuple[Path, Path], headers: list[_Header | None]
) -> tuple[int | None, int | None]:
    """The numbers of features and labels in the headers; None without a header."""
    train, test = headers
    if train and test and train[1:] != test[1:]:
        raise DataError(
            f"{paths[1]}:1: the header says {test.features} features and {test.labels} "
            f"labels, but the header of {paths[0]} says {train.features} and "
            f"{train.labels}; do both belong to the same data set?"
        )
    header = train or test
    return (header.features, header.labels) if header else (None, None)


def _read_part(
    split: str, path: Path, header: _Header | None, bounds: Bounds
) -> _XmcPart:
    """The matrices of one file, with the bounds' numbers of columns."""
    all_x, all_y = CsrBuilder(bounds.features), CsrBuilder(bounds.labels)
    empties = [np.zeros(0, bool)]
    summed = repeated = 0

    def read(text: bytes, first_line: int) -> tuple[Rows, CsrRows]:
        rows = parse(text, bounds, path, first_line)
        x = csr_rows(rows.features_per_row, rows.features, rows.values, bounds.features)
        check_sums(x, path, first_line)
        return rows, x

    for first_line, text in chunks(path, skip_header=header is not None):
        rows, x = from_first_bad_line(read, text, first_line)
        ones = np.ones(len(rows.labels), np.float32)
        y = csr_rows(rows.labels_per_row, rows.labels, ones, bounds.labels)
        y.data[:] = 1  # a repeated label in a row counts once
        summed += len(rows.features) - len(x.data)
        repeated += len(rows.labels) - len(y.data)
        all_x.append(x)
        all_y.append(y)
        empties.append(rows.empty)
    empty = np.concatenate(empties)
    meant = _rows_meant(path, header, empty)
    x = all_x.finish(meant)
    y = all_y.finish(meant)
    notes = (
        note(split, np.diff(y.indptr) == 0, "row", "without labels"),
        note(split, np.diff(x.indptr) == 0, "row", "without features"),
        note(split, summed, "duplicate feature", "summed"),
        note(split, repeated, "duplicate label", "counted once"),
        note(split, ~meant[: _content(empty)], "empty line", "ignored"),
    )
    return _XmcPart(x, y, tuple(filter(None, notes)))


def _content(empty: np.ndarray) -> int:
    """The number of lines up to the last one that is not empty."""
    return int(np.flatnonzero(~empty).max(initial=-1)) + 1


def _rows_meant(path: Path, header: _Header | None, empty: np.ndarray) -> np.ndarray:
    """[lines] bool: whether each is a row; empty ones if the header counts them."""
    filled = int(np.count_nonzero(~empty))
    if not header:
        if not filled:
            raise DataError(f"{path}: no rows, the file is empty")
        return ~empty
    if header.rows == filled:
        return ~empty
    if _content(empty) <= header.rows <= len(empty):
        return np.arange(len(empty)) < header.rows
    raise DataError(
        f"{path}: the header promises {header.rows} rows, but there are {filled}; "
        "truncated, or a wrong header?"
    )
