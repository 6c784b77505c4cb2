"""Batches of several workers in one shape, though their steps and sizes differ.

A program that runs on many devices at once takes inputs of one shape. Workers with
fewer steps, or smaller batches, are padded; what is padding has weight 0, and steps
beyond a worker's own are not run.
"""

from collections.abc import Sequence

import jax
import numpy as np

from hetjax.data.batching import (
    Batch,
    Bucket,
    bucket_of,
    count_stored,
    entries_of,
    filled,
    repeated,
)
from hetjax.data.dataset import Split

Rows = Sequence[np.ndarray]  # of the split, one array per step


def common_bucket(
    split: Split,
    rows: Sequence[Rows],
    buckets: tuple[Bucket, ...],
    *,
    exact: bool = False,
) -> Bucket:
    """The bucket that holds every batch of all workers.

    With `exact` all batches must have the same size, which is not padded (for models in
    which padding would change the batch statistics). Errors: ValueError otherwise.
    """
    sizes = {len(r) for of_worker in rows for r in of_worker}
    if exact and len(sizes) > 1:
        raise ValueError(
            f"batches of {', '.join(map(str, sorted(sizes)))} examples side by side "
            "would be padded, and padding would change the model's batch statistics: "
            "give all workers one batch size, or run them apart "
            '(placement="threads")'
        )
    every = [r for of_worker in rows for r in of_worker]
    nonzeros, labels = (
        max((count_stored(matrix, r) for r in every), default=0)
        for matrix in (split.x, split.y)
    )
    bucket = bucket_of(buckets, max(sizes), nonzeros, labels)
    return bucket._replace(size=max(sizes)) if exact else bucket


def make_uneven_batches(
    split: Split, rows: Sequence[Rows], most: int, bucket: Bucket
) -> Batch:
    """Batches [W, most, ...] of W workers with up to `most` steps, each with own rows.

    `bucket` is that of `common_bucket`.
    """
    if split.sparse:
        return _sparse(split, rows, most, bucket)
    sizes = {len(r) for of_worker in rows for r in of_worker}
    if sizes == {bucket.size} and all(len(of_worker) == most for of_worker in rows):
        return _full(split, rows, (len(rows), most, bucket.size))
    taken = np.zeros((len(rows), most, bucket.size), np.int64)
    weight = np.zeros(taken.shape, np.float32)
    count = np.ones(taken.shape[:2], np.float32)
    for k, of_worker in enumerate(rows):
        for i, r in enumerate(of_worker):
            taken[k, i] = repeated(r, bucket.size)
            weight[k, i, : len(r)] = 1.0
            count[k, i] = len(r)
    return Batch(split.x[taken], split.y[taken], weight, count)


def _full(split: Split, rows: Sequence[Rows], shape: tuple[int, int, int]) -> Batch:
    """Dense batches without any padding."""
    taken = np.concatenate([r for of_worker in rows for r in of_worker]).reshape(shape)
    weight = np.ones(shape, np.float32)
    count = np.full(shape[:2], shape[2], np.float32)
    return Batch(split.x[taken], split.y[taken], weight, count)


def _sparse(split: Split, rows: Sequence[Rows], most: int, bucket: Bucket) -> Batch:
    none = _batch(split, np.zeros(0, np.int64), bucket)
    none = none._replace(count=np.float32(1))
    each = [
        [_batch(split, r, bucket) for r in of_worker] + [none] * (most - len(of_worker))
        for of_worker in rows
    ]
    stacked = jax.tree.map(
        lambda *leaves: np.stack(leaves), *(b for row in each for b in row)
    )
    return jax.tree.map(lambda x: x.reshape(len(rows), most, *x.shape[1:]), stacked)


def _batch(split: Split, rows: np.ndarray, bucket: Bucket) -> Batch:
    return filled(
        split, rows, bucket, entries_of(split.x, rows), entries_of(split.y, rows)
    )
