"""A split's arrays on a device, where programs gather batches from row numbers.

`hetjax.data.batching.make_batch` makes the same batches on the host.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.experimental.sparse import BCOO

from hetjax.data.batching import Batch, Bucket
from hetjax.data.columns import gather_rows, in_memory, leaves_of
from hetjax.data.dataset import Split

MAX_ENTRIES = 2**31 - 1  # of a sparse array, as indices are int32


class Csr(NamedTuple):
    """A sparse matrix on the device, in compressed rows."""

    values: Any  # [entries] float32
    columns: Any  # [entries] int32
    starts: Any  # [N + 1] int32, the offset of each row


class RowGather(NamedTuple):
    """Gathers batches inside a program from a split's arrays on the device."""

    structure: Any  # of inputs and targets
    columns: tuple[int, ...]  # of each leaf, if it is sparse; else 0
    labels: bool  # whether the targets are sets of labels

    def batch(
        self, arrays: list[Any], rows: jax.Array, n: Any, bucket: Bucket
    ) -> Batch:
        """Return the batch of these rows, the first n of which are true examples.

        `arrays` are the split's.
        """
        weight = (jnp.arange(bucket.size) < n).astype(jnp.float32)
        capacities, found = iter(bucket.capacities), []
        for leaf, columns in zip(arrays, self.columns, strict=True):
            if not isinstance(leaf, Csr):
                found.append(jnp.take(leaf, rows, axis=0, mode="clip"))
                continue
            found.append(_rows_of(leaf, rows, next(capacities), columns))
        if self.labels:  # sets of labels: the last of the sparse arrays
            lengths = arrays[-1].starts[rows + 1] - arrays[-1].starts[rows]
            weight = weight * (lengths > 0)
            share = 1.0 / jnp.maximum(lengths, 1)
            found[-1] = _with_shares(found[-1], share.astype(jnp.float32))
        x, y = jax.tree.unflatten(self.structure, found)
        return Batch(x, y, weight, jnp.asarray(n, jnp.float32))


class SplitRows:
    """A split, whose batches a program receives or makes."""

    def __init__(self, split: Split):
        self.num_rows = len(split)
        leaves = leaves_of((split.x, split.y))
        self.sparse = [leaf for leaf in leaves if sp.issparse(leaf)]

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the number of stored entries of rows, for each sparse array."""
        return [m.indptr[rows + 1] - m.indptr[rows] for m in self.sparse]

    def stacked(self, rows: Sequence[np.ndarray], size: int) -> np.ndarray:
        """Return the rows [S, size] of S steps, padded as `make_batch` pads batches.

        Errors: an IndexError for rows that the split does not have.
        """
        taken = rows[0][None] if len(rows) == 1 else np.stack(rows)
        check_rows(taken, self.num_rows)
        if taken.shape[1] == size:
            return taken
        return pad_rows(taken, size, self.lengths(taken.ravel()))


class DeviceRows(SplitRows):
    """A split whose arrays are on the device, where batches are gathered."""

    max_steps = MAX_ENTRIES  # steps of a stretch
    sends = False  # whether batches are sent with each launch

    def __init__(self, split: Split, device: Any):
        """Copy the split to a device; None is the default device."""
        super().__init__(split)
        leaves, structure = jax.tree.flatten((split.x, split.y))
        columns = (leaf.shape[1] if sp.issparse(leaf) else 0 for leaf in leaves)
        self.batch_maker = RowGather(structure, tuple(columns), sp.issparse(split.y))
        self.arrays = jax.device_put([_on_host(leaf) for leaf in leaves], device)

    def program_inputs(
        self, rows: np.ndarray, steps: Sequence[Any], length: int
    ) -> tuple[Any, np.ndarray]:
        """Return a program's inputs: arrays, and the rows [length, B] of its steps."""
        del steps
        table = np.zeros((length, rows.shape[1]), np.int32)
        table[: len(rows)] = rows
        return self.arrays, table


def _on_host(leaf: Any) -> Any:
    if not sp.issparse(leaf):
        return gather_rows(leaf, np.arange(leaf.shape[0]))
    return Csr(
        np.asarray(leaf.data, np.float32),
        np.asarray(leaf.indices, np.int32),
        np.asarray(leaf.indptr, np.int32),
    )


def _rows_of(csr: Csr, rows: jax.Array, capacity: int, columns: int) -> BCOO:
    """Return rows [B, columns]; unused entries have indices out of bounds."""
    size = rows.shape[0]
    start = csr.starts[rows]
    ends = jnp.cumsum(csr.starts[rows + 1] - start)
    place = jnp.arange(capacity)
    row = jnp.searchsorted(ends, place, side="right", method="scan_unrolled")
    used, row = place < ends[-1], row.astype(jnp.int32)
    of = jnp.minimum(row, size - 1)
    first = jnp.where(of > 0, ends[of - 1], 0)
    entry = jnp.where(used, start[of] + place - first, 0)
    values = jnp.where(used, csr.values[entry], 0.0)
    column = jnp.where(used, csr.columns[entry], columns)
    indices = jnp.stack([jnp.where(used, row, size), column], axis=1)
    return BCOO((values, indices), shape=(size, columns), indices_sorted=True)


def _with_shares(labels: BCOO, share: jax.Array) -> BCOO:
    """Return the labels with each example's share as values; unused entries are 0."""
    row = labels.indices[:, 0]
    values = jnp.where(row < len(share), share[jnp.minimum(row, len(share) - 1)], 0.0)
    return BCOO((values, labels.indices), shape=labels.shape, indices_sorted=True)


def device_bytes(split: Split) -> int | None:
    """Return the bytes of a split's arrays on a device; None if impossible."""
    total = 0
    for leaf in leaves_of((split.x, split.y)):
        if not in_memory(leaf):
            return None
        if sp.issparse(leaf):
            if leaf.nnz > MAX_ENTRIES:
                return None
            total += 8 * leaf.nnz + 4 * (leaf.shape[0] + 1)
        else:
            total += leaf.nbytes
    return total


def check_rows(rows: np.ndarray, number: int) -> None:
    """Raise an IndexError unless all rows are in a split of `number` examples."""
    low, high = rows.min(initial=0), rows.max(initial=0)
    if low < 0 or high >= number:
        raise IndexError(
            f"the sampler drew the row {low if low < 0 else high} of a training split "
            f"of {number}: rows are 0 to {number - 1}"
        )


def pad_rows(table: np.ndarray, size: int, lengths: list[np.ndarray]) -> np.ndarray:
    """Pad the rows [S, n] of S steps to [S, size], as `make_batch` pads batches.

    `lengths` are the entries [S n] of the rows for each sparse array. Padding repeats
    the example with the fewest entries; without sparse arrays, examples from the first.
    """
    n = table.shape[1]
    if n == size:
        return table
    if not lengths:
        return table[:, np.arange(size) % n]
    shortest = np.sum(lengths, axis=0).reshape(len(table), n).argmin(axis=1)
    column = np.arange(size)[None]
    return np.take_along_axis(
        table, np.where(column < n, column, shortest[:, None]), axis=1
    )
