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
    # an example may occur twice in a batch that spans two epochs
    grown = map(_grown, last.capacities, needed(last.size))
    return Bucket(n if exact else last.size, tuple(grown))


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

    Any example would do: if the loss of the batch is finite, that of its padding is,
    too.
    """
    return int(np.argmin(sum(lengths)))


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

    Padding repeats the batch's own examples, since the loss of an empty one, as with
    x / |x|, may not be finite. Unused non-zeros have out-of-bounds indices, as in
    BCOO. `exact` pads only non-zeros, not the number of examples (for models in which
    padding would change the batch statistics).
    """
    entries = entries_of(split, rows)
    lengths = [[e.lengths for e in entries]]
    bucket = bucket_of(buckets, len(rows), lengths, exact=exact)
    return fill_bucket(split, rows, bucket, entries)


def fill_bucket(
    split: Split, rows: np.ndarray, bucket: Bucket, entries: Sequence["Entries"]
) -> Batch:
    """A batch in the shape of a bucket, from the entries of its sparse arrays."""
    n = len(rows)
    weight = (np.arange(bucket.size) < n).astype(np.float32)
    if entries and 0 < n < bucket.size:
        shortest, more = _shortest([e.lengths for e in entries]), bucket.size - n
        rows = np.append(rows, np.repeat(rows[shortest], more))
        entries = [e.repeating(shortest, more) for e in entries]
    if sp.issparse(split.y):  # sets of labels: the last of the sparse arrays
        *others, labels = entries
        weight[:n] = labels.lengths[:n] > 0
        share = (1.0 / np.maximum(labels.lengths, 1)).astype(np.float32)
        entries = [*others, labels._replace(data=np.repeat(share, labels.lengths))]
    leaves, structure = jax.tree.flatten((split.x, split.y))
    dense = [leaf for leaf in leaves if not sp.issparse(leaf)]
    found = iter(gather_rows(dense, repeated(rows, bucket.size)))
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
    """The rows, repeated cyclically up to `size` of them."""
    return rows if len(rows) == size else np.resize(rows, size)


def nonzeros_counter(split: Split) -> Callable[[Sequence[np.ndarray]], list[int]]:
    """Return a function: rows of each batch -> non-zeros in its inputs, 0 if dense."""
    matrices = sparse_leaves(split.x)
    if not matrices:
        return lambda rows: [0] * len(rows)
    return lambda rows: [sum(int(stored(m, r).sum()) for m in matrices) for r in rows]


def stored(matrix: sp.csr_array, rows: np.ndarray) -> np.ndarray:
    """[rows] the number of stored entries of each of these rows."""
    return matrix.indptr[rows + 1] - matrix.indptr[rows]


def nonzeros_per_example(split: Split) -> float:
    """The mean number of non-zeros per example, 0 for dense inputs."""
    stored = stored_per_row(split.x)
    return 0.0 if stored is None else float(stored.mean())


class Entries(NamedTuple):
    """The stored entries of some rows of a CSR matrix, row after row."""

    data: np.ndarray
    columns: np.ndarray
    lengths: np.ndarray  # [rows]

    def repeating(self, row: int, times: int) -> "Entries":
        """The entries, followed by those of one row `times` times."""
        start = int(self.lengths[:row].sum())
        of_row = slice(start, start + int(self.lengths[row]))
        return Entries(
            np.append(self.data, np.tile(self.data[of_row], times)),
            np.append(self.columns, np.tile(self.columns[of_row], times)),
            np.append(self.lengths, np.repeat(self.lengths[row], times)),
        )


def entries_of(split: Split, rows: np.ndarray) -> list[Entries]:
    """The stored entries of these rows, for each sparse array of x and then of y."""
    return [_entries(matrix, rows) for matrix in sparse_leaves((split.x, split.y))]


def _entries(matrix: sp.csr_array, rows: np.ndarray) -> Entries:
    start, lengths = matrix.indptr[rows], stored(matrix, rows)
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
    small step. jit accepts NumPy arrays directly.
    """
    empty = jnp.zeros(0, jnp.float32), jnp.zeros((0, 2), jnp.int32)
    return jax.tree.structure(BCOO(empty, shape=shape, indices_sorted=True))
