"""Batches of few shapes from splits of any size: buckets, padding, masks, BCOO.

A batch of n examples is padded up to a bucket. There are few buckets, whose batch sizes
are a ratio of at most 1.25 apart, each with a capacity of non-zeros (and of labels). A
batch that overflows its bucket's capacity takes the next bucket. Padding has weight 0.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.experimental.sparse import BCOO

from hetjax.data.dataset import Split

RATIO = 1.25  # of neighbouring bucket sizes, at most
SPREADS = 4.0  # a capacity is the expected count + this many standard deviations


class Batch(NamedTuple):
    """A batch for the device: B is its bucket's size, n <= B its true examples."""

    x: Any  # [B, ...] float32, or BCOO [B, F]
    y: Any  # [B] int32, or BCOO [B, C] with 1/|labels| at each true label
    weight: Any  # [B] float32: 1 for an example with a loss; 0 for padding, or no label
    count: Any  # [] float32: n, which every mean over the batch divides by


class Bucket(NamedTuple):
    """A shape of batches."""

    size: int  # [examples]
    nonzeros: int  # capacity of the inputs, 0 if they are dense
    labels: int  # capacity of the labels, 0 if they are class ids


def bucket_sizes(batch_size: int) -> list[int]:
    """The sizes b, b/1.25, ..., 1 for a batch size b: rounded up, in rising order."""
    sizes = [batch_size]
    while sizes[-1] > 1:
        # rounding up keeps the ratio below RATIO, except among the smallest integers
        sizes.append(min(int(np.ceil(sizes[-1] / RATIO)), sizes[-1] - 1))
    return sizes[::-1]


def make_buckets(split: Split, batch_size: int) -> tuple[Bucket, ...]:
    """The buckets for batches of up to `batch_size` examples of a split.

    The bucket of size `batch_size` is followed by others of this size with growing
    capacities, up to what the `batch_size` fullest examples need.
    """
    sizes = np.array(bucket_sizes(batch_size))
    nonzeros, labels = _counts(split.x), _counts(split.y)
    capacity = [_capacities(counts, sizes) for counts in (nonzeros, labels)]
    buckets = [Bucket(*map(int, row)) for row in zip(sizes, *capacity, strict=True)]
    most = [_most(counts, batch_size) for counts in (nonzeros, labels)]
    while any(c < m for c, m in zip(buckets[-1][1:], most, strict=True)):
        grown = [
            min(int(np.ceil(c * RATIO)), m)
            for c, m in zip(buckets[-1][1:], most, strict=True)
        ]
        buckets.append(Bucket(batch_size, *grown))
    return tuple(buckets)


def _counts(matrix: Any) -> np.ndarray | None:
    return np.diff(matrix.indptr) if sp.issparse(matrix) else None


def _most(counts: np.ndarray | None, size: int) -> int:
    """The total count of the fullest `size` rows."""
    if counts is None:
        return 0
    return int(np.sort(counts)[::-1][:size].sum()) or 1


def _capacities(counts: np.ndarray | None, sizes: np.ndarray) -> np.ndarray:
    if counts is None:
        return np.zeros_like(sizes)
    expected = counts.mean() * sizes + SPREADS * counts.std() * np.sqrt(sizes)
    rounded = np.maximum(np.ceil(expected / 16) * 16, 1)  # sparse, even if all empty
    return np.minimum(rounded, [_most(counts, int(b)) for b in sizes]).astype(int)


def bucket_of(
    buckets: tuple[Bucket, ...], n: int, nonzeros: int, labels: int
) -> Bucket:
    """The first bucket that holds such a batch."""
    for b in buckets:
        if b.size >= n and b.nonzeros >= nonzeros and b.labels >= labels:
            return b
    last = buckets[-1]
    if n > last.size:
        raise ValueError(
            f"a batch of {n} examples is larger than the largest bucket, of "
            f"{last.size}: give a larger batch_size"
        )
    # An example may occur twice, if a batch ends one pass and begins the next.
    grown = _grown(last.nonzeros, nonzeros), _grown(last.labels, labels)
    return Bucket(last.size, *grown)


def _grown(capacity: int, needed: int) -> int:
    """The capacity, grown by `RATIO` until it suffices."""
    while capacity < needed:
        capacity = int(np.ceil(capacity * RATIO))
    return capacity


def make_batch(
    split: Split,
    rows: np.ndarray,
    buckets: tuple[Bucket, ...],
    *,
    exact: bool = False,
) -> Batch:
    """The batch of these rows of a split, padded up to its bucket.

    Dense padding repeats the batch's own examples; sparse padding has out-of-bounds
    indices, as in BCOO. `exact` pads only non-zeros, not the number of examples (for
    models in which padding would change the batch statistics).
    """
    n = len(rows)
    entries, targets = entries_of(split.x, rows), entries_of(split.y, rows)
    bucket = bucket_of(buckets, n, length_of(entries), length_of(targets))
    if exact:
        bucket = bucket._replace(size=n)
    return filled(split, rows, bucket, entries, targets)


