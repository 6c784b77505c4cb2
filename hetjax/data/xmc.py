"""Reads multi-label sparse data: XMC text and multi-label libSVM, plain or gzip.

A row is `label,label feature:value feature:value ...`; the first line may be a header
`rows features labels`. The text is read in chunks of whole lines (`xmc_text` turns one
into numbers), each becomes a block of a CSR matrix, and the blocks are stacked.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import scipy.sparse as sp

from hetjax.data.dataset import Dataset, Split
from hetjax.data.errors import DataError
from hetjax.data.pieces import GrowingCsr, row_starts
from hetjax.data.xmc_text import Bounds, parse

_CHUNK = 1 << 19  # [bytes] of text turned into numbers at a time
_LONGEST_LINE = 1 << 26  # [bytes], so that a file that is no text does not fill memory
_LARGEST = 2**31 - 1  # as many features or labels as an int32 can number
_HEADER = re.compile(rb"\s*([+-]?\d{1,18})\s+([+-]?\d{1,18})\s+([+-]?\d{1,18})\s*")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Header(NamedTuple):
    rows: int
    features: int
    labels: int


class _Part(NamedTuple):
    """One file's content, and what was worth telling about it."""

    x: sp.csr_array  # [N, features] float32
    y: sp.csr_array  # [N, labels] float32, 1.0 at every true label
    notes: tuple[str, ...]


def read_xmc(
    train: str | PathLike,
    test: str | PathLike,
    *,
    first_index: int = 0,
    name: str | None = None,
) -> Dataset:
    """Two XMC or multi-label libSVM files as sparse data with several labels per row.

    A row that begins with a blank, or at once with `feature:value`, has no labels; a
    row may have no features. Features count from `first_index` (often 1 in libSVM
    files), labels always from zero. A feature that a row repeats is summed, a label
    that it repeats counts once. `Dataset.notes` tells how often either happened, and
    how many rows have no labels or no features.

    Sizes come from a header (the files' headers must agree, and one serves both), else
    from the largest index of both files. Empty lines (without even a blank) at the end
    are ignored. Between rows they are rows without labels and features if the header's
    number of rows says so; otherwise they are ignored, too, and noted.

    Everything that cannot be read, missing files included, is a `DataError`.
    `name` defaults to that of the training file's folder.
    """
    if first_index < 0:
        raise ValueError(f"first_index is {first_index}; it must be 0 or more")
    paths = Path(train), Path(test)
    headers = [_read_header(path) for path in paths]
    features, labels = _promised_sizes(paths, headers)
    bounds = Bounds(first_index, features or _LARGEST, labels or _LARGEST)
    parts = [
        _read_part(split, path, header, bounds)
        for split, path, header in zip(("train", "test"), paths, headers, strict=True)
    ]
    features = features or 1 + max(_largest_column(part.x) for part in parts)
    labels = labels or 1 + max(_largest_column(part.y) for part in parts)
    if not features or not labels:
        missing = "labels" if features else "features"
        raise DataError(f"{paths[0]}: there are no {missing}, nor in {paths[1]}")
    splits = [
        Split(_as_wide_as(part.x, features), _as_wide_as(part.y, labels))
        for part in parts
    ]
    return Dataset(
        train=splits[0],
        test=splits[1],
        num_classes=labels,
        name=paths[0].resolve().parent.name if name is None else name,
        notes=parts[0].notes + parts[1].notes,
    )


def read_folder(
    path: str | PathLike, *, first_index: int = 0, name: str | None = None
) -> Dataset:
    """`read_xmc` of a folder's train.txt and test.txt, or else their .txt.gz."""
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    files = []
    for split in ("train", "test"):
        wanted = [folder / f"{split}.txt", folder / f"{split}.txt.gz"]
        found = [file for file in wanted if file.is_file()]
        if not found:
            names = sorted(entry.name for entry in folder.iterdir())
            content = ", ".join(names[:20] + ["..."] * (len(names) > 20)) or "nothing"
            looked_for = " or ".join(file.name for file in wanted)
            raise DataError(f"{folder}: looked for {looked_for}; it holds {content}")
        files.append(found[0])
    return read_xmc(files[0], files[1], first_index=first_index, name=name)


def _largest_column(matrix: sp.csr_array) -> int:
    return int(matrix.indices.max(initial=-1))


# Files.


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The file's text as bytes; whatever fails in reading them is a DataError."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"  # a name may lie, the content does not
            file.seek(0)
            yield gzip.GzipFile(fileobj=file) if packed else file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"truncated or damaged gzip ({error}); fetch the file again"
        raise DataError(f"{path}: {message}") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason})") from error


def _read_header(path: Path) -> _Header | None:
    """The first line, if it is three integers."""
    with _opened(path) as file:
        line = file.readline(_LONGEST_LINE).removeprefix(_BYTE_ORDER_MARK)
    found = _HEADER.fullmatch(line)
    if not found:
        return None
    header = _Header(*(int(number) for number in found.groups()))
    if min(header) < 1 or max(header) > _LARGEST:
        found = (
            f"{header.rows} rows, {header.features} features, {header.labels} labels"
        )
        raise DataError(f"{path}:1: header of {found}; each must be 1..{_LARGEST}")
    return header


