"""Resizing and crops: against Pillow, and which parts of an image are taken."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from quick import quick

from hetjax.tasks import augment
from hetjax.tasks.augment.crops import random_parts

KEY = jax.random.key(0)
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def boxes_of(*args):
    """Top, left, height and width of each part."""
    return jnp.concatenate(random_parts(*args), axis=1)


def images(count=4, height=20, width=28, depth=3, seed=0):
    x = np.random.default_rng(seed).uniform(0, 255, (count, height, width, depth))
    return x.astype(np.float32)


def by_pillow(image, size, method):
    """A float image, resized channel by channel in Pillow's 32-bit mode."""
    parts = [
        np.asarray(Image.fromarray(image[..., c], "F").resize(size[::-1], method))
        for c in range(image.shape[-1])
    ]
    return np.stack(parts, -1)


def coordinates(count, height, width):
    """Images whose two channels are the row and the column of each pixel."""
    grid = np.stack(np.indices((height, width), np.float32), -1)
    return np.tile(grid, (count, 1, 1, 1))


def check_resize(method, variant):
    x, size = images(), (9, 41)  # fewer rows, more columns
    y = variant(augment.resize(size, method=method))(KEY, x)
    expected = [by_pillow(image, size, FILTERS[method]) for image in x]
    # sums of float32 numbers up to 255: Pillow's weights are doubles
    np.testing.assert_allclose(y, expected, atol=5e-3)


@pytest.mark.parametrize("method", FILTERS)
def test_resize_equals_pillow(method):
    check_resize(method, jax.jit)


@pytest.mark.full  # each operation is compiled
@pytest.mark.parametrize("method", FILTERS)
def test_resize_without_jit(method):
    check_resize(method, lambda function: function)


@pytest.mark.parametrize("method", quick(FILTERS, "bilinear"))
def test_random_parts_equal_pillow(method):
    """All but the outermost pixels, which pixels around the part contribute to."""
    x, size = images(), (11, 9)
    apply = augment.random_resized_crop(size, method=method)
    y = jax.jit(apply)(KEY, x)
    boxes = np.asarray(boxes_of(KEY, x.shape[:3], AREAS, RATIOS)).astype(int)
    parts = [i[t : t + h, s : s + w] for i, (t, s, h, w) in zip(x, boxes, strict=True)]
    reach = {"bilinear": 1, "bicubic": 2}[method]  # of the kernel
    for result, part in zip(np.asarray(y), parts, strict=True):
        expected = by_pillow(part, size, FILTERS[method])
        zooms = [n / o for n, o in zip(size, part.shape, strict=False)]
        i, j = (math.ceil((reach - 0.5) * max(1, zoom)) for zoom in zooms)
        inner = slice(i, size[0] - i), slice(j, size[1] - j)
        np.testing.assert_allclose(result[inner], expected[inner], atol=5e-3)


def test_without_antialias_pixels_are_left_out():
    """Of every three pixels the one in the middle is taken."""
    x = images(height=21, width=27)
    y = jax.jit(augment.resize((7, 9), antialias=False))(KEY, x)
    # places are rounded, by 2e-6 of a pixel: neighbors differ by up to 255
    np.testing.assert_allclose(y, x[:, 1::3, 1::3], atol=1e-3)


@pytest.mark.parametrize("method", quick(FILTERS, "bicubic"))
def test_the_same_size_changes_nothing(method):
    x = images()
    y = jax.jit(augment.resize(x.shape[1:3], method=method))(KEY, x)
    np.testing.assert_array_equal(y, x)
    whole = augment.random_resized_crop(20, scale=(1, 1), ratio=(1, 1), method=method)
    np.testing.assert_array_equal(jax.jit(whole)(KEY, x[:, :, :20]), x[:, :, :20])
    for crop in (augment.center_crop, augment.random_crop):
        np.testing.assert_array_equal(jax.jit(crop((20, 28)))(KEY, x), x)


def test_bytes_stay_bytes():
    x = np.round(images()).astype(np.uint8)
    resize = jax.jit(augment.resize(9, method="bicubic"))
    y = resize(KEY, x)
    assert y.dtype == np.uint8
    floats = resize(KEY, x.astype(np.float32))
    np.testing.assert_array_equal(y, np.clip(np.round(floats), 0, 255))


def test_bicubic_overshoots_unless_white_is_given():
    x = np.zeros((1, 8, 8, 1), np.float32)
    x[:, :, 4:] = 255
    free = np.asarray(jax.jit(augment.resize(16, method="bicubic"))(KEY, x))
    assert float(free.max()) > 256
    assert float(free.min()) < -1
    clipped = jax.jit(augment.resize(16, method="bicubic", white=255))(KEY, x)
    np.testing.assert_array_equal(clipped, np.clip(free, 0, 255))
    with pytest.raises(ValueError, match="white=0"):
        augment.resize(16, white=0)


def test_center_crop_takes_the_middle():
    x = images(height=9, width=12)
    y = augment.center_crop((4, 6))(KEY, x)
    np.testing.assert_array_equal(y, x[:, 2:6, 3:9])


