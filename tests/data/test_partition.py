"""Shards: every example in exactly one, none empty, with the requested unevenness."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.data import dirichlet, iid

alphas = st.sampled_from([1e-300, 1e-9, 0.1, 1.0, 1e3, 1e38])


def check_partition(shards, num_examples, num_workers):
    assert len(shards) == num_workers
    assert all(len(shard) for shard in shards)
    assert all((np.diff(shard) > 0).all() for shard in shards)
    everything = np.sort(np.concatenate(shards))
    np.testing.assert_array_equal(everything, np.arange(num_examples))
    assert all(shard.dtype == np.int64 for shard in shards)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.integers(1, 60),
    alphas,
    st.integers(0, 9),
)
def test_every_example_is_in_one_shard_and_none_is_empty(labels, workers, alpha, seed):
    workers = min(workers, len(labels))
    shards = dirichlet(labels, workers, alpha=alpha, seed=seed)
    check_partition(shards, len(labels), workers)
    again = dirichlet(np.array(labels, np.uint8), workers, alpha=alpha, seed=seed)
    for one, other in zip(shards, again, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 9))
def test_iid_shards_are_of_one_size(num_examples, workers, seed):
    workers = min(workers, num_examples)
    shards = iid(num_examples, workers, seed)
    check_partition(shards, num_examples, workers)
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_seed_decides_the_shards():
    labels = np.arange(100) % 7
    for shards in (
        lambda seed: dirichlet(labels, 4, alpha=1, seed=seed),
        lambda seed: iid(100, 4, seed),
    ):
        assert any(
            not np.array_equal(a, b) for a, b in zip(shards(0), shards(1), strict=True)
        )


def counts(labels, shards):
    """[workers, classes] of examples."""
    return np.array([np.bincount(labels[s], minlength=10) for s in shards])


def test_alpha_says_how_uneven_classes_are():
    labels = np.random.default_rng(0).integers(10, size=5000)
    of_class = np.bincount(labels)
    alike = counts(labels, dirichlet(labels, 8, alpha=1e9, seed=0))
    # shares are 1/8, up to their standard deviation of 1e-5 and rounding
    assert np.abs(alike - of_class / 8).max() <= 1.01
    few = counts(labels, dirichlet(labels, 8, alpha=1e-6, seed=0))
    assert (few.max(0) >= of_class - 8).all()  # one worker has nearly the whole class


def test_shares_have_the_moments_of_the_dirichlet_distribution():
    """E p = 1/K and Var p = (K - 1) / (K^2 (K alpha + 1))."""
    workers, classes, alpha = 4, 2000, 0.7
    labels = np.repeat(np.arange(classes), 100)
    shards = dirichlet(labels, workers, alpha=alpha, seed=1)
    share = np.array([np.bincount(labels[s], minlength=classes) for s in shards]) / 100
    variance = (workers - 1) / workers**2 / (workers * alpha + 1)
    error = 4 * np.sqrt(variance / classes)  # four standard errors of the mean
    np.testing.assert_allclose(share.mean(1), 1 / workers, atol=error)
    np.testing.assert_allclose(share.var(1), variance, rtol=0.12)


def test_small_classes_favour_no_worker():
    """With one example per class, rounding must not decide which worker gets it."""
    shards = dirichlet(np.arange(4000), 4, alpha=1.0, seed=0)
    sizes = np.array([len(shard) for shard in shards])
    assert np.abs(sizes - 1000).max() < 4 * np.sqrt(4000 * 0.25 * 0.75)


def test_examples_of_a_class_are_drawn_at_random():
    """Examples are not in the order of the file, which may be sorted."""
    for shard in dirichlet(np.zeros(400, int), 2, alpha=1e9, seed=0):
        assert abs(shard.mean() - 199.5) < 4 * 115.5 / np.sqrt(2 * 200)  # errors
        assert (np.diff(shard) > 1).mean() > 0.25  # half are expected


def test_several_labels_count_by_the_first():
    rng = np.random.default_rng(0)
    dense = rng.random((300, 6)) < 0.4
    dense[:, 0] = False
    dense[::10] = False  # rows without a label
    none = np.flatnonzero(~dense.any(1))
    shards = dirichlet(sp.csr_array(dense.astype(np.float32)), 4, alpha=1e-6, seed=3)
    check_partition(shards, 300, 4)
    spread = [len(np.intersect1d(none, shard)) for shard in shards]
    assert max(spread) - min(spread) <= 2  # one from the dealing, one moved
    first = np.where(dense.any(1), dense.argmax(1), -1)
    for label in range(1, 6):
        of_label = np.flatnonzero(first == label)
        held = [len(np.intersect1d(of_label, shard)) for shard in shards]
        assert max(held) >= len(of_label) - 3  # all but what filled empty shards


@pytest.mark.parametrize(
    ("labels", "workers", "alpha", "message"),
    [
        ([0, 1, 2], 2, 0, "alpha=0: pass"),
        ([0, 1, 2], 2, -1.0, "alpha=-1.0: pass"),
        ([0, 1, 2], 2, float("nan"), "alpha=nan: pass"),
        ([0, 1, 2], 2, float("inf"), "alpha=inf: pass"),
        ([0, 1, 2], 0, 1, "num_workers=0: pass"),
        ([0, 1, 2], 4, 1, "3 examples are too few for 4 workers"),
        ([], 1, 1, "0 examples are too few for 1 workers"),
        ([0, -1, 2], 2, 1, "class id -1 is negative"),
        ([0.0, 1.0], 2, 1, r"not \[2\] of float64"),
        ([[0, 1]], 2, 1, r"not \[1, 2\] of int64"),
        (sp.csr_array((2, 3)), 3, 1, "2 examples are too few"),
    ],
)
def test_invalid_partitions_are_errors(labels, workers, alpha, message):
    with pytest.raises(ValueError, match=message):
        dirichlet(labels, workers, alpha=alpha, seed=0)


def test_iid_needs_examples_for_all():
    with pytest.raises(ValueError, match="2 examples are too few for 3 workers"):
        iid(2, 3, seed=0)
    with pytest.raises(ValueError, match="num_workers=0: pass"):
        iid(2, 0, seed=0)
