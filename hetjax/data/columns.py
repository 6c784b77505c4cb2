"""Columns: what the rows of a split are read from, whatever holds them.

A column is a tree (dictionaries, tuples, lists) of leaves with rows: NumPy arrays,
memory maps, scipy CSR arrays, or fields of a `hetjax.data.sources.Source`. Nothing here
copies a leaf that is not in memory; only the rows that are asked for are read.
"""

import zlib
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

from hetjax.data.sources import Field

LARGEST = 2**31 - 1  # of an int32
SAMPLED = 1024  # rows that stand for a column that is not in memory, in a checksum


class View:
    """Some rows of an array that is not in memory, in a given order; not a copy."""

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
    """Is it held in memory, so that reading and copying all of it is cheap?"""
    if sp.issparse(leaf):
        return True
    return isinstance(leaf, np.ndarray) and not is_mapped(leaf)


def is_mapped(array: Any) -> bool:
    """Is it a memory map, or a slice of one?"""
    while isinstance(array, np.ndarray):
        # a copy of a map has its type, too
        if isinstance(array, np.memmap) and getattr(array, "_mmap", None) is not None:
            return True
        array = array.base
    return False


def num_rows(column: Any) -> int:
    """The number of rows, which all leaves share."""
    return int(leaves_of(column)[0].shape[0])


def row_bytes(column: Any) -> int:
    """The bytes of a row of the dense leaves."""
    return sum(
        int(np.prod(leaf.shape[1:])) * np.dtype(leaf.dtype).itemsize
        for leaf in leaves_of(column)
        if not sp.issparse(leaf)
    )


def stored_per_row(column: Any) -> np.ndarray | None:
    """[N] the stored entries of each row of the sparse leaves; None without any."""
    counts = [np.diff(leaf.indptr) for leaf in sparse_leaves(column)]
    return np.sum(counts, axis=0) if counts else None


def taken(column: Any, rows: np.ndarray) -> Any:
    """The column of these rows: copies of what is in memory, views of what is not."""
    rows = np.asarray(rows)
    known: dict[Any, np.ndarray] = {}  # fields that are read together stay so

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Field):
            return leaf.taken(rows, known)
        if isinstance(leaf, View):
            return View(leaf.base, leaf.rows[rows])
        return leaf[rows] if in_memory(leaf) else View(leaf, rows)

    return jax.tree.map(one, column)


def gathered(column: Any, index: np.ndarray) -> Any:
    """The rows of a column of dense leaves, as arrays [*index.shape, ...].

    Fields of one source are read together, once.
    """
    read: dict[Any, Any] = {}

    def one(leaf: Any) -> np.ndarray:
        if type(leaf) is np.ndarray:  # `take` needs half the time of an index
            return np.take(leaf, index, axis=0)
        if not isinstance(leaf, Field):
            return _fitting(np.asarray(leaf[index]))
        key = leaf.rows_key
        if key not in read:
            read[key] = leaf.read(index)
        return _fitting(read[key][leaf.leaf])

    return jax.tree.map(one, column)


def _fitting(values: np.ndarray) -> np.ndarray:
    """The values, which nobody has checked before; integers must fit in 32 bits."""
    if values.dtype.kind in "iu" and values.dtype.itemsize > 2 and values.size:
        low, high = int(values.min()), int(values.max())
        if low < -LARGEST or high > LARGEST:
            wrong = low if low < -LARGEST else high
            raise ValueError(f"the data have the integer {wrong}, beyond 32 bits")
    return values


def described(name: str, column: Any) -> str:
    """The leaves of a column in words: "x [1437, 64] float32"."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(column):
        kind = "" if in_memory(leaf) else ", not in memory"
        if sp.issparse(leaf):
            kind = f", {leaf.nnz / max(1, leaf.shape[0]):.3g} stored per row"
        key = jax.tree_util.keystr(path)
        found.append(f"{name}{key} {list(leaf.shape)} {leaf.dtype}{kind}")
    return ", ".join(found)


def sampled_rows(leaf: Any) -> np.ndarray:
    """Evenly spaced rows that stand for a leaf which is not in memory."""
    number = min(SAMPLED, leaf.shape[0])
    rows = np.unique(np.linspace(0, leaf.shape[0] - 1, number).astype(np.int64))
    return np.ascontiguousarray(gathered(leaf, rows))


def leaf_checksum(leaf: Any) -> int:
    """CRC-32 of a leaf: of all of it, or of sampled rows if it is not in memory."""
    if not in_memory(leaf):
        parts = (sampled_rows(leaf),)
    elif sp.issparse(leaf):
        parts = (leaf.data, leaf.indices, leaf.indptr)
    else:
        parts = (leaf,)
    found = 0
    for part in parts:
        # as bytes: not every dtype has a buffer
        numbers = np.ravel(np.ascontiguousarray(part)).view(np.uint8)
        found = zlib.crc32(numbers.data, found)
    return found
