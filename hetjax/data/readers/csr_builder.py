"""CSR matrices built from blocks of rows, without holding two copies in memory."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from hetjax.data.readers import DataError

LARGEST = 2**31 - 1  # features or labels that an int32 can number


class CsrRows(NamedTuple):
    """Rows of a CSR matrix, in canonical form: indices rise within each row."""

    counts: np.ndarray  # [rows] of non-zeros
    indices: np.ndarray  # [E] int32
    data: np.ndarray  # [E] float32


class CsrBuilder:
    """Builds a float32 CSR matrix by appending blocks of rows.

    Stacking a list of blocks would hold everything twice. Here the arrays grow in place
    by a quarter at a time (realloc moves large arrays by their page table).
    """

    def __init__(self, columns: int):
        self.columns = columns
        self.size = 0  # non-zeros so far
        self._indices = np.empty(0, np.int32)
        self._data = np.empty(0, np.float32)
        self._counts: list[np.ndarray] = []

    def append(self, block: CsrRows) -> None:
        """Append these rows."""
        stop = self.size + len(block.data)
        if stop > len(self._data):
            self._reserve(stop + stop // 4)
        self._indices[self.size : stop] = block.indices
        self._data[self.size : stop] = block.data
        self._counts.append(block.counts)
        self.size = stop

    def finish(self, rows: np.ndarray | None = None) -> sp.csr_array:
        """The matrix [N, columns], which takes over the arrays.

        `rows` [all rows] bool selects rows; the others must be empty.
        """
        self._reserve(self.size)
        counts = np.concatenate([*self._counts, np.zeros(0, np.int64)])
        indptr = row_starts(counts if rows is None else counts[rows])
        shape = len(indptr) - 1, self.columns
        return sp.csr_array((self._data, self._indices, indptr), shape=shape)

    def _reserve(self, capacity: int) -> None:
        for array in (self._indices, self._data):
            array.resize(capacity, refcheck=False)  # there is no other reference yet


def row_starts(counts: np.ndarray) -> np.ndarray:
    """The starts of rows, and the end of the last one [N + 1], from lengths [N]."""
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    # scipy gives both index arrays the wider of their dtypes: use int32 if possible
    return starts if starts[-1] >= 2**31 else starts.astype(np.int32)


def csr_rows(
    counts: np.ndarray, indices: np.ndarray, values: np.ndarray, columns: int
) -> CsrRows:
    """Rows with sorted indices; repeated entries of a row are summed."""
    starts = row_starts(counts)
    rising = np.ones(len(indices), bool)
    np.greater(indices[1:], indices[:-1], out=rising[1:])
    rising[starts[:-1][counts > 0]] = True  # the first entry of each row
    if rising.all():  # the usual case; building a scipy matrix would take a tenth more
        return CsrRows(counts, indices, values)
    matrix = sp.csr_array((values, indices, starts), shape=(len(counts), columns))
    matrix.sum_duplicates()
    return rows_of(matrix)


def rows_of(matrix: sp.csr_array) -> CsrRows:
    """The rows of a canonical matrix."""
    return CsrRows(np.diff(matrix.indptr), matrix.indices, matrix.data)


def check_sums(x: CsrRows, path: Path, first_line: int) -> None:
    """Raises a DataError if repeated features sum to infinity.

    Single values were checked before.
    """
    infinite = np.flatnonzero(~np.isfinite(x.data))
    if infinite.size:
        line = first_line + np.searchsorted(row_starts(x.counts), infinite[0], "right")
        raise DataError(f"{path}:{line - 1}: the sum of repeated features is infinite")


def as_wide_as(matrix: sp.csr_array, columns: int) -> sp.csr_array:
    """The matrix with another number of columns, without copying."""
    parts = matrix.data, matrix.indices, matrix.indptr
    return sp.csr_array(parts, shape=(len(matrix.indptr) - 1, columns))


def largest_column(matrix: sp.csr_array) -> int:
    """The largest column index, -1 if there are no non-zeros."""
    return int(matrix.indices.max(initial=-1))
