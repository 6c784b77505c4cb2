"""SLIDE's hash functions and tables against NumPy, written once more by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import quick

from hetjax.output.hashing import HASHES, Hashing, HashTables

H = 20
KEY = jax.random.key(3)
tables_of = jax.jit(HashTables.build, static_argnums=1)
buckets_of = jax.jit(Hashing.buckets, static_argnums=0)
found_in = jax.jit(HashTables.lookup, static_argnums=(2, 3))


def vectors(n=40, seed=0, hidden=H):
    return np.random.default_rng(seed).normal(size=(n, hidden)).astype(np.float32)


@pytest.mark.parametrize("hash", HASHES)
def test_buckets_are_functions_of_the_key_in_range(hash):
    hashing = Hashing(hash, 4, 6, 18)
    x = vectors()
    found = np.asarray(buckets_of(hashing, x, KEY))
    assert found.shape == (6, 40)
    assert found.min() >= 0
    assert found.max() < 2**hashing.bits == (2**12 if hash == "dwta" else 2**4)
    other = buckets_of(hashing, x, jax.random.key(4))
    assert (found != other).any()
    # alone or among others, scaled or not, a vector has the same buckets
    np.testing.assert_array_equal(buckets_of(hashing, 3 * x[5:6], KEY), found[:, 5:6])


@pytest.mark.full  # each operation is compiled
@pytest.mark.parametrize("hash", HASHES)
def test_buckets_without_jit(hash):
    hashing, x = Hashing(hash, 4, 6, 18), jnp.asarray(vectors())
    found = hashing.buckets(x, KEY)
    np.testing.assert_array_equal(found, buckets_of(hashing, x, KEY))


def test_more_codes_than_bits_are_mixed_into_all_buckets():
    hashing = Hashing("dwta", 8, 3, 6)
    found = np.asarray(buckets_of(hashing, vectors(2000), KEY))
    assert hashing.bits == 6
    for row in found:
        counts = np.bincount(row, minlength=64)
        assert counts.min() > 0
        assert counts.max() < 100  # 31 expected


@pytest.mark.parametrize("hash", HASHES)
def test_near_vectors_collide_more_often_than_far_ones(hash):
    hashing = Hashing(hash, 2, 200, 18)
    x = vectors(30)
    near, far = x + 0.1 * vectors(30, 1), vectors(30, 2)
    buckets = [np.asarray(buckets_of(hashing, v, KEY)) for v in (x, near, far)]
    shares = [(buckets[0] == other).mean() for other in buckets[1:]]
    assert shares[0] > 0.5
    assert shares[1] < (0.45 if hash == "simhash" else 0.1)


def test_simhash_bits_are_signs_of_projections_on_a_third_of_the_coordinates():
    """A vector's bit does not change with the coordinates that are not projected."""
    hashing = Hashing("simhash", 1, 60, 18)
    x = vectors(1)
    whole = np.asarray(buckets_of(hashing, x, KEY))[:, 0]
    used = np.zeros((60, H), bool)
    for c in range(H):
        for sign in (-1e6, 1e6):
            changed = x.copy()
            changed[0, c] = sign
            found = np.asarray(buckets_of(hashing, changed, KEY))[:, 0]
            used[:, c] |= found != whole
    assert (used.sum(1) == H // 3).all()
    minus = np.asarray(buckets_of(hashing, -x, KEY))[:, 0]
    np.testing.assert_array_equal(whole, 1 - minus)


def test_dwta_takes_the_code_of_another_bin_where_a_bin_is_empty():
    """16 bins are two permutations: in each, one bin of eight holds the coordinate."""
    hashing, tried = Hashing("dwta", 1, 16, 18), 0
    for coordinate in range(64):
        # where all others are -1, bins without the coordinate have the code 0
        dense, x = np.full((1, 64), -1.0, np.float32), np.zeros((1, 64), np.float32)
        dense[0, coordinate] = x[0, coordinate] = 2.0
        places = np.asarray(buckets_of(hashing, dense, KEY))[:, 0]
        if np.count_nonzero(places) == 2:  # else its place in a bin is 0, too
            found = np.asarray(buckets_of(hashing, x, KEY))[:, 0]
            assert set(found) == set(places[places > 0])
            np.testing.assert_array_equal(found[places > 0], places[places > 0])
            tried += 1
    assert tried > 10
    assert (
        np.asarray(buckets_of(hashing, np.zeros((1, 64), np.float32), KEY)) == 0
    ).all()


NUMBERS = [(num, hash) for num in (1, 7, 4096, 5000) for hash in HASHES]


@pytest.mark.parametrize(
    ("num", "hash"), quick(NUMBERS, (1, "dwta"), (7, "simhash"), (5000, "dwta"))
)
def test_tables_list_each_bucket_in_order(num, hash):
    check_tables(Hashing(hash, 2, 3, 5), num)


def test_tables_of_more_labels_than_are_sorted_at_a_time():
    """With 2^18 buckets, 14 bits are left for a label's place among those."""
    hashing = Hashing("dwta", 8, 1, 18)
    w = vectors(2 * 2**14 + 5, hidden=8)
    tables = tables_of(w, hashing, KEY)
    buckets = np.asarray(buckets_of(hashing, w, KEY))[0]
    np.testing.assert_array_equal(tables.labels[0], np.argsort(buckets, kind="stable"))
    counts = np.bincount(buckets, minlength=2**18)
    np.testing.assert_array_equal(tables.starts[0], np.r_[0, np.cumsum(counts)])


def check_tables(hashing, num):
    w = vectors(num)
    labels, starts = jax.device_get(tables_of(w, hashing, KEY))
    buckets = np.asarray(buckets_of(hashing, w, KEY))
    for t in range(3):
        for bucket in range(2**hashing.bits):
            start, stop = starts[t, bucket : bucket + 2]
            np.testing.assert_array_equal(
                labels[t, start:stop], np.flatnonzero(buckets[t] == bucket)
            )
        assert starts[t, 0] == 0
        assert starts[t, -1] == num


def by_hand(tables, buckets, bucket_size):
    """The labels that each query finds: of each bucket the last ones."""
    starts, labels = np.asarray(tables.starts), np.asarray(tables.labels)
    found = []
    for row in buckets.T:
        parts = [
            labels[t, starts[t, bucket] : starts[t, bucket + 1]][-bucket_size:]
            for t, bucket in enumerate(row)
        ]
        found.append(np.concatenate(parts))
    return found


@pytest.mark.parametrize("bucket_size", [2, 1000])
def test_queries_find_the_content_of_their_buckets(bucket_size):
    hashing = Hashing("dwta", 2, 5, 4)
    tables = tables_of(vectors(300), hashing, KEY)
    buckets = buckets_of(hashing, vectors(12, 1), KEY)
    expected = by_hand(tables, np.asarray(buckets), bucket_size)
    labels, count = found_in(tables, buckets, bucket_size, 400)
    for row, n, wanted in zip(np.asarray(labels), count, expected, strict=True):
        np.testing.assert_array_equal(row[:n], wanted)
    # with room for fewer: some of them, evenly
    few, count = found_in(tables, buckets, bucket_size, 4)
    for row, n, wanted in zip(np.asarray(few), count, expected, strict=True):
        assert n == min(4, len(wanted))
        if len(wanted) > 4:
            wanted = wanted[np.arange(4) * len(wanted) // 4]
        np.testing.assert_array_equal(row[:n], wanted)


def test_empty_buckets_find_nothing():
    hashing = Hashing("dwta", 2, 5, 6)
    tables = tables_of(vectors(1), hashing, KEY)
    own = np.asarray(buckets_of(hashing, vectors(1), KEY))
    both = np.concatenate([own, (own + 1) % 64], 1)
    labels, count = found_in(tables, both, 128, 8)
    np.testing.assert_array_equal(count, [5, 0])
    np.testing.assert_array_equal(np.asarray(labels)[0, :5], np.zeros(5))
