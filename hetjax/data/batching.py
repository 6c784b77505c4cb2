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

from hetjax.data.columns import gathered, sparse_leaves, stored_per_row
from hetjax.data.dataset import Split

RATIO = 1.25  # of neighbouring bucket sizes, at most
SPREADS = 4.0  # a capacity is the expected count + this many standard deviations


class Batch(NamedTuple):
    """A batch for the device: B is its bucket's size, n <= B its true examples."""

    x: Any  # [B, ...], BCOO [B, F], or a tree of them
    y: Any  # [B, ...], BCOO [B, C] with 1/|labels| at each true label, or a tree
    weight: Any  # [B] float32: 1 for an example with a loss; 0 for padding, or no label
    count: Any  # [] float32: n, which every mean over the batch divides by


class Bucket(NamedTuple):
    """A shape of batches."""

    size: int  # [examples]
    capacities: tuple[int, ...] = ()  # [entries] of each sparse array of x, then of y


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
    counts = [np.diff(m.indptr) for m in sparse_leaves((split.x, split.y))]
    each = [_capacities(c, sizes) for c in counts]
    buckets = [
        Bucket(int(size), tuple(int(c[i]) for c in each))
        for i, size in enumerate(sizes)
    ]
    most = [_most(c, batch_size) for c in counts]
    while any(c < m for c, m in zip(buckets[-1].capacities, most, strict=True)):
        grown = (
            min(int(np.ceil(c * RATIO)), m)
            for c, m in zip(buckets[-1].capacities, most, strict=True)
        )
        buckets.append(Bucket(batch_size, tuple(grown)))
    return tuple(buckets)


def _most(counts: np.ndarray, size: int) -> int:
    """The total count of the fullest `size` rows."""
    return int(np.sort(counts)[::-1][:size].sum()) or 1


def _capacities(counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    expected = counts.mean() * sizes + SPREADS * counts.std() * np.sqrt(sizes)
    rounded = np.maximum(np.ceil(expected / 16) * 16, 1)  # sparse, even if all empty
    return np.minimum(rounded, [_most(counts, int(b)) for b in sizes]).astype(int)


def bucket_of(
    buckets: tuple[Bucket, ...], n: int, entries: Sequence[int] = ()
) -> Bucket:
    """The first bucket that holds n examples with so many entries of each array."""
    for b in buckets:
        enough = all(c >= e for c, e in zip(b.capacities, entries, strict=False))
        if b.size >= n and enough:
            return b
    last = buckets[-1]
    if n > last.size:
        raise ValueError(
            f"a batch of {n} examples is larger than the largest bucket, of "
            f"{last.size}: give a larger batch_size"
        )
    # An example may occur twice, if a batch ends one pass and begins the next.
    grown = (_grown(c, e) for c, e in zip(last.capacities, entries, strict=True))
    return Bucket(last.size, tuple(grown))


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
    entries = entries_of(split, rows)
    bucket = bucket_of(buckets, len(rows), [len(e.data) for e in entries])
    if exact:
        bucket = bucket._replace(size=len(rows))
    return filled(split, rows, bucket, entries)


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
        bucket = size if exact else bucket_of(buckets, size).size
        weight = np.zeros((len(rows), bucket), np.float32)
        weight[:, :size] = 1.0
        index = np.stack([repeated(r, bucket) for r in rows])
        count = np.full(len(rows), size, np.float32)
        x, y = gathered((split.x, split.y), index)
        return Batch(x, y, weight, count)
    entries = [entries_of(split, r) for r in rows]
    needed = [max(len(e.data) for e in es) for es in zip(*entries, strict=True)]
    bucket = bucket_of(buckets, size, needed)
    if exact:
        bucket = bucket._replace(size=size)
    batches = [filled(split, r, bucket, e) for r, e in zip(rows, entries, strict=True)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)


def filled(
    split: Split, rows: np.ndarray, bucket: Bucket, entries: Sequence["Entries"]
) -> Batch:
    """A batch in the shape of a bucket, from the entries of its sparse arrays."""
    n = len(rows)
    weight = (np.arange(bucket.size) < n).astype(np.float32)
    if sp.issparse(split.y):  # sets of labels: the last of the sparse arrays
        *others, labels = entries
        weight[:n] = labels.lengths > 0
        share = (1.0 / np.maximum(labels.lengths, 1)).astype(np.float32)
        entries = [*others, labels._replace(data=np.repeat(share, labels.lengths))]
    leaves, structure = jax.tree.flatten((split.x, split.y))
    dense = [leaf for leaf in leaves if not sp.issparse(leaf)]
    found = iter(gathered(dense, repeated(rows, bucket.size)))
    each = zip(entries, bucket.capacities, strict=True)
    arrays = [
        _bcoo(*next(each), (bucket.size, leaf.shape[1]))
        if sp.issparse(leaf)
        else next(found)
        for leaf in leaves
    ]
    x, y = jax.tree.unflatten(structure, arrays)
    return Batch(x, y, weight, np.float32(n))


def repeated(rows: np.ndarray, size: int) -> np.ndarray:
    """The rows, repeated from the first on if there are fewer than `size`."""
    return rows if len(rows) == size else np.resize(rows, size)


def nonzeros_of(split: Split, rows: Sequence[np.ndarray]) -> list[int]:
    """The non-zeros in the inputs of each batch of rows, for costs; 0 if dense."""
    matrices = sparse_leaves(split.x)
    return [sum(count_stored(m, r) for m in matrices) for r in rows]


def count_stored(matrix: sp.csr_array, rows: np.ndarray) -> int:
    """The number of stored entries of these rows."""
    return int((matrix.indptr[rows + 1] - matrix.indptr[rows]).sum())


def nonzeros_per_example(split: Split) -> float:
    """The mean number of non-zeros per example, 0 for dense inputs."""
    stored = stored_per_row(split.x)
    return 0.0 if stored is None else float(stored.mean())


class Entries(NamedTuple):
    """The stored entries of some rows of a CSR matrix, row after row."""

    data: np.ndarray
    columns: np.ndarray
    lengths: np.ndarray  # [rows]


def entries_of(split: Split, rows: np.ndarray) -> list[Entries]:
    """The stored entries of these rows, of each sparse array of x and then of y."""
    return [_entries(matrix, rows) for matrix in sparse_leaves((split.x, split.y))]


def _entries(matrix: sp.csr_array, rows: np.ndarray) -> Entries:
    start = matrix.indptr[rows]
    lengths = matrix.indptr[rows + 1] - start
    # position of every entry: its row's start, plus its place in the row
    first = np.cumsum(lengths) - lengths
    place = np.arange(lengths.sum()) + np.repeat(start - first, lengths)
    return Entries(matrix.data[place], matrix.indices[place], lengths)


def _bcoo(entries: Entries, capacity: int, shape: tuple[int, int]) -> BCOO:
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
