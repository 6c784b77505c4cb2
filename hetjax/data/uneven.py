"""Batches of several workers with different steps and sizes, padded to one shape.

A program that runs on many devices at once needs inputs of one shape. Workers with
fewer steps or smaller batches are padded; padding has weight 0, and steps beyond a
worker's own are not run.
"""

from collections.abc import Sequence

import jax
import numpy as np

from hetjax.data.batching import (
    Batch,
    Bucket,
    bucket_of,
    fill_bucket,
    lengths_of,
    repeated,
)
from hetjax.data.columns import gather_rows
from hetjax.data.dataset import Split

Rows = Sequence[np.ndarray]  # of the split, one array per step


def common_bucket(
    split: Split,
    rows: Sequence[Rows],
    buckets: tuple[Bucket, ...],
    *,
    exact: bool = False,
) -> Bucket:
    """Return the bucket that holds every batch of all workers.

    With `exact`, all batches must have the same size, which is not padded (for models
    in which padding would change the batch statistics); else a ValueError is raised.
    """
    sizes = {len(r) for of_worker in rows for r in of_worker}
    if exact and len(sizes) > 1:
        raise ValueError(
            f"batches of {', '.join(map(str, sorted(sizes)))} examples in one program "
            "would be padded, and padding would change the model's batch statistics: "
            'use one batch size for all workers, or placement="threads"'
        )
    lengths = []
    if split.sparse:
        columns = split.x, split.y
        lengths = [lengths_of(columns, r) for of_worker in rows for r in of_worker]
    return bucket_of(buckets, max(sizes, default=1), lengths, exact=exact)


def make_uneven_batches(
    split: Split,
    rows: Sequence[Rows],
    max_steps: int,
    bucket: Bucket,
    places: tuple[int, ...] | None = None,
) -> Batch:
    """Return batches [*places, max_steps, ...] with the `rows` of every worker's steps.

    `bucket` is that of `common_bucket`. `places` is the shape in which the workers are
    arranged; by default, they are in a row.
    """
    places = (len(rows),) if places is None else places
    if split.sparse:
        return _sparse(split, rows, (*places, max_steps), bucket)
    taken, count = _padded_rows(rows, max_steps, bucket.size)
    weight = (np.arange(bucket.size) < count[..., None]).astype(np.float32)
    count = np.maximum(count, 1).astype(np.float32)
    shape = *places, max_steps, bucket.size
    x, y = gather_rows((split.x, split.y), taken.reshape(shape))
    return Batch(x, y, weight.reshape(shape), count.reshape(shape[:-1]))


def _padded_rows(
    rows: Sequence[Rows], max_steps: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows [workers, steps, size], and the true number in each of the batches.

    Batches are padded with their own rows, missing steps with the row 0.
    """
    shape = len(rows), max_steps, size
    every = [r for of_worker in rows for r in of_worker]
    if len(every) == len(rows) * max_steps and all(len(r) == size for r in every):
        taken = np.concatenate(every) if every else np.zeros(0, np.int64)
        return taken.reshape(shape), np.full(shape[:2], size)
    taken, count = np.zeros(shape, np.int64), np.zeros(shape[:2], np.int64)
    for k, of_worker in enumerate(rows):
        for i, r in enumerate(of_worker):
            taken[k, i], count[k, i] = repeated(r, size), len(r)
    return taken, count


def make_batches(
    split: Split,
    rows: Rows,
    buckets: tuple[Bucket, ...],
    *,
    exact: bool = False,
) -> Batch:
    """K batches of the same number of rows, [K, ...], in the bucket of the largest."""
    bucket = common_bucket(split, [rows], buckets, exact=exact)
    return make_uneven_batches(split, [rows], len(rows), bucket, places=())


def _sparse(
    split: Split, rows: Sequence[Rows], shape: tuple[int, ...], bucket: Bucket
) -> Batch:
    def batch(r: np.ndarray) -> Batch:
        return fill_bucket(split, r, bucket)

    none = batch(np.zeros(0, np.int64))._replace(count=np.float32(1))
    each = [
        some
        for of_worker in rows
        for some in (*map(batch, of_worker), *[none] * (shape[-1] - len(of_worker)))
    ]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), stacked)
