"""The bundled digits."""

import numpy as np
import pytest

from hetjax.data import digits


def test_digits_are_split_without_loss():
    data = digits(test_share=0.25, seed=1)
    assert (len(data.train), len(data.test)) == (1348, 449)
    assert data.train.x.shape[1:] == (64,)
    assert data.train.x.dtype == np.float32
    assert data.train.y.dtype == np.int32
    assert data.num_classes == 10
    x = np.concatenate([data.train.x, data.test.x])
    assert (x.min(), x.max()) == (0, 1)
    other = digits(seed=2)
    total = np.concatenate([other.train.x, other.test.x])
    np.testing.assert_array_equal(np.sort(x, axis=0), np.sort(total, axis=0))
    assert set(data.test.y) == set(range(10))


def test_seed_decides_the_split():
    one, again, other = digits(seed=3), digits(seed=3), digits(seed=4)
    np.testing.assert_array_equal(one.test.x, again.test.x)
    np.testing.assert_array_equal(one.test.y, again.test.y)
    assert (one.test.y != other.test.y).any()


@pytest.mark.parametrize("share", [0, 1, -0.5, 2])
def test_no_split_may_be_empty(share):
    with pytest.raises(ValueError, match="test_share"):
        digits(test_share=share)
