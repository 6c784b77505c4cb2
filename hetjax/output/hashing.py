"""Locality-sensitive hashing for SLIDE: SimHash and DWTA codes, and hash tables.

Vectors with a large inner product tend to fall into the same bucket. The content of a
bucket is a slice of the labels sorted by their codes, so that a table is two integer
arrays. Source: SLIDE; docs/algorithms H.
"""

import math
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from hetjax.output.softmax import over_chunks

Hash = Literal["simhash", "dwta"]
HASHES = get_args(Hash)
_BIN = 8  # coordinates of which DWTA takes the largest: 3 bits of a code
_BIN_BITS = 3
_PROBES = 100  # maximum number of bins tried in place of an empty one
_ROWS = 4096  # rows of W hashed at a time
_MIX = 2654435769  # 2**32 / the golden ratio: spreads codes over fewer buckets


class Hashing(NamedTuple):
    """A family of hash functions: L tables, each addressed by K codes of a vector."""

    hash: Hash
    codes: int  # K
    tables: int  # L
    range_bits: int  # at most 2**range_bits buckets per table

    @property
    def bits(self) -> int:
        """log2 of the number of buckets of a table."""
        return min(self.range_bits, self._code_bits)

    @property
    def _code_bits(self) -> int:
        return self.codes * (_BIN_BITS if self.hash == "dwta" else 1)

    def buckets(self, x: jax.Array, key: jax.Array) -> jax.Array:
        """Return [L, n] int32, the bucket of each vector x [n, H] in each table.

        Equal keys yield equal hash functions.
        """
        hashed = _dwta if self.hash == "dwta" else _simhash
        codes = hashed(x.T, self.codes * self.tables, key).astype(jnp.uint32)
        codes = codes.reshape(self.tables, self.codes, len(x))
        width = self._code_bits // self.codes
        fits = self._code_bits <= self.range_bits
        bucket = jnp.zeros((self.tables, len(x)), jnp.uint32)
        for k in range(self.codes):
            if fits:
                bucket |= codes[:, k] << (k * width)
            else:
                bucket = (bucket ^ codes[:, k]) * jnp.uint32(_MIX)
                bucket ^= bucket >> 15
        return (bucket if fits else bucket >> (32 - self.bits)).astype(jnp.int32)


# Both take the vectors as columns, x [H, n], so that inner loops are long.


