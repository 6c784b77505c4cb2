"""Batches inside a compiled run: those of the host, whether gathered there or sent."""

from functools import cache

import jax
import numpy as np
import pytest
import scipy.sparse as sp

from hetjax.data.batching import (
    fill_bucket,
    lengths_of,
    make_batch,
    make_buckets,
    repeated,
)
from hetjax.data.columns import RowsView
from hetjax.data.dataset import Split
from hetjax.data.device_rows import DeviceRows, device_bytes, pad_rows
from hetjax.runtimes.compiled.batch_sources import HostRows
from hetjax.runtimes.compiled.stretch import Stretch
from hetjax.runtimes.compiled.tables import Buckets

N, BATCH = 23, 9
SOURCES = {
    "device": lambda s: DeviceRows(s, None),
    "host": lambda s: HostRows(s, BATCH),
}


def csr(rng, columns, most, *, ones=False):
    """Rows of several lengths, 0 among them."""
    lengths = rng.integers(0, most + 1, size=N)
    lengths[4] = 0
    indices = [np.sort(rng.permutation(columns)[:k]) for k in lengths]
    data = np.ones(lengths.sum()) if ones else rng.uniform(0.5, 2.0, lengths.sum())
    starts = np.concatenate([[0], np.cumsum(lengths)])
    parts = data.astype(np.float32), np.concatenate(indices), starts
    return sp.csr_array(parts, shape=(N, columns))


@cache
def split_of(kind):
    rng = np.random.default_rng(7)
    dense = rng.normal(size=(N, 3, 2)).astype(np.float32)
    labels = rng.integers(5, size=N)
    sparse = csr(rng, 11, 6)
    columns = {
        "dense": (dense, labels),
        "tree": ({"a": dense, "b": [labels, dense[:, 0, 0]]}, {"y": labels}),
        "sparse": (sparse, labels),
        "sets of labels": (sparse, csr(rng, 5, 3, ones=True)),
        "mixed": ((dense, {"s": sparse}), csr(rng, 5, 3, ones=True)),
        "dense with sets": (dense, csr(rng, 5, 3, ones=True)),
    }
    return Split(*columns[kind])


KINDS = ("dense", "tree", "sparse", "sets of labels", "mixed", "dense with sets")


def stretch_of(rng, sizes, steps=3):
    """A stretch with a round of so many steps for each batch size."""
    stretch = Stretch()
    for worker, n in enumerate(sizes):
        rows = [rng.integers(N, size=n) for _ in range(steps)]
        stretch.add_round(worker, rows, 0, 0.1, None)
    return stretch


def batches(source, buckets, stretch):
    """(rows, bucket, batch) of all steps, as a program sees them."""
    known, of_round, rows, steps = buckets.of(stretch)
    length = 4 * len(rows)
    arrays, table = source.program_inputs(rows, steps, length)
    assert len(table) == length  # tables have few lengths
    seen = jax.jit(source.batch_maker.batch, static_argnums=3)
    for (_, first, number, _, n), b in zip(stretch.rounds, of_round, strict=True):
        for step in range(first, first + number):
            given = table[step, : known[b].size]
            yield stretch.rows[step], known[b], seen(arrays, given, n, known[b])


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    every = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for ours, theirs in every:
        assert ours.shape == theirs.shape
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", SOURCES)
@pytest.mark.parametrize("exact", [False, True])
def test_batches_are_those_of_the_host(kind, where, exact):
    split, rng = split_of(kind), np.random.default_rng(1)
    source = SOURCES[where](split)
    buckets = Buckets(make_buckets(split, BATCH), source, exact=exact)
    for sizes in ((BATCH, 6), (2,)):
        found = list(batches(source, buckets, stretch_of(rng, sizes)))
        assert len(found) == 3 * len(sizes)
        for rows, bucket, batch in found:
            assert bucket.size >= len(rows)
            assert not exact or bucket.size == len(rows)
            assert_same(batch, fill_bucket(split, rows, bucket))


@pytest.mark.parametrize("kind", KINDS)
def test_the_true_examples_are_those_of_the_reference_player(kind):
    """Its batch may have more padding, or less."""
    split, rng = split_of(kind), np.random.default_rng(2)
    source, of_job = DeviceRows(split, None), make_buckets(split, BATCH)
    buckets = Buckets(of_job, source, exact=False)
    for rows, _, batch in batches(source, buckets, stretch_of(rng, (7,), steps=1)):
        other = make_batch(split, rows, of_job)
        assert batch.count == other.count == 7
        np.testing.assert_array_equal(batch.weight[:7], other.weight[:7])
        assert not batch.weight[7:].any()
        ours, theirs = ((b.x, b.y) for b in (batch, other))
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(first(a), first(b)),
            ours,
            theirs,
            is_leaf=lambda x: hasattr(x, "indices"),
        )


def first(array):
    """The first seven rows; a sparse array is made dense."""
    return np.asarray(array.todense() if hasattr(array, "todense") else array)[:7]


@pytest.mark.parametrize("sparse", [False, True])
def test_padding_of_rows(sparse):
    rng = np.random.default_rng(3)
    split = split_of("mixed" if sparse else "dense")
    for n, size in ((4, 9), (9, 9), (1, 3)):
        rows = [rng.integers(N, size=n) for _ in range(5)]
        of_all = np.concatenate(rows)
        lengths = lengths_of((split.x, split.y), of_all)
        table = pad_rows(np.stack(rows), size, lengths)
        assert table.shape == (5, size)
        for mine, own in zip(table, rows, strict=True):
            np.testing.assert_array_equal(mine[:n], own)
            if not sparse:
                np.testing.assert_array_equal(mine, repeated(own, size))
                continue
            each = sum(lengths_of((split.x, split.y), own))
            assert set(mine[n:]) <= {own[each.argmin()]}


def test_buckets_only_grow():
    """A program is not compiled again for a batch that fits into one before it."""
    split, rng = split_of("sparse"), np.random.default_rng(4)
    source = DeviceRows(split, None)
    buckets = Buckets(make_buckets(split, BATCH), source, exact=False)
    before = {}
    for n in (9, 3, 9, 5, 9):
        known = buckets.of(stretch_of(rng, (n,), steps=8))[0]
        (now,) = known
        if now.size in before:
            pairs = zip(now.capacities, before[now.size], strict=True)
            assert all(new >= old for new, old in pairs)
        before[now.size] = now.capacities
    assert sorted(before) == [3, 5, 9]  # the batch size, half of it, a quarter


def test_the_bytes_on_a_device():
    for kind in KINDS:
        split = split_of(kind)
        arrays = jax.tree.leaves(DeviceRows(split, None).arrays)
        stored = [x for x in jax.tree.leaves((split.x, split.y)) if not sp.issparse(x)]
        wide = sum(4 * x.size for x in stored if x.dtype == np.int64)  # int32 there
        assert sum(x.nbytes for x in arrays) + wide == device_bytes(split)
    split = split_of("dense")
    on_disk = RowsView(split.x, np.arange(N))
    assert device_bytes(Split(on_disk, split.y)) is None