def make_batches(
    split: Split,
    rows: Sequence[np.ndarray],
    buckets: tuple[Bucket, ...],
    *,
    exact: bool = False,
) -> Batch:
    """Batches of equally many rows each, [K, ...], all in the bucket of the largest."""
    size = len(rows[0])
    if not split.sparse:
        bucket = bucket_of(buckets, size, 0, 0).size if not exact else size
        weight = np.zeros((len(rows), bucket), np.float32)
        weight[:, :size] = 1.0
        taken = np.stack([repeated(r, bucket) for r in rows])
        count = np.full(len(rows), size, np.float32)
        return Batch(split.x[taken], split.y[taken], weight, count)
    found = [(entries_of(split.x, r), entries_of(split.y, r)) for r in rows]
    nonzeros, labels = (
        max(length_of(e) for e in es) for es in zip(*found, strict=True)
    )
    bucket = bucket_of(buckets, size, nonzeros, labels)
    if exact:
        bucket = bucket._replace(size=size)
    batches = [filled(split, r, bucket, *e) for r, e in zip(rows, found, strict=True)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)


def filled(
    split: Split,
    rows: np.ndarray,
    bucket: Bucket,
    entries: "Entries | None",
    targets: "Entries | None",
) -> Batch:
    """A batch in the shape of a bucket, from the entries of its sparse parts."""
    n = len(rows)
    weight = (np.arange(bucket.size) < n).astype(np.float32)
    if targets is None:
        y = split.y[repeated(rows, bucket.size)]
    else:
        weight[:n] = targets.lengths > 0
        share = (1.0 / np.maximum(targets.lengths, 1)).astype(np.float32)
        even = targets._replace(data=np.repeat(share, targets.lengths))
        y = _bcoo(even, (bucket.size, split.y.shape[1]), bucket.labels)
    if entries is None:
        x = split.x[repeated(rows, bucket.size)]
    else:
        x = _bcoo(entries, (bucket.size, split.x.shape[1]), bucket.nonzeros)
    return Batch(x, y, weight, np.float32(n))


def repeated(rows: np.ndarray, size: int) -> np.ndarray:
    """The rows, repeated from the first on if there are fewer than `size`."""
    return rows if len(rows) == size else np.resize(rows, size)


def length_of(entries: "Entries | None") -> int:
    """The number of entries, 0 of a dense matrix."""
    return 0 if entries is None else len(entries.data)


def nonzeros_of(split: Split, rows: Sequence[np.ndarray]) -> list[int]:
    """The non-zeros in the inputs of each batch of rows, for costs; 0 if dense."""
    if not sp.issparse(split.x):
        return [0] * len(rows)
    return [count_stored(split.x, r) for r in rows]


def count_stored(matrix: Any, rows: np.ndarray) -> int:
    """The number of stored entries of these rows; 0 if the matrix is dense."""
    if not sp.issparse(matrix):
        return 0
    return int((matrix.indptr[rows + 1] - matrix.indptr[rows]).sum())


def nonzeros_per_example(split: Split) -> float:
    """The mean number of non-zeros per example, 0 for dense inputs."""
    return split.x.nnz / split.x.shape[0] if sp.issparse(split.x) else 0.0


class Entries(NamedTuple):
    """The stored entries of some rows of a CSR matrix, row after row."""

    data: np.ndarray
    columns: np.ndarray
    lengths: np.ndarray  # [rows]


def entries_of(matrix: Any, rows: np.ndarray) -> Entries | None:
    """The stored entries of these rows; None if the matrix is dense."""
    if not sp.issparse(matrix):
        return None
    start = matrix.indptr[rows]
    lengths = matrix.indptr[rows + 1] - start
    # position of every entry: its row's start, plus its place in the row
    first = np.cumsum(lengths) - lengths
    place = np.arange(lengths.sum()) + np.repeat(start - first, lengths)
    return Entries(matrix.data[place], matrix.indices[place], lengths)


def _bcoo(entries: Entries, shape: tuple[int, int], capacity: int) -> BCOO:
    n = len(entries.data)
    data = np.zeros(capacity, np.float32)
    data[:n] = entries.data
    indices = np.empty((capacity, 2), np.int32)
    indices[n:] = shape
    indices[:n, 0] = np.repeat(np.arange(len(entries.lengths)), entries.lengths)
    indices[:n, 1] = entries.columns
    return jax.tree.unflatten(_structure(shape), (data, indices))


@lru_cache
def _structure(shape: tuple[int, int]) -> Any:
    """The tree structure of a BCOO of this shape, for any capacity.

    BCOO's constructor would convert and check both arrays, which takes longer than a
    small step; jit accepts NumPy arrays as they are.
    """
    empty = jnp.zeros(0, jnp.float32), jnp.zeros((0, 2), jnp.int32)
    return jax.tree.structure(BCOO(empty, shape=shape, indices_sorted=True))
