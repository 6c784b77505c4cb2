"""CSR matrices from blocks of rows, large ones in little more than their memory."""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from hetjax.data.readers.errors import DataError

LARGEST = 2**31 - 1  # as many features or labels as an int32 can number


class GrowingCsr:
    """A float32 CSR matrix that blocks of rows are appended to.

    Stacking a list of blocks holds everything twice. Here the arrays grow in place
    (realloc moves large ones by their page table), by a quarter at a time.
    """

    def __init__(self, columns: int):
        self.columns = columns
        self.size = 0  # non-zeros so far
        self._indices = np.empty(0, np.int32)
        self._data = np.empty(0, np.float32)
        self._counts: list[np.ndarray] = []

    def append(self, block: sp.csr_array) -> None:
        """Puts these rows behind the others."""
        stop = self.size + block.nnz
        if stop > len(self._data):
            self._reserve(stop + stop // 4)
        self._indices[self.size : stop] = block.indices
        self._data[self.size : stop] = block.data
        self._counts.append(np.diff(block.indptr))
        self.size = stop

    def finish(self) -> sp.csr_array:
        """The matrix [N, columns]; it takes the arrays over."""
        self._reserve(self.size)
        indptr = row_starts(np.concatenate([*self._counts, np.zeros(0, np.int64)]))
        shape = len(indptr) - 1, self.columns
        return sp.csr_array((self._data, self._indices, indptr), shape=shape)

    def _reserve(self, capacity: int) -> None:
        for array in (self._indices, self._data):
            array.resize(capacity, refcheck=False)  # nobody else holds them yet


def row_starts(counts: np.ndarray) -> np.ndarray:
    """Where each row starts and the last one ends [N + 1], from rows' lengths [N]."""
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    # scipy gives both index arrays the wider of their types: keep int32 where it does
    return starts if starts[-1] >= 2**31 else starts.astype(np.int32)


def block(
    counts: np.ndarray, indices: np.ndarray, values: np.ndarray, columns: int
) -> sp.csr_array:
    """A CSR matrix with sorted indices; what a row repeats is summed."""
    shape = (len(counts), columns)
    matrix = sp.csr_array((values, indices, row_starts(counts)), shape=shape)
    matrix.sum_duplicates()
    return matrix


def check_sums(x: sp.csr_array, path: Path, first_line: int) -> None:
    """No sum of repeated features may overflow; single values were checked before."""
    infinite = np.flatnonzero(~np.isfinite(x.data))
    if infinite.size:
        line = first_line + np.searchsorted(x.indptr, infinite[0], "right") - 1
        raise DataError(f"{path}:{line}: repeated features, and their sum is infinite")


def chosen(matrix: sp.csr_array, rows: np.ndarray) -> sp.csr_array:
    """These rows of the matrix; itself, not a copy, where they are all."""
    return matrix if rows.all() else matrix[rows]


def as_wide_as(matrix: sp.csr_array, columns: int) -> sp.csr_array:
    """The same rows in a matrix of that many columns; nothing is copied."""
    parts = matrix.data, matrix.indices, matrix.indptr
    return sp.csr_array(parts, shape=(len(matrix.indptr) - 1, columns))


def largest_column(matrix: sp.csr_array) -> int:
    """-1 where there are no non-zeros."""
    return int(matrix.indices.max(initial=-1))