@pytest.mark.parametrize("jit", quick([True, False], True))
def test_random_crop_takes_all_places_equally(jit):
    count = 12_000
    apply = augment.random_crop((3, 4))
    y = np.asarray((jax.jit(apply) if jit else apply)(KEY, coordinates(count, 5, 7)))
    top, left = y[:, 0, 0].astype(int).T
    expected = coordinates(count, 3, 4) + np.stack([top, left], -1)[:, None, None]
    np.testing.assert_array_equal(y, expected)
    share = np.bincount(4 * top + left, minlength=12) / count
    # five standard errors of a share of 1/12
    np.testing.assert_allclose(share, 1 / 12, atol=5 * np.sqrt(11 / 144 / count))


def test_parts_are_inside_and_their_shapes_within_bounds():
    count, height, width = 20_000, 200, 300
    boxes = np.asarray(boxes_of(KEY, (count, height, width), AREAS, RATIOS))
    top, left, h, w = boxes.T
    assert (boxes == np.round(boxes)).all()
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + h <= height).all()
    assert (left + w <= width).all()
    share, ratio = h * w / (height * width), w / h
    # a side of at least 62 pixels is rounded by at most half a pixel
    assert share.min() >= 0.08 * (1 - 1 / 60)
    assert ratio.min() >= 3 / 4 * (1 - 1 / 60)
    assert ratio.max() <= 4 / 3 * (1 + 1 / 60)
    # small parts always fit: there A and log r are uniform
    small = share < 0.3
    assert abs(np.log(ratio[small]).mean()) < 5 * 0.166 / np.sqrt(small.sum())
    half = (share[small] < 0.19).mean()  # the middle of 0.08..0.3
    assert abs(half - 0.5) < 5 * 0.5 / np.sqrt(small.sum())
    # any place is equally likely for its size
    places = (top + 0.5) / (height - h + 1), (left + 0.5) / (width - w + 1)
    for place in places:
        assert abs(place.mean() - 0.5) < 5 * np.sqrt(1 / 12 / count)
    assert abs(np.corrcoef(*places)[0, 1]) < 5 / np.sqrt(count)


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ((30, 90), (0, 25, 30, 40)),  # too wide: 4/3 of the height, in the middle
        ((90, 30), (25, 0, 40, 30)),  # too high: w / h = 3/4
    ],
)
def test_where_no_draw_fits_the_middle_is_taken(shape, box):
    boxes = boxes_of(KEY, (5, *shape), (1.0, 1.0), RATIOS)
    np.testing.assert_array_equal(boxes, np.tile(box, (5, 1)))


@pytest.mark.full  # two programs of ten draws each
def test_the_first_draw_that_fits_is_taken():
    """It is not the last resort wherever the very first draw fails."""
    boxes = np.asarray(boxes_of(KEY, (2000, 60, 120), (0.5, 1.0), (1.0, 1.0)))
    # A > 1/2 of a square never fits, but for rounding: the last resort is 60 x 60
    np.testing.assert_array_equal(boxes[:, 2:], np.full((2000, 2), 60))
    boxes = np.asarray(boxes_of(KEY, (2000, 60, 120), (0.25, 1.0), (1.0, 1.0)))
    # a draw fits with probability .34, so none of ten does with .66^10 = 1.5 %
    resort = (boxes == [0, 30, 60, 60]).all(1).mean()
    assert 0 < resort < 0.03


CROPS = {
    "random_crop": lambda: augment.random_crop(5),
    "random_resized_crop": lambda: augment.random_resized_crop((5, 6)),
}


@pytest.mark.parametrize("name", quick(CROPS, "random_crop"))
def test_the_key_decides_and_each_image_draws_for_itself(name):
    apply = jax.jit(CROPS[name]())
    x = np.tile(images(1), (16, 1, 1, 1))
    found = [apply(jax.random.key(seed), x) for seed in (0, 0, 1)]
    one, again, other = jax.device_get(found)
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert len(np.unique(one.reshape(16, -1), axis=0)) > 12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: augment.resize(0), "size=0"),
        (lambda: augment.resize((3, 4, 5)), "size=.* a sequence of 2 whole numbers"),
        (lambda: augment.random_crop(2.5), "size=2.5"),
        (lambda: augment.center_crop((3, -1)), "size="),
        (lambda: augment.resize(3, method="nearest"), "method='nearest': choose"),
        (lambda: augment.random_resized_crop(3, method="x"), "method='x'"),
        (lambda: augment.random_resized_crop(3, scale=(0.5, 2)), "scale="),
        (lambda: augment.random_resized_crop(3, scale=(0, 1)), "scale="),
        (
            lambda: augment.random_resized_crop(3, ratio=(2, 1)),
            "ratio=.*smaller number first",
        ),
        (lambda: augment.random_resized_crop(3, ratio=0.5), "ratio=0.5"),
        (lambda: augment.random_crop(9)(KEY, images(height=8)), r"random_crop to .*8"),
        (lambda: augment.center_crop(9)(KEY, images(height=8)), "center_crop to"),
        (lambda: augment.resize(9)(KEY, np.ones((2, 3))), "resize needs images"),
    ],
)
def test_wrong_options_are_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
