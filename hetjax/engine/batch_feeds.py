"""Feeds: what the programs of local rounds receive as their batches.

The training data are on the device, which gathers batches from row numbers; or the host
gathers batches and sends them. A CPU is the host: there, dense batches that the host
gathers are faster.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.data.batching import Batch, Bucket, bucket_of, make_batch, repeated
from hetjax.data.columns import gather_rows, row_bytes, sparse_leaves, taken
from hetjax.data.device_rows import DeviceRows
from hetjax.data.uneven import make_batches
from hetjax.engine.device_data import fits, rows_on
from hetjax.engine.job import Job
from hetjax.engine.placement import Device, is_host
from hetjax.engine.programs.local_round import RowBatches

AT_ONCE = 2**20  # bytes of batches that are gathered before the first one is used

Rows = Sequence[np.ndarray]  # of the training split, one array per step


class Fed(NamedTuple):
    """The batches of some steps of n examples each, or of one."""

    data: Any  # batches, or the arrays on the device
    size: int  # of the padded batches
    n: int
    shape: Hashable  # decides, with the number of steps, what is compiled
    batches: RowBatches | None = None  # how a program gathers them; None: they are sent
    rows: np.ndarray | None = None  # [steps, size], if a program gathers them


class HostFeed:
    """Gathers batches on the host."""

    def __init__(self, job: Job, device: Device | None = None):
        """Batches are padded, unless that would change statistics or losses.

        With a device, it has the weights of dense batches: they are sent once.
        """
        self._device = device
        self._train, self._buckets = job.train, job.buckets
        self._exact = job.programs.exact
        self._dense = not job.train.sparse
        columns = job.train.x, job.train.y
        self._plain = all(type(column) is np.ndarray for column in columns)
        self._row_bytes = row_bytes(job.train.x)
        stored = (x.data.nbytes + x.indices.nbytes for x in sparse_leaves(job.train.x))
        self._mean_bytes = self._row_bytes + sum(stored) / len(job.train)
        # of dense batches of n examples: padded size, weights, and count
        self._of_size: dict[int, tuple[int, Any, Any]] = {}

    def num_bytes(self, rows: Rows) -> int:
        """Return about how many bytes the inputs of all steps have."""
        return math.ceil(len(rows) * len(rows[0]) * self._mean_bytes)

    def together(self, rows: Rows) -> Fed:
        """Return the batches of all steps, [steps, ...]."""
        batch = make_batches(self._train, rows, self._buckets, exact=self._exact)
        return self._fed(batch, batch.weight.shape[-1], len(rows[0]))

    def one(self, rows: np.ndarray) -> Fed:
        """Return the batch of a step."""
        if self._dense:
            n = len(rows)
            size, weight, count = self._of_size.get(n) or self._size(n)
            x, y = self._gathered(repeated(rows, size))
            return Fed(Batch(x, y, weight, count), size, n, size)
        batch = make_batch(self._train, rows, self._buckets, exact=self._exact)
        return self._fed(batch, len(batch.weight), len(rows))

    def one_by_one(self, rows: Rows) -> Iterator[Fed]:
        """Yield the batch of each step; small dense ones are gathered together."""
        if not self._dense:
            yield from map(self.one, rows)
            return
        n = len(rows[0])
        size, weight, count = self._of_size.get(n) or self._size(n)
        several = max(1, AT_ONCE // (n * self._row_bytes))
        for i in range(0, len(rows), several):
            padded = [repeated(r, size) for r in rows[i : i + several]]
            found = self._gathered(np.stack(padded))
            for k in range(len(padded)):
                x, y = (
                    (found[0][k], found[1][k])
                    if self._plain
                    else jax.tree.map(lambda leaf, k=k: leaf[k], found)
                )
                yield Fed(Batch(x, y, weight, count), size, n, size)

    def _gathered(self, rows: np.ndarray) -> tuple[Any, Any]:
        x, y = self._train.x, self._train.y
        if self._plain:  # shorter
            return taken(x, rows), taken(y, rows)
        return gather_rows((x, y), rows)

    def _size(self, n: int) -> tuple[int, Any, Any]:
        size = bucket_of(self._buckets, n, exact=self._exact).size
        weight, count = (np.arange(size) < n).astype(np.float32), np.float32(n)
        if self._device is not None:
            weight, count = jax.device_put((weight, count), self._device)
        return self._of_size.setdefault(n, (size, weight, count))

    def _fed(self, batch: Batch, size: int, n: int) -> Fed:
        if self._dense:
            return Fed(batch, size, n, size)
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        return Fed(batch, size, n, shapes)


class DeviceFeed:
    """Lets programs gather batches on the device."""

    def __init__(self, job: Job, rows: DeviceRows):
        """`rows` are the training split on the device."""
        self._rows, self._buckets, self._exact = rows, job.buckets, job.programs.exact
        self._of_size: dict[int, Bucket] = {}  # of dense batches

    def num_bytes(self, rows: Rows) -> int:
        """Return 0: no batches are gathered on the host."""
        return 0

    def together(self, rows: Rows) -> Fed:
        """Return the rows of all steps."""
        lengths = [self._rows.lengths(r) for r in rows] if self._rows.sparse else []
        n, bucket = len(rows[0]), self._bucket(len(rows[0]), lengths)
        taken = self._rows.stacked(rows, bucket.size)
        batches = RowBatches(self._rows.batch_maker, bucket)
        return Fed(self._rows.arrays, bucket.size, n, bucket, batches, taken)

    def one(self, rows: np.ndarray) -> Fed:
        """Return the rows of a step."""
        return self.together([rows])

    def one_by_one(self, rows: Rows) -> Iterator[Fed]:
        """Yield the rows of each step."""
        fed = self.together(rows)
        assert fed.rows is not None
        for i in range(len(rows)):
            yield fed._replace(rows=fed.rows[i : i + 1])

    def _bucket(self, n: int, lengths: Sequence[list[np.ndarray]]) -> Bucket:
        if n in self._of_size:
            return self._of_size[n]
        bucket = bucket_of(self._buckets, n, lengths, exact=self._exact)
        if not lengths:
            self._of_size[n] = bucket
        return bucket


def feed_for(job: Job, device: Device | None) -> HostFeed | DeviceFeed:
    """Return the feed of a job's training split for a device."""
    if is_host(device) or not fits(job.train, device):
        return HostFeed(job, device)
    return DeviceFeed(job, rows_on(job, device))
