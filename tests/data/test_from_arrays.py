"""Data sets from arrays: all types give the same data, and errors name a remedy."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.experimental.sparse import BCOO

from hetjax.data import from_arrays
from hetjax.data.dataset import Split
from hetjax.data.dataset_checks import rows_not_finite

X = np.array([[0, 1.5, 0], [2, 0, 0], [0, 0, 0], [1, 0, -3]], np.float32)
IDS = np.array([0, 2, 1, 2])
FLAGS = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]])

SPARSE = {
    "csr_array": sp.csr_array,
    "csc_matrix": sp.csc_matrix,
    "coo_array": sp.coo_array,
    "lil_array": sp.lil_array,
    "bcoo": lambda a: BCOO.fromdense(jnp.asarray(a)),
    "padded bcoo": lambda a: BCOO.fromdense(jnp.asarray(a), nse=9),
}
BFLOAT = jnp.asarray(X, jnp.bfloat16)
DENSE = {"numpy": X, "float64": X.astype(float), "jax": BFLOAT, "list": X.tolist()}


@pytest.mark.parametrize("form", DENSE)
def test_dense_inputs(form):
    data = from_arrays((DENSE[form], IDS), (DENSE[form], IDS.astype(np.uint8)))
    np.testing.assert_array_equal(data.train.x, X)
    np.testing.assert_array_equal(data.test.y, IDS)
    assert data.train.x.dtype == np.float32
    assert data.test.y.dtype == np.int32
    assert (data.num_features, data.num_classes, data.sparse) == (3, 3, False)
    assert not data.multilabel


@pytest.mark.parametrize("y_form", [np.asarray, *SPARSE.values()])
@pytest.mark.parametrize("x_form", SPARSE.values(), ids=SPARSE)
def test_sparse_inputs_and_labels(x_form, y_form):
    pair = (x_form(X), y_form(FLAGS))
    data = from_arrays(pair, pair)
    for split in (data.train, data.test):
        for matrix, dense in ((split.x, X), (split.y, FLAGS)):
            assert isinstance(matrix, sp.csr_array)
            assert matrix.has_canonical_format
            assert matrix.dtype == np.float32
            assert matrix.nnz == np.count_nonzero(dense)
            np.testing.assert_array_equal(matrix.toarray(), dense)
    assert (data.num_features, data.num_classes) == (3, 3)


def test_duplicates_are_summed_and_the_callers_arrays_stay():
    twice = sp.csr_array(
        (np.array([1.0, 2.0, 4.0], np.float32), [2, 0, 2], [0, 3]), shape=(1, 3)
    )
    data = from_arrays((twice, [0]), (twice, [0]))
    assert data.train.x.toarray().tolist() == [[2, 0, 5]]
    assert twice.nnz == 3
    x = X.copy()
    data = from_arrays((x, IDS), (x, IDS), num_classes=5)
    x[:] = 7
    np.testing.assert_array_equal(data.train.x, X)
    assert data.num_classes == 5


def test_stored_zeros_are_no_labels():
    y = sp.csr_array(([1.0, 0.0], [0, 2], [0, 2]), shape=(1, 3))
    assert from_arrays((X[:1], y), (X[:1], y)).train.y.indices.tolist() == [0]


def test_images_keep_their_axes():
    x = np.zeros((4, 5, 6, 3), np.uint8)
    assert from_arrays((x, IDS), (x, IDS)).train.x.shape == (4, 5, 6, 3)


NAN = np.where(X == 2, np.nan, X)
BATCHED = BCOO.fromdense(jnp.asarray(X), n_batch=1)
WRONG = {
    "train: x has 4 rows, but y has 3": ((X, IDS[:3]), None),
    "train has no rows": ((X[:0], IDS[:0]), None),
    "train x has 1 values that are NaN or inf": ((NAN, IDS), None),
    "train x has 1 values that are": ((sp.csr_array(NAN), IDS), None),
    "train x has 12 values that are NaN": ((np.full((4, 3), 1e39), IDS), None),
    "test y: class id -1 is negative": ((X, IDS), (X, IDS - 1)),
    "train y: class id 4294967298 is too large": ((X, IDS + 2**32), None),
    "class ids must be integers, not <U": ((X, IDS.astype(str)), None),
    "class ids must be integers, not bool": ((X, IDS > 1), None),
    "features differ": ((X, IDS), (X[:, :2], IDS)),
    "must both be sparse or both dense": ((X, IDS), (sp.csr_array(X), IDS)),
    "must both be class ids or both": ((X, IDS), (X, FLAGS)),
    "classes differ: y of train has 3": ((X, FLAGS), (X, FLAGS[:, :2])),
    "zeros and ones": ((X, sp.csr_array(FLAGS * 0.5)), None),
    "must hold real numbers, not <U1": ((np.array([list("abc")] * 4), IDS), None),
    "not complex": ((X * 1j, IDS), None),
    "x must be .N, ...., not .4,.": ((X[:, 0], IDS), None),
    "no batch and no dense axes": ((BATCHED, IDS), None),
    "has no features": ((X[:, :0], IDS), None),
    "must be a pair": (X, None),
    r"y must be \[N\] or \[N, C\]": ((X, 1), None),
}


@pytest.mark.parametrize("message", WRONG)
def test_invalid_arrays_are_errors(message):
    train, test = WRONG[message]
    with pytest.raises(ValueError, match=message):
        from_arrays(train, (X, IDS) if test is None else test)


FLOATS = IDS.astype(float)
TARGETS = [
    ("classes", FLOATS, "class ids must be integers, not float64"),
    ("classes", FLAGS, r"y must be \[N\], not"),
    ("classes", sp.csr_array(FLAGS), "y is sparse: pass dense classes"),
    ("labels", IDS[:, None] + 1, "must hold zeros and ones"),
    ("labels", IDS, r"y must be \[N, C\], not"),
    ("values", sp.csr_array(FLAGS), "y is sparse: pass dense values"),
    ("label", FLAGS, "targets='label': choose one of"),
]


@pytest.mark.parametrize(("targets", "y", "message"), TARGETS)
def test_targets_that_are_not_of_their_kind(targets, y, message):
    with pytest.raises(ValueError, match=message):
        from_arrays((X, y), (X, y), targets=targets)


def test_classes_out_of_range():
    with pytest.raises(
        ValueError, match="class id 2 is out of range: num_classes is 2"
    ):
        from_arrays((X, IDS), (X, IDS), num_classes=2)
    with pytest.raises(ValueError, match="num_classes is 4, but y has 3 columns"):
        from_arrays((X, FLAGS), (X, FLAGS), num_classes=4)


def test_negative_bcoo_index_is_an_error():
    indices = jnp.array([[0, -1]])
    bad = BCOO((jnp.ones(1), indices), shape=(1, 3))
    with pytest.raises(ValueError, match="negative index"):
        from_arrays((bad, [0]), (bad, [0]))


def test_rows_that_are_not_finite_are_found_in_every_leaf():
    bag = sp.csr_array(np.array([[0, 1], [np.inf, 0], [2, 3], [0, 0]], np.float32))
    image = np.ones((4, 2, 2), np.float32)
    image[3, 1, 0] = np.nan
    split = Split({"bag": bag, "image": image}, np.arange(4))
    np.testing.assert_array_equal(rows_not_finite(split), [1, 3])
    np.testing.assert_array_equal(rows_not_finite(split, np.array([3, 0, 3])), [3, 3])
    assert len(rows_not_finite(Split(bag[2:], np.arange(2)))) == 0
