"""Synthetic data: requested shapes, reproducible, skewed, learnable."""

import numpy as np
import pytest
import scipy.sparse as sp

from hetjax.data import SHAPES, synthetic, synthetic_xmc


def test_shapes_and_means_are_as_asked():
    data = synthetic_xmc(
        rows=3000,
        test_rows=500,
        features=5000,
        labels=900,
        nonzeros=60,
        labels_per_row=8,
    )
    assert data.train.x.shape == (3000, 5000)
    assert data.test.y.shape == (500, 900)
    assert (data.num_features, data.num_classes) == (5000, 900)
    for split in (data.train, data.test):
        for matrix in (split.x, split.y):
            assert isinstance(matrix, sp.csr_array)
            assert matrix.has_canonical_format
            assert matrix.dtype == np.float32
            assert matrix.indices.dtype == np.int32
            assert np.diff(matrix.indptr).min() >= 1
        norms = np.sqrt((split.x**2).sum(axis=1))
        np.testing.assert_allclose(norms, 1, rtol=1e-5)  # 60 float32 roundings
        assert set(split.y.data.tolist()) == {1}
    # standard errors: 0.6 * 60 / sqrt(3000) = 0.7 and sqrt(7 / 3000) = 0.05
    assert abs(data.train.x.nnz / 3000 - 60) < 3
    assert abs(data.train.y.nnz / 3000 - 8) < 0.2


def test_seed_decides_the_data():
    sizes = {"rows": 50, "test_rows": 20}
    one, again = (synthetic_xmc(**sizes, seed=5) for _ in range(2))
    other = synthetic_xmc(**sizes, seed=6)
    for a, b in ((one.train, again.train), (one.test, again.test)):
        assert (a.x != b.x).nnz == 0
        assert (a.y != b.y).nnz == 0
    assert (one.train.y != other.train.y).nnz > 0
    assert (one.train.y[:20] != one.test.y).nnz > 0


def test_popularity_falls_like_one_over_rank():
    data = synthetic_xmc(rows=8000, labels=1000, labels_per_row=1)
    counts = np.sort(np.bincount(data.train.y.indices, minlength=1000))[::-1]
    ranks = np.array([1, 4, 16, 64])
    expected = 8000 * np.log((ranks + 1) / ranks) / np.log(1001)
    # five standard deviations of a Poisson count, and sorting favors the rare ones
    assert (np.abs(counts[ranks - 1] - expected) < 5 * np.sqrt(expected) + 5).all()
    lengths = np.diff(data.train.x.indptr)
    assert lengths.mean() > 1.1 * np.median(lengths)  # exp(0.6**2 / 2) = 1.2


def test_features_tell_labels():
    data = synthetic_xmc()
    centroids = (data.train.x.T @ data.train.y).toarray()
    centroids /= np.linalg.norm(centroids, axis=0) + 1e-9
    truth = data.test.y.toarray()
    best = (data.test.x @ centroids).argmax(axis=1)
    most_popular = truth[:, data.train.y.sum(axis=0).argmax()].mean()
    precision = truth[np.arange(len(best)), best].mean()
    assert precision > most_popular + 0.25
    assert precision < 0.95  # not so easy that all algorithms look the same


def test_blocks_are_seamless(monkeypatch):
    monkeypatch.setattr(synthetic, "_BLOCK", 1000)
    data = synthetic_xmc(rows=101, test_rows=3, nonzeros=30)
    assert data.train.x.shape[0] == data.train.y.shape[0] == 101
    assert len(np.unique(data.train.x.toarray(), axis=0)) == 101


def test_tiny_sizes():
    data = synthetic_xmc(
        rows=1, test_rows=1, features=1, labels=1, nonzeros=1, labels_per_row=1
    )
    assert data.train.x.toarray().tolist() == data.train.y.toarray().tolist() == [[1]]


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_arguments(name):
    data = synthetic_xmc(**{**SHAPES[name], "rows": 200, "test_rows": 10})
    assert data.num_features == SHAPES[name]["features"]
    assert abs(data.train.x.nnz / 200 / SHAPES[name]["nonzeros"] - 1) < 0.2  # 5 sigma


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("rows", 0),
        ("test_rows", -1),
        ("features", 0),
        ("labels", 2**31),
        ("nonzeros", 0),
        ("nonzeros", 1001),
        ("nonzeros", float("nan")),
        ("labels_per_row", 101),
        ("labels_per_row", 0.5),
    ],
)
def test_bad_sizes_name_the_argument(argument, value):
    with pytest.raises(ValueError, match=f"{argument}={value}: pass"):
        synthetic_xmc(**{argument: value})
