"""The bundled digits."""

import importlib
import importlib.metadata

import numpy as np
import pytest
from sklearn.datasets import load_digits

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


def test_shifted_digits_are_every_image_at_nine_positions():
    plain, shifted = digits(), digits(shift=1)
    for name in ("train", "test"):
        one, nine = getattr(plain, name), getattr(shifted, name)
        n = len(one)
        assert len(nine) == 9 * n
        images = one.x.reshape(n, 8, 8)
        moved = nine.x.reshape(9, n, 8, 8)
        np.testing.assert_array_equal(moved[4], images)
        np.testing.assert_array_equal(moved[0, :, 1:, 1:], images[:, :-1, :-1])
        np.testing.assert_array_equal(moved[5, :, :, :-1], images[:, :, 1:])
        assert not moved[0, :, 0].any()
        np.testing.assert_array_equal(nine.y.reshape(9, n), np.tile(one.y, (9, 1)))
    assert (plain.name, shifted.name) == ("digits", "shifted digits")


def no_package(name):
    raise importlib.metadata.PackageNotFoundError(name)


@pytest.mark.parametrize("change", [{}, {"_FILE": "a"}, {"distribution": no_package}])
def test_the_file_is_that_of_scikit_learn(monkeypatch, change):
    module = importlib.import_module("hetjax.data.digits")
    for name, value in change.items():
        monkeypatch.setattr(module, name, value)
    x, y = load_digits(return_X_y=True)
    everything = digits().train.x, digits().test.x
    assert sum(map(len, everything)) == len(x)
    pixels, classes = module._pixels_and_classes()
    np.testing.assert_array_equal(pixels, x)
    np.testing.assert_array_equal(classes, y)
