"""Rows of columns in memory: large ones are gathered where JAX need not copy them."""

import numpy as np
import pytest

from hetjax.data import columns
from hetjax.data.columns import ALIGNMENT, UNCOPIED, gather_rows
from hetjax.data.dataset import Split
from hetjax.data.uneven import Bucket, make_uneven_batches


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64, ">f4", bool])
@pytest.mark.parametrize("shape", [(500,), (4, 250)])
def test_large_rows_are_numpys_and_aligned(dtype, shape):
    rng = np.random.default_rng(0)
    array = rng.integers(0, 2, (300, 9, 67)).astype(dtype)[:, :, ::-1]
    index = rng.integers(-300, 300, shape)
    found = gather_rows(array, index)
    assert found.nbytes >= UNCOPIED
    assert found.ctypes.data % ALIGNMENT == 0
    np.testing.assert_array_equal(found, np.take(array, index, axis=0))
    assert found.dtype == array.dtype


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_negative_rows_of_few_bits(dtype):
    array = np.arange(300 * 3000.0).reshape(300, 3000)
    index = np.array([-1, -128, 127, 0] * 10, dtype)
    np.testing.assert_array_equal(gather_rows(array, index), array[index])


@pytest.mark.parametrize("row", [300, -301])
def test_a_row_that_is_not_there(row):
    array = np.zeros((300, 3000))
    with pytest.raises(IndexError, match=f"there is no row {row}: the array has 300"):
        gather_rows(array, np.array([0] * 40 + [row]))


def test_batches_of_unequal_workers():
    """Equal batches take a shorter way; its results are the same."""
    x = np.arange(40, dtype=np.float32)[:, None]
    split = Split(x, np.arange(40))
    bucket = Bucket(4)
    equal = [[np.array([1, 2, 3, 4]), np.array([5, 6, 7, 8])]] * 2
    unequal = [equal[0], [np.array([9, 10, 11]), np.array([12])], []]
    found = make_uneven_batches(split, equal, 2, bucket)
    np.testing.assert_array_equal(found.y, np.stack([np.stack(own) for own in equal]))
    assert found.weight.min() == 1
    assert found.count.tolist() == [[4, 4], [4, 4]]
    more = make_uneven_batches(split, unequal, 2, bucket)
    np.testing.assert_array_equal(more.x[0], found.x[0])
    assert more.y[1].tolist() == [[9, 10, 11, 9], [12, 12, 12, 12]]
    assert more.weight[1].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert more.weight[2].max() == 0
    assert more.count.tolist() == [[4, 4], [3, 1], [1, 1]]
    assert columns.num_rows(more.x) == 3
