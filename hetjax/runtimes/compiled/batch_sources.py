"""The batches of a compiled run: gathered on the device, or sent with each launch.

Data that fit live on the device, and a program receives only the row numbers of its
steps. Otherwise the host gathers the batches and sends them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.data.batching import Batch, Bucket, fill_bucket
from hetjax.data.columns import gather_rows, row_bytes
from hetjax.data.dataset import Split
from hetjax.data.device_rows import SplitRows
from hetjax.runtimes.compiled.stacks import tree_row

MAX_SENT_BYTES = 2**26  # of batches that are sent with one launch, at most


class BucketSteps(NamedTuple):
    """The steps of a stretch that share a bucket."""

    bucket: Bucket
    places: np.ndarray  # indices among all steps
    rows: list[np.ndarray]  # of each


class SentBatches(NamedTuple):
    """Selects batches inside a program from those sent with it."""

    def batch(self, arrays: Any, rows: jax.Array, n: Any, bucket: Bucket) -> Batch:
        """Return the batch of a step."""
        del n
        return tree_row(arrays[bucket.size], rows[0])


class HostRows(SplitRows):
    """A split on the host, which gathers batches and sends them with each launch."""

    batch_maker = SentBatches()
    sends = True

    def __init__(self, split: Split, batch_size: int):
        """`batch_size` is the largest."""
        super().__init__(split)
        self._split = split
        stored = sum(8 * leaf.nnz / leaf.shape[0] for leaf in self.sparse)
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
        if self.sparse:
            each = [fill_bucket(split, r, bucket) for r in own]
            return jax.tree.map(lambda *leaves: np.stack(leaves), *each)
        count = np.array([len(r) for r in own], np.float32)
        weight = (np.arange(bucket.size) < count[:, None]).astype(np.float32)
        x, y = gather_rows((split.x, split.y), rows)
        return Batch(x, y, weight, count)
