"""The batches of a compiled run: gathered on the device, or sent with each launch.

Data that fit live on the device, and a program receives only the row numbers of its
steps. Otherwise the host gathers the batches and sends them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.experimental.sparse import BCOO

from hetjax.data.batching import Batch, Bucket, fill_bucket
from hetjax.data.columns import gather_rows, in_memory, leaves_of, row_bytes
from hetjax.data.dataset import Split
from hetjax.engine.job import Job
from hetjax.engine.placement import Device
from hetjax.runtimes.compiled.stacks import tree_row

MAX_OTHER_SPLITS = 1  # other splits that stay on a device
MAX_SENT_BYTES = 2**26  # of batches that are sent with one launch, at most
MAX_ENTRIES = 2**31 - 1  # of a sparse array, as indices are int32


class Csr(NamedTuple):
    """A sparse matrix on the device, in compressed rows."""

    values: Any  # [entries] float32
    columns: Any  # [entries] int32
    starts: Any  # [N + 1] int32, the offset of each row


class BucketSteps(NamedTuple):
    """The steps of a stretch that share a bucket."""

    bucket: Bucket
    places: np.ndarray  # indices among all steps
    rows: list[np.ndarray]  # of each


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


class _Rows:
    """A split, whose batches a program receives or makes."""

    def __init__(self, split: Split):
        self.num_rows = len(split)
        leaves = leaves_of((split.x, split.y))
        self._sparse = [leaf for leaf in leaves if sp.issparse(leaf)]

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the number of stored entries of rows, for each sparse array."""
        return [m.indptr[rows + 1] - m.indptr[rows] for m in self._sparse]


class DeviceRows(_Rows):
    """A split whose arrays are on the device, where batches are gathered.

    `hetjax.data.batching.make_batch` makes the same batches on the host.
    """

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
        self, rows: np.ndarray, steps: Sequence[BucketSteps], length: int
    ) -> tuple[Any, np.ndarray]:
        """Return a program's inputs: arrays, and the rows [length, B] of its steps."""
        del steps
        table = np.zeros((length, rows.shape[1]), np.int32)
        table[: len(rows)] = rows
        return self.arrays, table


class SentBatches(NamedTuple):
    """Selects batches inside a program from those sent with it."""

    def batch(self, arrays: Any, rows: jax.Array, n: Any, bucket: Bucket) -> Batch:
        """Return the batch of a step."""
        del n
        return tree_row(arrays[bucket.size], rows[0])


class HostRows(_Rows):
    """A split on the host, which gathers batches and sends them with each launch."""

    batch_maker = SentBatches()
    sends = True

    def __init__(self, split: Split, batch_size: int):
        """`batch_size` is the largest."""
        super().__init__(split)
        self._split = split
        stored = sum(8 * leaf.nnz / leaf.shape[0] for leaf in self._sparse)
        row = max(1, row_bytes((split.x, split.y)) + stored)
        self.max_steps = max(1, int(MAX_SENT_BYTES / batch_size / row))

    def program_inputs(
        self, rows: np.ndarray, steps: Sequence[BucketSteps], length: int
    ) -> tuple[Any, np.ndarray]:
        """Return batches by size, and the index [length, 1] of each step's batch."""
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
            each = [fill_bucket(split, r, bucket) for r in own]
            return jax.tree.map(lambda *leaves: np.stack(leaves), *each)
        count = np.array([len(r) for r in own], np.float32)
        weight = (np.arange(bucket.size) < count[:, None]).astype(np.float32)
        x, y = gather_rows((split.x, split.y), rows)
        return Batch(x, y, weight, count)


def rows_on(job: Job, device: Device | None) -> DeviceRows:
    """Return a job's training split on a device, shared by runs on the same data."""
    known = {} if job.on_devices is None else job.on_devices
    key = id(job.train), device
    if key not in known:
        for old in list(known)[: max(0, len(known) - MAX_OTHER_SPLITS)]:
            del known[old]
        known[key] = job.train, DeviceRows(job.train, device)  # keeps the id valid
    return known[key][1]


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
