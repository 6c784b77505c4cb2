"""Batches inside a compiled run: gathered from data on the device, or sent with it.

Data that fit are on the device, and a program is told only which rows a step takes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.experimental.sparse import BCOO

from hetjax.data.batching import Batch, Bucket, entries_of, filled
from hetjax.data.columns import gathered, in_memory, leaves_of, row_bytes
from hetjax.data.dataset import Split
from hetjax.engine.job import Job
from hetjax.engine.placement import Device
from hetjax.runtimes.compiled.stacks import tree_row

MAX_OTHER_SPLITS = 1  # splits that stay on a device besides the one in use
MAX_SENT_BYTES = 2**26  # bytes of batches that are sent at once, at most
MAX_ENTRIES = 2**31 - 1  # entries of a sparse array that int32 numbers can count


class Csr(NamedTuple):
    """A sparse matrix on the device, row after row."""

    values: Any  # [entries] float32
    columns: Any  # [entries] int32
    starts: Any  # [N + 1] int32, where each row begins


class BucketSteps(NamedTuple):
    """Steps of a stretch that have the same bucket."""

    bucket: Bucket
    places: np.ndarray  # among all steps
    rows: list[np.ndarray]  # of each


class RowGather(NamedTuple):
    """Makes batches inside a program, from a split's arrays on the device."""

    structure: Any  # of inputs and targets
    columns: tuple[int, ...]  # of each leaf, if it is sparse; else 0
    labels: bool  # are the targets sets of labels?

    def batch(
        self, arrays: list[Any], rows: jax.Array, n: Any, bucket: Bucket
    ) -> Batch:
        """The batch of these rows, of which the first n are true examples.

        `arrays` are those of the split.
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


class DeviceRows:
    """A split whose arrays are on the device; batches are gathered there.

    See `hetjax.data.batching.make_batch`, which makes the same batches on the host.
    """

    def __init__(self, split: Split, device: Any):
        """Copy the split to a device; None is JAX's choice."""
        leaves, structure = jax.tree.flatten((split.x, split.y))
        columns = (leaf.shape[1] if sp.issparse(leaf) else 0 for leaf in leaves)
        self.batch_maker = RowGather(structure, tuple(columns), sp.issparse(split.y))
        self._sparse = [leaf for leaf in leaves if sp.issparse(leaf)]
        self.num_rows = len(split)
        self.arrays = jax.device_put([_on_host(leaf) for leaf in leaves], device)

    max_steps = MAX_ENTRIES  # steps of a stretch
    sends = False  # are batches sent with each launch?

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """The stored entries of these rows (host), of each sparse array."""
        return [m.indptr[rows + 1] - m.indptr[rows] for m in self._sparse]

    def program_inputs(
        self, rows: np.ndarray, steps: Sequence["BucketSteps"], length: int
    ) -> tuple[Any, np.ndarray]:
        """What a program gets: the arrays, and the rows [length, B] of its steps."""
        del steps
        table = np.zeros((length, rows.shape[1]), np.int32)
        table[: len(rows)] = rows
        return self.arrays, table


class SentBatches(NamedTuple):
    """Takes batches inside a program that were sent with it."""

    def batch(self, arrays: Any, rows: jax.Array, n: Any, bucket: Bucket) -> Batch:
        """The batch of a step, inside a program."""
        del n
        return tree_row(arrays[bucket.size], rows[0])


class HostRows:
    """A split on the host, whose batches are gathered there and sent with a program."""

    def __init__(self, split: Split, batch_size: int):
        """`batch_size` is the largest."""
        self._split, self.num_rows = split, len(split)
        columns = (split.x, split.y)
        self._sparse = [leaf for leaf in leaves_of(columns) if sp.issparse(leaf)]
        stored = sum(8 * leaf.nnz / leaf.shape[0] for leaf in self._sparse)
        self.max_steps = max(
            1, int(MAX_SENT_BYTES / batch_size / max(1, row_bytes(columns) + stored))
        )

    batch_maker = SentBatches()
    sends = True

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """The stored entries of these rows (host), of each sparse array."""
        return [m.indptr[rows + 1] - m.indptr[rows] for m in self._sparse]

    def program_inputs(
        self, rows: np.ndarray, steps: Sequence[BucketSteps], length: int
    ) -> tuple[Any, np.ndarray]:
        """The batches of each size, and for each step the place of its own."""
        table = np.zeros((length, 1), np.int32)
        arrays = {}
        for bucket, places, own in steps:
            table[places, 0] = np.arange(len(places))
            batches = self._batches(bucket, rows[places, : bucket.size], own)
            arrays[bucket.size] = jax.tree.map(
                lambda x: np.concatenate(
                    [x, np.zeros((length - len(x), *x.shape[1:]), x.dtype)]
                ),
                batches,
            )
        return arrays, table

    def _batches(
        self, bucket: Bucket, rows: np.ndarray, own: Sequence[np.ndarray]
    ) -> Batch:
        split = self._split
        if self._sparse:
            each = [filled(split, r, bucket, entries_of(split, r)) for r in own]
            return jax.tree.map(lambda *leaves: np.stack(leaves), *each)
        count = np.array([len(r) for r in own], np.float32)
        weight = (np.arange(bucket.size) < count[:, None]).astype(np.float32)
        x, y = gathered((split.x, split.y), rows)
        return Batch(x, y, weight, count)


def rows_on(job: Job, device: Device | None) -> DeviceRows:
    """A job's training split on a device; runs that share their data share it, too."""
    known = {} if job.on_devices is None else job.on_devices
    key = id(job.train), device
    if key not in known:
        for old in list(known)[: max(0, len(known) - MAX_OTHER_SPLITS)]:
            del known[old]
        known[key] = job.train, DeviceRows(job.train, device)  # so that the id stays
    return known[key][1]


def _on_host(leaf: Any) -> Any:
    if not sp.issparse(leaf):
        return gathered(leaf, np.arange(leaf.shape[0]))
    return Csr(
        np.asarray(leaf.data, np.float32),
        np.asarray(leaf.indices, np.int32),
        np.asarray(leaf.indptr, np.int32),
    )


def _rows_of(csr: Csr, rows: jax.Array, capacity: int, columns: int) -> BCOO:
    """[B, columns] rows of a matrix; unused entries have indices out of bounds."""
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
    """The same labels, each of which counts as its example's share; unused ones 0."""
    row = labels.indices[:, 0]
    values = jnp.where(row < len(share), share[jnp.minimum(row, len(share) - 1)], 0.0)
    return BCOO((values, labels.indices), shape=labels.shape, indices_sorted=True)


def device_bytes(split: Split) -> int | None:
    """The bytes of a split's arrays on a device; None if they cannot be there."""
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
    """An IndexError unless all are rows of a split of so many examples."""
    low, high = rows.min(initial=0), rows.max(initial=0)
    if low < 0 or high >= number:
        raise IndexError(
            f"the sampler drew the row {low if low < 0 else high} of a training split "
            f"of {number}: rows are 0 to {number - 1}"
        )


def pad_rows(table: np.ndarray, size: int, lengths: list[np.ndarray]) -> np.ndarray:
    """[S, size] the rows [S, n] of S steps, padded as batches are.

    `lengths` [S n] are the entries of the rows, of each sparse array, in their order:
    padding repeats the example that has the fewest; without any, all from the first on.
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
