"""Locality-sensitive hashing for SLIDE: SimHash and DWTA codes, and their tables.

Vectors with a large inner product tend to fall into the same bucket. The content of a
bucket is a slice of the labels sorted by their codes, so that tables are two integer
arrays. Source: SLIDE; ALGORITHMS H.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hetjax.softmax import over_chunks

HASHES = ("simhash", "dwta")
_BIN = 8  # coordinates of which DWTA takes the largest: 3 bits of a code
_BIN_BITS = 3
_PROBES = 100  # bins that are tried in place of an empty one, at most
_ROWS = 4096  # rows of W that are hashed at a time
_MIX = 2654435769  # 2**32 / the golden ratio: spreads codes over fewer buckets


class Hashing(NamedTuple):
    """Which hash functions: L tables, each addressed by K codes of a vector."""

    hash: str  # one of HASHES
    codes: int  # K
    tables: int  # L
    range_bits: int  # at most 2**range_bits buckets per table

    @property
    def bits(self) -> int:
        """log2 of the buckets of a table."""
        return min(self.range_bits, self._code_bits)

    @property
    def _code_bits(self) -> int:
        return self.codes * (_BIN_BITS if self.hash == "dwta" else 1)

    def buckets(self, x: jax.Array, key: jax.Array) -> jax.Array:
        """[n, L] int32: the bucket of each vector x [n, H] in each table.

        Equal keys are equal hash functions.
        """
        hashed = _dwta if self.hash == "dwta" else _simhash
        codes = hashed(x, self.codes * self.tables, key)
        codes = codes.reshape(len(x), self.tables, self.codes).astype(jnp.uint32)
        width = self._code_bits // self.codes
        places = jnp.arange(self.codes, dtype=jnp.uint32) * width
        if self._code_bits <= self.range_bits:
            return jnp.sum(codes << places[None, None], -1).astype(jnp.int32)
        mixed = jnp.zeros(codes.shape[:2], jnp.uint32)
        for k in range(self.codes):
            mixed = (mixed ^ codes[:, :, k]) * jnp.uint32(_MIX)
            mixed ^= mixed >> 15
        return (mixed >> (32 - self.bits)).astype(jnp.int32)


def _simhash(x: jax.Array, num: int, key: jax.Array) -> jax.Array:
    """[n, num] signs of random projections, each on a third of the coordinates."""
    dim = x.shape[1]
    ranks, signs = (jax.random.uniform(k, (num, dim)) for k in jax.random.split(key))
    chosen = jnp.argsort(jnp.argsort(ranks, axis=1), axis=1) < max(1, dim // 3)
    directions = jnp.where(chosen, jnp.where(signs < 0.5, -1.0, 1.0), 0.0)
    return (x @ directions.T.astype(x.dtype) > 0).astype(jnp.int32)


def _dwta(x: jax.Array, num: int, key: jax.Array) -> jax.Array:
    """[n, num] the place of the largest value in bins of permuted coordinates.

    The code of a bin without any non-zero is that of another bin, chosen by double
    hashing (densified winner takes all).
    """
    dim = x.shape[1]
    size = min(_BIN, dim)
    per_permutation = dim // size
    keys = jax.random.split(key, 2)
    order = jnp.argsort(
        jax.random.uniform(keys[0], (math.ceil(num / per_permutation), dim)), axis=1
    )
    bins = order[:, : per_permutation * size].reshape(-1, size)[:num]
    values = x[:, bins]  # [n, num, size]
    codes = jnp.argmax(values, axis=-1).astype(jnp.int32)
    empty = jnp.all(values == 0, axis=-1)
    strides = jax.random.randint(keys[1], (num,), 1, max(2, num))
    own = jnp.arange(num)

    def more(state: tuple) -> jax.Array:
        attempt, _, missing = state
        return (attempt <= _PROBES) & jnp.any(missing)

    def probe(state: tuple) -> tuple:
        attempt, codes_now, missing = state
        donor = (own + attempt * strides) % num
        taken = missing & ~empty[:, donor]
        return (
            attempt + 1,
            jnp.where(taken, codes[:, donor], codes_now),
            (missing & ~taken),
        )

    return jax.lax.while_loop(more, probe, (1, codes, empty))[1]


class Tables(NamedTuple):
    """L hash tables of the rows of W, sorted by bucket."""

    labels: jax.Array  # [L, C] int32: labels in the order of their buckets
    starts: jax.Array  # [L, buckets + 1] int32: where each bucket starts

    @staticmethod
    def of(w: jax.Array, hashing: Hashing, key: jax.Array) -> "Tables":
        """The tables of the rows of W [C, H]."""
        num = len(w)

        def hashed(start: jax.Array, size: int, codes: jax.Array) -> jax.Array:
            rows = jax.lax.dynamic_slice_in_dim(w, start, size)
            own = hashing.buckets(rows, key).T
            return jax.lax.dynamic_update_slice_in_dim(codes, own, start, 1)

        codes = jnp.zeros((hashing.tables, num), jnp.int32)
        codes = over_chunks(num, _ROWS, hashed, codes)
        labels = jnp.broadcast_to(jnp.arange(num, dtype=jnp.int32), codes.shape)
        # one table after the other, so that the sort's memory is that of one
        labels = jax.lax.map(
            lambda pair: jax.lax.sort(pair, num_keys=1, is_stable=True)[1],
            (codes, labels),
        )
        counts = jnp.zeros((hashing.tables, 2**hashing.bits + 1), jnp.int32)
        table = jnp.arange(hashing.tables)[:, None]
        counts = counts.at[table, codes + 1].add(1)
        return Tables(labels, jnp.cumsum(counts, axis=1, dtype=jnp.int32))

    def found(
        self, buckets: jax.Array, bucket_size: int, most: int
    ) -> tuple[jax.Array, jax.Array]:
        """(labels [B, most], count [B]) in the given bucket [B, L] of each table.

        Of each bucket the last `bucket_size` labels count (a full bucket drops the
        oldest). If there are more than `most` in all, they are taken evenly from all
        tables. What is beyond the count has no meaning; labels may occur repeatedly.
        """
        table = jnp.arange(buckets.shape[1])[None]
        stops = self.starts[table, buckets + 1]
        sizes = jnp.minimum(stops - self.starts[table, buckets], bucket_size)
        ends = jnp.cumsum(sizes, axis=1)  # [B, L]
        total = ends[:, -1:]
        place = jnp.arange(most)[None]
        # the quotient by parts: place * total could overflow
        spread = place * (total // most) + place * (total % most) // most
        place = jnp.where(total > most, spread, place)
        of = jax.vmap(lambda e, p: jnp.searchsorted(e, p, side="right"))(ends, place)
        of = jnp.minimum(of, buckets.shape[1] - 1)
        back = jnp.take_along_axis(ends, of, 1) - place  # from the bucket's end
        places = jnp.take_along_axis(stops, of, 1) - back
        places = jnp.clip(places, 0, self.labels.shape[1] - 1)
        return self.labels[of, places], jnp.minimum(total[:, 0], most)
