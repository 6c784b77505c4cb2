"""Data sets with only their commonest labels: a small example, and random data."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import hetjax as hj
from hetjax.data import commonest_labels, from_arrays
from hetjax.data.dataset_checks import check_dataset


def data_of(train, test):
    """Examples whose only input is their row number."""
    splits = []
    for y in (train, test):
        x = sp.csr_array(np.arange(1, len(y) + 1, dtype=np.float32)[:, None])
        splits.append((x, np.array(y)))
    return from_arrays(*splits, name="own")


def test_a_small_example():
    # counts 1, 3, 2, 2: the two commonest are 1, and 2 rather than 3
    data = data_of(
        [[0, 1, 1, 0], [0, 1, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]],
        [[1, 0, 0, 0], [0, 0, 1, 1]],
    )
    cut = commonest_labels(data, 2)
    check_dataset(cut)
    np.testing.assert_array_equal(cut.train.y.toarray(), [[1, 1], [1, 0], [1, 1]])
    np.testing.assert_array_equal(cut.test.y.toarray(), [[0, 1]])
    np.testing.assert_array_equal(cut.train.x.toarray().ravel(), [1, 2, 4])
    np.testing.assert_array_equal(cut.test.x.toarray().ravel(), [2])
    assert cut.num_classes == 2
    assert cut.name == "own, 2 labels"
    assert cut.notes == (
        "train: 1 row without the 2 commonest labels",
        "test: 1 row without the 2 commonest labels",
    )
    assert data.train.y.shape == (4, 4)


@given(seed=st.integers(0, 10**6), number=st.integers(1, 12))
def test_laws(seed, number):
    rng = np.random.default_rng(seed)
    y = (rng.random((30, 12)) < rng.random(12) * 0.6).astype(int)
    y[0] = 1
    data = data_of(y[:20], np.vstack([y[20:], np.ones((1, 12), int)]))
    cut = commonest_labels(data, number)
    check_dataset(cut)
    before = data.train.y.toarray().sum(0)
    after = cut.train.y.toarray().sum(0)
    # no removed label is commoner than a remaining one
    np.testing.assert_array_equal(np.sort(after), np.sort(before)[12 - number :])
    assert (cut.train.y.toarray().sum(1) > 0).all()


def test_all_labels_are_the_same_data():
    data = hj.data.synthetic_xmc(
        rows=50, test_rows=20, features=40, labels=9, nonzeros=9.0
    )
    cut = commonest_labels(data, 9)
    assert (cut.train.y != data.train.y).nnz == 0
    assert (cut.test.x != data.test.x).nnz == 0
    assert cut.notes == data.notes


def test_what_cannot_be_cut():
    data = data_of([[1, 0], [1, 0]], [[0, 1]])
    with pytest.raises(ValueError, match="no test example has one of the 1 commonest"):
        commonest_labels(data, 1)
    with pytest.raises(ValueError, match="number=3: pass"):
        commonest_labels(data, 3)
    with pytest.raises(ValueError, match="digits: commonest_labels needs sets"):
        commonest_labels(hj.data.digits(), 3)