def _simhash(x: jax.Array, num: int, key: jax.Array) -> jax.Array:
    """Return [num, n], signs of random projections on a third of the coordinates."""
    dim = len(x)
    ranks, signs = (jax.random.uniform(k, (num, dim)) for k in jax.random.split(key))
    chosen = jnp.argsort(jnp.argsort(ranks, axis=1), axis=1) < max(1, dim // 3)
    directions = jnp.where(chosen, jnp.where(signs < 0.5, -1.0, 1.0), 0.0)
    return (directions.astype(x.dtype) @ x > 0).astype(jnp.int32)


def _dwta(x: jax.Array, num: int, key: jax.Array) -> jax.Array:
    """Return [num, n] positions of the largest value in bins of permuted coordinates.

    An empty bin (all zeros) takes the code of another bin, chosen by double hashing
    (densified winner takes all).
    """
    dim = len(x)
    size = min(_BIN, dim)
    per_permutation = dim // size
    keys = jax.random.split(key, 2)
    order = jnp.argsort(
        jax.random.uniform(keys[0], (math.ceil(num / per_permutation), dim)), axis=1
    )
    bins = order[:, : per_permutation * size].reshape(-1, size)[:num]

    def coded(coordinates: jax.Array) -> tuple[jax.Array, jax.Array]:
        # row by row: on a CPU many times faster than x[coordinates] and an argmax
        largest = x[coordinates[0]]
        code, empty = jnp.zeros(largest.shape, jnp.int32), largest == 0
        for place in range(1, size):
            values = x[coordinates[place]]
            code = jnp.where(values > largest, place, code)
            largest, empty = jnp.maximum(values, largest), empty & (values == 0)
        return code, empty

    codes, empty = jax.lax.map(coded, bins)
    return _densified(codes, empty, keys[1])


def _densified(codes: jax.Array, empty: jax.Array, key: jax.Array) -> jax.Array:
    """Return the codes [num, n], with those of other bins where a bin is empty."""
    num = len(codes)
    # strides coprime to the number of bins, so that no bin is tried twice
    coprime = jnp.array([s for s in range(1, num + 1) if math.gcd(s, num) == 1])
    strides = jax.random.choice(key, coprime, (num,))
    bins = jnp.arange(num)

    def more(state: tuple) -> jax.Array:
        attempt, _, missing = state
        return (attempt <= _PROBES) & jnp.any(missing)

    def probe(state: tuple) -> tuple:
        attempt, codes_now, missing = state
        donor = (bins + attempt * strides) % num
        taken = missing & ~empty[donor]
        codes_now = jnp.where(taken, codes[donor], codes_now)
        return attempt + 1, codes_now, missing & ~taken

    # a vector of zeros has no other bin: without this, it would cost all probes
    missing = empty & ~empty.all(0)[None]
    return jax.lax.while_loop(more, probe, (1, codes, missing))[1]


def evenly(place: jax.Array, total: jax.Array, most: jax.Array | int) -> jax.Array:
    """Return the index of the place-th of `most` items taken evenly from `total` items.

    This is floor(place total / most), computed in parts, as place * total could
    overflow (most**2 must not); `place` itself if there are at most `most` items.
    """
    most = jnp.maximum(most, 1)
    spread = place * (total // most) + place * (total % most) // most
    return jnp.where(total > most, spread, place)


class HashTables(NamedTuple):
    """L hash tables of the rows of W, sorted by bucket."""

    labels: jax.Array  # [L, C] int32: labels in the order of their buckets
    starts: jax.Array  # [L, buckets + 1] int32: the start of each bucket in `labels`

    @staticmethod
    def build(w: jax.Array, hashing: Hashing, key: jax.Array) -> "HashTables":
        """Return the tables of the rows of W [C, H]."""
        num = len(w)

        def hashed(start: jax.Array, size: int, codes: jax.Array) -> jax.Array:
            rows = jax.lax.dynamic_slice_in_dim(w, start, size)
            buckets = hashing.buckets(rows, key)
            return jax.lax.dynamic_update_slice_in_dim(codes, buckets, start, 1)

        codes = jnp.zeros((hashing.tables, num), jnp.int32)
        codes = over_chunks(num, _ROWS, hashed, codes)
        # one table after another: sorting all at once would need more memory
        return HashTables(
            *jax.lax.map(lambda buckets: _by_bucket(buckets, hashing.bits), codes)
        )

    def lookup(
        self, buckets: jax.Array, bucket_size: int, most: int
    ) -> tuple[jax.Array, jax.Array]:
        """Return (labels [B, most], count [B]) of one bucket [L, B] of each table.

        Only the last `bucket_size` labels of a bucket count (a full bucket drops the
        oldest). If there are more than `most` in total, they are taken evenly from all
        tables. Entries beyond the count are arbitrary; labels may occur repeatedly.
        """
        num, buckets = len(buckets), buckets.T
        table = jnp.arange(num)[None]
        stops = self.starts[table, buckets + 1]
        sizes = jnp.minimum(stops - self.starts[table, buckets], bucket_size)
        ends = jnp.cumsum(sizes, axis=1)  # [B, L]
        total = ends[:, -1:]
        place = evenly(jnp.arange(most)[None], total, most)
        of = jax.vmap(lambda e, p: jnp.searchsorted(e, p, side="right"))(ends, place)
        of = jnp.minimum(of, num - 1)
        back = jnp.take_along_axis(ends, of, 1) - place  # from the bucket's end
        places = jnp.take_along_axis(stops, of, 1) - back
        places = jnp.clip(places, 0, self.labels.shape[1] - 1)
        return self.labels[of, places], jnp.minimum(total[:, 0], most)


def _by_bucket(buckets: jax.Array, bits: int) -> tuple[jax.Array, jax.Array]:
    """Return a table's arrays (labels [C] in the order of their buckets [C], starts).

    A counting sort of one part of the labels at a time: the labels of a part are sorted
    as single integers (bucket and position within the part, in 32 bits) and appended to
    those of the previous parts. On a CPU this is much faster than one sort of pairs.
    """
    counts = jnp.zeros(2**bits + 1, jnp.int32).at[buckets + 1].add(1)
    starts = jnp.cumsum(counts, dtype=jnp.int32)
    place_bits = 32 - bits

    def part(start: Any, size: int, carry: tuple) -> tuple:
        labels, ends = carry
        bucket = jax.lax.dynamic_slice_in_dim(buckets, start, size).astype(jnp.uint32)
        place = jnp.arange(size, dtype=jnp.int32)
        packed = jnp.sort((bucket << place_bits) | place.astype(jnp.uint32))
        bucket = packed >> place_bits
        begins = jnp.concatenate([jnp.ones(1, bool), bucket[1:] != bucket[:-1]])
        rank = place - jax.lax.cummax(jnp.where(begins, place, 0))
        found = (packed & (2**place_bits - 1)).astype(jnp.int32)
        labels = labels.at[ends[bucket] + rank].set(start + found)
        return labels, ends.at[bucket].add(1)

    labels = jnp.zeros_like(buckets)
    labels, _ = over_chunks(len(buckets), 2**place_bits, part, (labels, starts[:-1]))
    return labels, starts
