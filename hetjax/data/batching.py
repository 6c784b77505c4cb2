"""Batches in a few fixed shapes: buckets, padding, masks, BCOO.

A batch of n examples is padded up to a bucket. Batch sizes of neighboring buckets
differ by a ratio of at most 1.25, and each bucket has a capacity of non-zeros (and of
labels). A batch that overflows its bucket's capacity takes the next one. Padding has
weight 0.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.experimental.sparse import BCOO

from hetjax.data.columns import gather_rows, sparse_leaves, stored_per_row
from hetjax.data.dataset import Split

RATIO = 1.25  # of neighboring bucket sizes, at most
SPREADS = 4.0  # [standard deviations] that a capacity is above the expected count


class Batch(NamedTuple):
    """A batch for the device: n true examples, padded to its bucket's size B."""

    x: Any  # [B, ...], BCOO [B, F], or a tree of them
    y: Any  # [B, ...], BCOO [B, C] with 1/|labels| at each true label, or a tree
    weight: Any  # [B] float32: 1 for an example with a loss; 0 for padding or no label
    count: Any  # [] float32: n, which every mean over the batch divides by


class Bucket(NamedTuple):
    """The shape of a batch."""

    size: int  # [examples]
    capacities: tuple[int, ...] = ()  # [entries] of each sparse array of x, then of y


def bucket_sizes(batch_size: int) -> list[int]:
    """The sizes b, b/1.25, ..., 1 for a batch size b, rounded up, in rising order."""
    sizes = [batch_size]
    while sizes[-1] > 1:
        # rounding up keeps the ratio below RATIO, except among the smallest integers
        sizes.append(min(int(np.ceil(sizes[-1] / RATIO)), sizes[-1] - 1))
    return sizes[::-1]


