"""Columns: the inputs or the targets of a split, in memory or elsewhere.

A column is a tree (dictionaries, tuples, lists) of leaves with rows: NumPy arrays,
memory maps, scipy CSR arrays, or fields of a `hetjax.data.sources.Source`. A leaf that
is not in memory is never copied; only requested rows are read.
"""

import math
import zlib
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

from hetjax.data.sources import Field

LARGEST = 2**31 - 1  # of an int32
# JAX uses arrays on the host without a copy if their memory begins at a multiple of
# ALIGNMENT bytes; below UNCOPIED bytes, a copy costs less than to ask for such memory
ALIGNMENT, UNCOPIED = 64, 2**18
SAMPLED = 1024  # rows in the checksum of a column that is not in memory


class RowsView:
    """A view of some rows of an array that is not in memory, in a given order."""

    def __init__(self, base: Any, rows: np.ndarray):
        """`rows` [n] of `base`."""
        self.base, self.rows = base, np.asarray(rows)
        self.shape = (len(self.rows), *base.shape[1:])
        self.dtype, self.ndim = base.dtype, len(self.shape)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.asarray(self.base[self.rows[index]])


def leaves_of(column: Any) -> list[Any]:
    """The leaves of a column, in the order of `jax.tree.leaves`."""
    return jax.tree.leaves(column)


def sparse_leaves(column: Any) -> list[Any]:
    """The CSR arrays among a column's leaves, in their order."""
    return [leaf for leaf in leaves_of(column) if sp.issparse(leaf)]


def in_memory(leaf: Any) -> bool:
    """Whether it is held in memory, so that reading and copying all of it is cheap."""
    if sp.issparse(leaf):
        return True
    return isinstance(leaf, np.ndarray) and not is_mapped(leaf)


def is_mapped(array: Any) -> bool:
    """Whether it is a memory map, or a slice of one."""
    while isinstance(array, np.ndarray):
        # a copy of a memory map has the same type
        if isinstance(array, np.memmap) and getattr(array, "_mmap", None) is not None:
            return True
        array = array.base
    return False


def num_rows(column: Any) -> int:
    """The number of rows, the same for all leaves."""
    return int(leaves_of(column)[0].shape[0])


def row_bytes(column: Any) -> int:
    """The bytes per row of the dense leaves."""
    return sum(
        int(np.prod(leaf.shape[1:])) * np.dtype(leaf.dtype).itemsize
        for leaf in leaves_of(column)
        if not sp.issparse(leaf)
    )


def stored_per_row(column: Any) -> np.ndarray | None:
    """[N] the entries of each row in all sparse leaves; None if there are none."""
    counts = [np.diff(leaf.indptr) for leaf in sparse_leaves(column)]
    return np.sum(counts, axis=0) if counts else None


def take_rows(column: Any, rows: np.ndarray) -> Any:
    """The column of these rows: copies of leaves in memory, views of all others."""
    rows = np.asarray(rows)
    known: dict[int, np.ndarray] = {}  # fields of one source share their rows

    def one(leaf: Any) -> Any:
        if in_memory(leaf):
            return leaf[rows]
        if not isinstance(leaf, RowsView):
            return RowsView(leaf, rows)
        return RowsView(leaf.base, known.setdefault(id(leaf.rows), leaf.rows[rows]))

    return jax.tree.map(one, column)


def gather_rows(column: Any, index: np.ndarray) -> Any:
    """The rows of a column of dense leaves, as arrays [*index.shape, ...].

    Fields of one source are read together, once.
    """
    read: dict[tuple[int, int], list[np.ndarray]] = {}

    def one(leaf: Any) -> np.ndarray:
        if type(leaf) is np.ndarray:  # `take` is twice as fast as indexing
            return taken(leaf, index)
        base, rows, part = leaf, index, None
        if isinstance(leaf, RowsView):
            base, rows, part = leaf.base, leaf.rows[index], leaf.rows
        if not isinstance(base, Field):
            return _fitting(np.asarray(base[rows]))
        key = id(base.source), id(part)
        if key not in read:
            read[key] = base.source.read(rows)
        return _fitting(read[key][base.leaf])

    return jax.tree.map(one, column)


def taken(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The rows of an array; large results are where JAX can use them uncopied."""
    shape = *index.shape, *array.shape[1:]
    num_bytes = math.prod(shape) * array.itemsize
    if num_bytes < UNCOPIED or array.dtype.hasobject:
        return np.take(array, index, axis=0)
    memory = np.empty(num_bytes + ALIGNMENT, np.uint8)
    found = np.ndarray(shape, array.dtype, memory, -memory.ctypes.data % ALIGNMENT)
    low, high = int(index.min()), int(index.max())
    if low < -len(array) or high >= len(array):
        wrong = low if low < -len(array) else high
        raise IndexError(f"there is no row {wrong}: the array has {len(array)} rows")
    if low < 0:
        index = index.astype(np.int64) % len(array)
    # any other mode than "clip" would make a copy first
    return np.take(array, index, axis=0, out=found, mode="clip")


def _fitting(values: np.ndarray) -> np.ndarray:
    """The values, unchecked so far; a ValueError for integers beyond 32 bits."""
    if values.dtype.kind in "iu" and values.dtype.itemsize > 2 and values.size:
        low, high = int(values.min()), int(values.max())
        if low < -LARGEST or high > LARGEST:
            wrong = low if low < -LARGEST else high
            raise ValueError(f"the data have the integer {wrong}, beyond 32 bits")
    return values


def describe(name: str, column: Any) -> str:
    """A text about a column's leaves: "x [1437, 64] float32"."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(column):
        kind = "" if in_memory(leaf) else ", not in memory"
        if sp.issparse(leaf):
            kind = f", {leaf.nnz / max(1, leaf.shape[0]):.3g} stored per row"
        key = jax.tree_util.keystr(path)
        found.append(f"{name}{key} {list(leaf.shape)} {leaf.dtype}{kind}")
    return ", ".join(found)


def leaf_checksum(leaf: Any) -> int:
    """CRC-32 of a leaf: of all of it, or of evenly spaced rows if not in memory."""
    parts: tuple[Any, ...] = (leaf,)
    if not in_memory(leaf):
        number = min(SAMPLED, leaf.shape[0])
        rows = np.unique(np.linspace(0, leaf.shape[0] - 1, number).astype(np.int64))
        parts = (gather_rows(leaf, rows),)
    elif sp.issparse(leaf):
        parts = (leaf.data, leaf.indices, leaf.indptr)
    found = 0
    for part in parts:
        # as bytes: not every dtype has a buffer
        numbers = np.ravel(np.ascontiguousarray(part)).view(np.uint8)
        found = zlib.crc32(numbers.data, found)
    return found
