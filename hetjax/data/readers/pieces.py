"""CSR matrices from blocks of rows, without holding large ones in memory twice."""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from hetjax.data.readers.errors import DataError

LARGEST = 2**31 - 1  # features or labels that an int32 can number


class GrowingCsr:
    """A float32 CSR matrix that blocks of rows are appended to.

    Stacking a list of blocks would hold everything twice. Here the arrays grow in place
    by a quarter at a time (realloc moves large arrays by their page table).
    """

    def __init__(self, columns: int):
        self.columns = columns
        self.size = 0  # non-zeros so far
        self._indices = np.empty(0, np.int32)
        self._data = np.empty(0, np.float32)
        self._counts: list[np.ndarray] = []

    def append(self, block: sp.csr_array) -> None:
        """Appends these rows."""
        stop = self.size + block.nnz
        if stop > len(self._data):
            self._reserve(stop + stop // 4)
        self._indices[self.size : stop] = block.indices
        self._data[self.size : stop] = block.data
        self._counts.append(np.diff(block.indptr))
        self.size = stop

    def finish(self) -> sp.csr_array:
        """The matrix [N, columns], which takes over the arrays."""
        self._reserve(self.size)
        indptr = row_starts(np.concatenate([*self._counts, np.zeros(0, np.int64)]))
        shape = len(indptr) - 1, self.columns
        return sp.csr_array((self._data, self._indices, indptr), shape=shape)

    def _reserve(self, capacity: int) -> None:
        for array in (self._indices, self._data):
            array.resize(capacity, refcheck=False)  # there is no other reference yet


def row_starts(counts: np.ndarray) -> np.ndarray:
    """The starts of rows, and the last one's end [N + 1], from their lengths [N]."""
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    # scipy gives both index arrays the wider of their dtypes: use int32 if it suffices
    return starts if starts[-1] >= 2**31 else starts.astype(np.int32)


def block(
    counts: np.ndarray, indices: np.ndarray, values: np.ndarray, columns: int
) -> sp.csr_array:
    """A CSR matrix with sorted indices; repeated entries of a row are summed."""
    shape = (len(counts), columns)
    matrix = sp.csr_array((values, indices, row_starts(counts)), shape=shape)
    matrix.sum_duplicates()
    return matrix


def check_sums(x: sp.csr_array, path: Path, first_line: int) -> None:
    """Raises a DataError if repeated features sum to infinity.

    Single values were checked before.
    """
    infinite = np.flatnonzero(~np.isfinite(x.data))
    if infinite.size:
        line = first_line + np.searchsorted(x.indptr, infinite[0], "right") - 1
        raise DataError(f"{path}:{line}: the sum of repeated features is infinite")


def chosen(matrix: sp.csr_array, rows: np.ndarray) -> sp.csr_array:
    """These rows [N] bool of the matrix; all of them without a copy."""
    return matrix if rows.all() else matrix[rows]


def as_wide_as(matrix: sp.csr_array, columns: int) -> sp.csr_array:
    """The matrix with another number of columns; nothing is copied."""
    parts = matrix.data, matrix.indices, matrix.indptr
    return sp.csr_array(parts, shape=(len(matrix.indptr) - 1, columns))


def largest_column(matrix: sp.csr_array) -> int:
    """The largest column index, -1 if there are no non-zeros."""
    return int(matrix.indices.max(initial=-1))