def make_buckets(split: Split, batch_size: int) -> tuple[Bucket, ...]:
    """The buckets for batches of up to `batch_size` examples of a split.

    After the bucket of size `batch_size` come others of this size, with capacities that
    grow up to the need of the `batch_size` fullest examples.
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


def lengths_of(column: Any, rows: np.ndarray) -> list[np.ndarray]:
    """[rows] the number of stored entries of these rows, for each sparse array."""
    return [m.indptr[rows + 1] - m.indptr[rows] for m in sparse_leaves(column)]


def bucket_of(
    buckets: tuple[Bucket, ...],
    n: int,
    lengths: Sequence[Sequence[np.ndarray]] = (),
    *,
    exact: bool = False,
) -> Bucket:
    """The first bucket that holds each of some batches of at most n examples.

    `lengths`: for each batch and each of its sparse arrays, the entries of every row.
    With `exact`, every batch has n examples, and so has the bucket.
    """
    needs = [Need.of(each) for each in lengths if each]

    def needed(size: int) -> list[int]:
        each = [need.entries(n if exact else size) for need in needs]
        return [max(of_array) for of_array in zip(*each, strict=True)]

    for b in buckets:
        if b.size < n:
            continue
        enough = zip(b.capacities, needed(b.size), strict=False)
        if all(c >= e for c, e in enough):
            return b._replace(size=n) if exact else b
    last = buckets[-1]
    if n > last.size:
        raise ValueError(
            f"a batch of {n} examples is larger than the largest bucket, of "
            f"{last.size}: pass a larger batch_size"
        )
    capacities = list(last.capacities)
    for k, entries in enumerate(needed(last.size)):
        while capacities[k] < entries:  # an example twice, in a batch of two epochs
            capacities[k] = int(np.ceil(capacities[k] * RATIO))
    return Bucket(n if exact else last.size, tuple(capacities))


class Need(NamedTuple):
    """The entries that a batch of n examples needs, with or without padding."""

    n: int
    true: list[int]  # entries of each sparse array, in all n examples
    repeated: list[int]  # entries of each sparse array, in the example that pads

    @classmethod
    def of(cls, lengths: Sequence[np.ndarray]) -> "Need":
        """`lengths`: for each sparse array, the entries of every row."""
        shortest = _shortest(lengths)
        return cls(
            len(lengths[0]) if lengths else 0,
            [int(each.sum()) for each in lengths],
            [int(each[shortest]) for each in lengths],
        )

    def entries(self, size: int) -> list[int]:
        """The entries of each array after padding to `size` examples."""
        pairs = zip(self.true, self.repeated, strict=True)
        return [e + (size - self.n) * r for e, r in pairs]


def _shortest(lengths: Sequence[np.ndarray]) -> int:
    """The index of the example that padding repeats: the one with the fewest entries.

    Any example would do: if the loss of the batch is finite, so is that of its padding.
    """
    return int(np.argmin(sum(lengths)))


def make_batch(
    split: Split,
    rows: np.ndarray,
    buckets: tuple[Bucket, ...],
    *,
    exact: bool = False,
) -> Batch:
    """The batch of these rows of a split, padded up to its bucket.

    Padding repeats the batch's own examples, since the loss of an empty one, as with
    x / |x|, may not be finite. Unused non-zeros have out-of-bounds indices, as in
    BCOO. `exact` pads only non-zeros, not the number of examples (for models in which
    padding would change the batch statistics).
    """
    lengths = [lengths_of((split.x, split.y), rows)]
    return fill_bucket(split, rows, bucket_of(buckets, len(rows), lengths, exact=exact))


def fill_bucket(split: Split, rows: np.ndarray, bucket: Bucket) -> Batch:
    """The batch of these rows of a split, in the shape of a bucket."""
    n = len(rows)
    weight = (np.arange(bucket.size) < n).astype(np.float32)
    lengths = lengths_of((split.x, split.y), rows)
    if lengths and 0 < n < bucket.size:
        padding = np.full(bucket.size - n, rows[_shortest(lengths)])
        rows = np.append(rows, padding)
    if sp.issparse(split.y):  # sets of labels: the last of the sparse arrays
        weight[:n] = lengths[-1] > 0
    leaves, structure = jax.tree.flatten((split.x, split.y))
    dense = [leaf for leaf in leaves if not sp.issparse(leaf)]
    found = iter(gather_rows(dense, repeated(rows, bucket.size)))
    capacities = iter(bucket.capacities)
    arrays = [
        _bcoo(leaf, rows, next(capacities), bucket.size, shares=leaf is split.y)
        if sp.issparse(leaf)
        else next(found)
        for leaf in leaves
    ]
    x, y = jax.tree.unflatten(structure, arrays)
    return Batch(x, y, weight, np.float32(n))


def repeated(rows: np.ndarray, size: int) -> np.ndarray:
    """The rows, repeated cyclically up to `size` of them."""
    return rows if len(rows) == size else np.resize(rows, size)


def nonzeros_counter(split: Split) -> Callable[[Sequence[np.ndarray]], list[int]]:
    """Return a function: rows of each batch -> non-zeros in its inputs, 0 if dense."""
    if not sparse_leaves(split.x):
        return lambda rows: [0] * len(rows)
    return lambda rows: [
        sum(int(n.sum()) for n in lengths_of(split.x, r)) for r in rows
    ]


def nonzeros_per_example(split: Split) -> float:
    """The mean number of non-zeros per example, 0 for dense inputs."""
    stored = stored_per_row(split.x)
    return 0.0 if stored is None else float(stored.mean())


def _bcoo(
    matrix: Any, rows: np.ndarray, capacity: int, size: int, *, shares: bool
) -> BCOO:
    """The rows of a CSR matrix, followed by entries outside of the shape.

    With `shares`, each entry is one over the number of its row's entries.
    """
    (lengths,) = lengths_of(matrix, rows)
    # position of every entry: its row's start, plus its place in the row
    first = np.cumsum(lengths) - lengths
    n = int(lengths.sum())
    place = np.arange(n) + np.repeat(matrix.indptr[rows] - first, lengths)
    data = np.zeros(capacity, np.float32)
    if shares:
        share = (1.0 / np.maximum(lengths, 1)).astype(np.float32)
        data[:n] = np.repeat(share, lengths)
    else:
        data[:n] = matrix.data[place]
    shape = size, matrix.shape[1]
    indices = np.empty((capacity, 2), np.int32)
    indices[n:] = shape
    indices[:n, 0] = np.repeat(np.arange(len(rows)), lengths)
    indices[:n, 1] = matrix.indices[place]
    return jax.tree.unflatten(_structure(shape), (data, indices))


@lru_cache
def _structure(shape: tuple[int, int]) -> Any:
    """The tree structure of a BCOO of this shape, for any capacity.

    BCOO's constructor would convert and check both arrays, which takes longer than a
    small step. jit accepts NumPy arrays directly.
    """
    empty = jnp.zeros(0, jnp.float32), jnp.zeros((0, 2), jnp.int32)
    return jax.tree.structure(BCOO(empty, shape=shape, indices_sorted=True))
