"""Colour jitter: against its definition in NumPy and `colorsys`."""

import colorsys
import itertools

import jax
import numpy as np
import pytest
from quick import quick

from hetjax.tasks import augment

KEY = jax.random.key(0)
ALL = {"brightness": 0.4, "contrast": 0.5, "saturation": 0.6, "hue": 0.2}


def images(count=6, depth=3, white=255.0, seed=0):
    x = np.random.default_rng(seed).uniform(0, white, (count, 5, 7, depth))
    return x.astype(np.float32)


def gray(x):
    if x.shape[-1] == 1:
        return x
    return (x * [0.2989, 0.587, 0.114]).sum(-1, keepdims=True)


def hue_turned(x, turn, white):
    flat = (x / white).reshape(-1, 3)
    moved = []
    for pixel in flat:
        h, s, v = colorsys.rgb_to_hsv(*pixel)
        moved.append(colorsys.hsv_to_rgb((h + turn) % 1, s, v))
    return white * np.array(moved).reshape(x.shape)


def changed(name, x, amount, white):
    """One image after one change."""
    if name == "hue":
        return hue_turned(x, amount, white)
    other = {
        "brightness": np.zeros_like(x),
        "contrast": np.full_like(x, gray(x).mean()),
        "saturation": gray(x),
    }[name]
    return np.clip(amount * x + (1 - amount) * other, 0, white)


CHANGES = [
    ("brightness", 0.6),
    ("brightness", 1.7),
    ("contrast", 0.0),
    ("contrast", 1.8),
    ("saturation", 0.3),
    ("saturation", 1.9),
    ("hue", -0.4),
    ("hue", 0.3),
]
ONE_EACH = [CHANGES[0], CHANGES[3], CHANGES[5], CHANGES[7]]


@pytest.mark.parametrize(("name", "amount"), quick(CHANGES, *ONE_EACH))
def test_each_change_is_its_formula(name, amount):
    white = 1.0 if amount > 1 else 255.0
    x = images(white=white)
    apply = augment.color_jitter(**{name: (amount, amount)}, white=white)
    y = jax.jit(apply)(KEY, x)
    expected = [changed(name, image, amount, white) for image in x.astype(float)]
    # some roundings of float32, 6e-8 of white each
    np.testing.assert_allclose(y, expected, atol=2e-6 * white)


@pytest.mark.parametrize("jit", quick([True, False], True))
def test_the_changes_come_in_an_order(jit):
    """With fixed amounts, the result is that of one of the 24 orders."""
    amounts = {"brightness": 1.3, "contrast": 0.4, "saturation": 1.8, "hue": 0.2}
    x = images(1)
    apply = augment.color_jitter(**{k: (a, a) for k, a in amounts.items()})
    apply = jax.jit(apply) if jit else apply
    seen = set()
    orders = list(itertools.permutations(amounts))
    results = []
    for order in orders:
        y = x[0].astype(float)
        for name in order:
            y = changed(name, y, amounts[name], 255)
        results.append(y)
    for seed in range(24):
        y = np.asarray(apply(jax.random.key(seed), x))[0]
        errors = np.abs(y - np.array(results)).max((1, 2, 3))
        assert errors.min() < 1e-3
        seen.add(orders[int(errors.argmin())][0])
    assert seen == set(amounts)  # each one is first in some draws


@pytest.mark.parametrize("jit", [True, False])
def test_no_strength_changes_nothing(jit):
    x = images() - 20  # not even clipped
    apply = augment.color_jitter()
    np.testing.assert_array_equal((jax.jit(apply) if jit else apply)(KEY, x), x)


def test_greys_keep_their_color():
    flat = np.repeat(images()[..., :1], 3, -1)
    moved = jax.jit(augment.color_jitter(hue=(0.37, 0.37)))(KEY, flat)
    np.testing.assert_array_equal(moved, flat)


@pytest.mark.parametrize(
    ("strength", "low", "high"),
    [(0.4, 0.6, 1.4), (1.5, 0, 2.5), ((0.2, 0.9), 0.2, 0.9)],
)
def test_factors_are_uniform(strength, low, high):
    count = 8000
    apply = jax.jit(augment.color_jitter(brightness=strength))
    x = np.ones((count, 1, 1, 1), np.float32)
    f = np.asarray(apply(KEY, x)).ravel()
    assert low <= f.min() < f.max() <= high
    width = high - low
    # five standard errors of the mean and of the variance of a uniform distribution
    assert abs(f.mean() - (low + high) / 2) < 5 * width / np.sqrt(12 * count)
    assert abs(f.var() - width**2 / 12) < 5 * width**2 / np.sqrt(180 * count)
    assert len(np.unique(f)) > 0.9 * count


def test_the_key_decides():
    apply, x = jax.jit(augment.color_jitter(**ALL)), images()
    found = [apply(jax.random.key(seed), x) for seed in (0, 0, 1)]
    one, again, other = jax.device_get(found)
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert 0 <= np.min(one) < np.max(one) <= 255
    same = apply(KEY, np.tile(x[:1], (6, 1, 1, 1)))
    assert len(np.unique(np.asarray(same).reshape(6, -1), axis=0)) == 6


def test_one_channel():
    x = images(depth=1)
    y = jax.jit(augment.color_jitter(contrast=(0.5, 0.5)))(KEY, x)
    expected = [changed("contrast", image, 0.5, 255) for image in x]
    np.testing.assert_allclose(y, expected, atol=1e-3)
    for name in ("saturation", "hue"):
        with pytest.raises(ValueError, match="needs images of 3 channels"):
            augment.color_jitter(**{name: 0.1})(KEY, x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"brightness": -0.1}, "brightness=-0.1"),
        ({"contrast": (2, 1)}, "contrast=.*smaller number first"),
        ({"saturation": float("nan")}, "saturation=nan"),
        ({"hue": 0.6}, "hue=0.6"),
        ({"hue": (-0.6, 0)}, "hue="),
        ({"white": 0}, "white=0"),
    ],
)
def test_wrong_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        augment.color_jitter(**options)


def test_integers_are_errors():
    with pytest.raises(ValueError, match="needs floats, but x is uint8"):
        augment.color_jitter()(KEY, np.ones((1, 2, 2, 3), np.uint8))