def _promised_sizes(
    paths: tuple[Path, Path], headers: list[_Header | None]
) -> tuple[int | None, int | None]:
    """Features and labels as the headers say, if there is one."""
    train, test = headers
    if train and test and train[1:] != test[1:]:
        raise DataError(
            f"{paths[1]}:1: the header says {test.features} features and {test.labels} "
            f"labels, that of {paths[0]} {train.features} and {train.labels}; "
            "are both of the same data set?"
        )
    header = train or test
    return (header.features, header.labels) if header else (None, None)


def _chunks(path: Path, skip_header: bool) -> Iterator[tuple[int, bytes]]:
    """Pieces of text, each of whole lines, with the number of their first line."""
    with _opened(path) as file:
        first_line = 1
        if skip_header:
            file.readline()
            first_line = 2
        while text := file.read(_CHUNK):
            text += file.readline(_LONGEST_LINE)
            if not text.endswith(b"\n"):
                if len(text) > _LONGEST_LINE:
                    line = first_line + text.count(b"\n")
                    raise DataError(f"{path}:{line}: line too long for XMC text")
                text += b"\n"  # the file's last line
            if first_line == 1:
                text = text.removeprefix(_BYTE_ORDER_MARK)
            if b"\r" in text:
                text = text.replace(b"\r\n", b"\n")
            yield first_line, text
            first_line += text.count(b"\n")


# From text to matrices.


def _read_part(split: str, path: Path, header: _Header | None, bounds: Bounds) -> _Part:
    """The matrices of one file, as wide as the bounds."""
    all_x, all_y = GrowingCsr(bounds.features), GrowingCsr(bounds.labels)
    empties = [np.zeros(0, bool)]
    summed = repeated = 0
    for first_line, text in _chunks(path, skip_header=header is not None):
        rows = parse(text, bounds, path, first_line)
        x = _block(rows.features_per_row, rows.features, rows.values, bounds.features)
        _check_sums(x, path, first_line)
        ones = np.ones(len(rows.labels), np.float32)
        y = _block(rows.labels_per_row, rows.labels, ones, bounds.labels)
        y.data[:] = 1  # a label that a row repeats counts once
        summed += len(rows.features) - x.nnz
        repeated += len(rows.labels) - y.nnz
        all_x.append(x)
        all_y.append(y)
        empties.append(rows.empty)
    empty = np.concatenate(empties)
    meant = _rows_meant(path, header, empty)
    x = _chosen(all_x.finish(), meant)
    y = _chosen(all_y.finish(), meant)
    notes = (
        _note(split, _count(np.diff(y.indptr) == 0), "row", "without labels"),
        _note(split, _count(np.diff(x.indptr) == 0), "row", "without features"),
        _note(split, summed, "duplicate feature", "summed"),
        _note(split, repeated, "duplicate label", "counted once"),
        _note(split, _count(~meant[: _content(empty)]), "empty line", "ignored"),
    )
    return _Part(x, y, tuple(note for note in notes if note))


def _note(split: str, count: int, thing: str, what: str) -> str:
    """Such as 'train: 2 duplicate features summed'; nothing where there are none."""
    return f"{split}: {count} {thing}{'' if count == 1 else 's'} {what}" * (count > 0)


def _count(flags: np.ndarray) -> int:
    return int(np.count_nonzero(flags))


def _block(
    counts: np.ndarray, indices: np.ndarray, values: np.ndarray, columns: int
) -> sp.csr_array:
    """A CSR matrix with sorted indices; what a row repeats is summed."""
    shape = (len(counts), columns)
    block = sp.csr_array((values, indices, row_starts(counts)), shape=shape)
    block.sum_duplicates()
    return block


def _check_sums(x: sp.csr_array, path: Path, first_line: int) -> None:
    """No sum of repeated features may overflow; single values were checked before."""
    infinite = np.flatnonzero(~np.isfinite(x.data))
    if infinite.size:
        line = first_line + np.searchsorted(x.indptr, infinite[0], "right") - 1
        raise DataError(f"{path}:{line}: repeated features, and their sum is infinite")


def _content(empty: np.ndarray) -> int:
    """How many lines there are up to the last that is not empty."""
    return int(np.flatnonzero(~empty).max(initial=-1)) + 1


def _rows_meant(path: Path, header: _Header | None, empty: np.ndarray) -> np.ndarray:
    """Which lines [lines] bool are rows: empty ones only if the header wants them."""
    filled = _count(~empty)
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
        "cut short, or a wrong header?"
    )


def _chosen(matrix: sp.csr_array, rows: np.ndarray) -> sp.csr_array:
    """These rows of the matrix; itself, not a copy, where they are all."""
    return matrix if rows.all() else matrix[rows]


def _as_wide_as(matrix: sp.csr_array, columns: int) -> sp.csr_array:
    """The same rows in a matrix of that many columns; nothing is copied."""
    parts = matrix.data, matrix.indices, matrix.indptr
    return sp.csr_array(parts, shape=(len(matrix.indptr) - 1, columns))
