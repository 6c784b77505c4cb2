"""RandAugment: every operation against Pillow's, and what is drawn."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from quick import quick

from hetjax.tasks import augment
from hetjax.tasks.augment.rand_augment import BINS, OPERATIONS, apply_operations

KEY = jax.random.key(0)
COUNT = len(OPERATIONS)
H, W = 33, 47
AFFINE, NEAREST = Image.Transform.AFFINE, Image.Resampling.NEAREST
GEOMETRIC = OPERATIONS[1:6]
# [levels] Pillow cuts off fractions after each blend and rounds the gray it blends with
TOLERANCE = {
    "Brightness": 1.01,
    "Color": 2.01,
    "Contrast": 2.01,
    "Sharpness": 2.01,
    "AutoContrast": 1.01,
}


def photo(seed=0, depth=3):
    """A smooth image of bytes with some noise, that leaves out the darkest levels."""
    rng = np.random.default_rng(seed)
    i, j = np.meshgrid(np.linspace(0, 1, H), np.linspace(0, 1, W), indexing="ij")
    waves = [np.sin(5 * i * rng.uniform() + 7 * j + c) for c in range(depth)]
    x = 120 + 70 * np.stack(waves, -1) + rng.normal(0, 12, (H, W, depth))
    return np.clip(np.round(x), 20, 240).astype(np.uint8)


def by_pillow(name, image, magnitude, sign):
    """One operation, as Pillow has it."""
    u = magnitude / 30
    picture = Image.fromarray(image if image.shape[-1] == 3 else image[..., 0])
    moved = partial(picture.transform, picture.size, AFFINE, resample=NEAREST)
    factor = 1 + sign * 0.9 * u
    operations = {
        "Identity": lambda: picture,
        "ShearX": lambda: moved((1, sign * 0.3 * u, 0, 0, 1, 0)),
        "ShearY": lambda: moved((1, 0, 0, sign * 0.3 * u, 1, 0)),
        "TranslateX": lambda: moved((1, 0, -int(sign * 150 / 331 * u * W), 0, 1, 0)),
        "TranslateY": lambda: moved((1, 0, 0, 0, 1, -int(sign * 150 / 331 * u * H))),
        "Rotate": lambda: picture.rotate(sign * 30 * u, resample=NEAREST),
        "Brightness": lambda: ImageEnhance.Brightness(picture).enhance(factor),
        "Color": lambda: ImageEnhance.Color(picture).enhance(factor),
        "Contrast": lambda: ImageEnhance.Contrast(picture).enhance(factor),
        "Sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(factor),
        "Posterize": lambda: ImageOps.posterize(picture, 8 - round(4 * u)),
        "Solarize": lambda: ImageOps.solarize(picture, 255 * (1 - u)),
        "AutoContrast": lambda: ImageOps.autocontrast(picture),
        "Equalize": lambda: ImageOps.equalize(picture),
    }
    return np.asarray(operations[name]()).reshape(image.shape)


@partial(jax.jit, static_argnames=("magnitude", "white", "fill", "method"))
def all_operations(images, magnitude, signs, white=255.0, fill=0.0, method="nearest"):
    """Image i after operation i."""
    border = jnp.full(images.shape[-1:], fill, jnp.float32)
    op = jnp.arange(COUNT)
    return apply_operations(images, op, signs, magnitude, white, border, method)


@pytest.mark.parametrize(
    ("magnitude", "sign", "depth"),
    quick([(9, 1, 3), (30, -1, 3), (30, 1, 1)], (9, 1, 3)),
)
def test_each_operation_is_pillows(magnitude, sign, depth):
    images = [photo(i, depth) for i in range(COUNT)]
    x = np.stack(images).astype(np.float32)
    y = np.asarray(all_operations(x, magnitude, sign * jnp.ones(COUNT)))
    for name, image, result in zip(OPERATIONS, images, y, strict=True):
        expected = by_pillow(name, image, magnitude, sign).astype(float)
        if name in GEOMETRIC:
            # between two pixels, Pillow's rounding of the place may be the other
            different = (result != expected).any(-1).mean()
            assert different < 0.002, (name, different)
        else:
            error = np.abs(result - expected).max()
            assert error <= TOLERANCE.get(name, 0), (name, error)


def test_white_is_only_a_scale():
    x = np.stack([photo(i) for i in range(COUNT)]).astype(np.float32)
    y = all_operations(x, 9, jnp.ones(COUNT))
    unit = all_operations(x / 255, 9, jnp.ones(COUNT), white=1.0)
    np.testing.assert_allclose(255 * np.asarray(unit), y, atol=1e-3)


@pytest.mark.full
def test_without_jit_the_results_are_the_same():
    x = np.stack([photo(i) for i in range(16)]).astype(np.float32)
    apply = augment.rand_augment(method="bilinear")
    # roundings: a fused sum is not rounded in between
    np.testing.assert_allclose(apply(KEY, x), jax.jit(apply)(KEY, x), atol=1e-2)


@pytest.mark.full  # all operations once more
def test_fill_is_what_comes_from_outside():
    x = np.full((COUNT, H, W, 3), 100, np.float32)
    for method in ("nearest", "bilinear"):
        y = np.asarray(all_operations(x, 30, jnp.ones(COUNT), fill=7.0, method=method))
        for name, result in zip(OPERATIONS, y, strict=True):
            if name in GEOMETRIC:
                outside, kept = (np.isclose(result, value) for value in (7, 100))
                assert outside.mean() > 0.01, name
                assert kept.mean() > 0.4, name
                between = (result >= 6.99) & (result <= 100.01)
                assert between.all(), name
                assert method == "bilinear" or (outside | kept).all(), name


@pytest.mark.full  # all operations once more
def test_bilinear_moves_a_linear_image_exactly():
    """Away from the border, a plane is moved without an error."""
    i, j = np.meshgrid(np.arange(H), np.arange(W), indexing="ij")
    plane = (2.0 * i + 3.0 * j)[..., None].astype(np.float32)
    x = np.tile(plane, (COUNT, 1, 1, 1))
    y = np.asarray(all_operations(x, 9, jnp.ones(COUNT), method="bilinear"))
    shear = y[OPERATIONS.index("ShearX")][..., 0]
    expected = 2.0 * i + 3.0 * (j + 0.3 * 0.3 * (i + 0.5))
    inside = (j + 0.09 * (i + 0.5)) < W - 1
    np.testing.assert_allclose(shear[inside], expected[inside], rtol=1e-4)


def test_images_of_one_level_stay():
    """Neither a stretched contrast nor a histogram is defined."""
    x = np.full((COUNT, H, W, 3), 77, np.float32)
    y = all_operations(x, 9, jnp.ones(COUNT))
    for name in ("AutoContrast", "Equalize"):
        np.testing.assert_array_equal(y[OPERATIONS.index(name)], x[0])


def test_no_operation_changes_nothing():
    x = photo()[None] + np.float32(0.3)
    np.testing.assert_array_equal(augment.rand_augment(0)(KEY, x), x)
    y = all_operations(np.tile(x, (COUNT, 1, 1, 1)), 0, jnp.ones(COUNT))
    for name in (*OPERATIONS[:6], "Brightness"):
        np.testing.assert_array_equal(y[OPERATIONS.index(name)], x[0])


def test_all_operations_are_drawn_equally_and_with_both_signs(monkeypatch):
    drawn = []

    def recorded(x, op, sign, magnitude, *rest):
        drawn.append((np.asarray(op), np.asarray(sign), magnitude))
        return x

    module = inspect.unwrap(augment.rand_augment).__globals__
    monkeypatch.setitem(module, "apply_operations", recorded)
    count = 7000
    augment.rand_augment(3, 4)(KEY, jnp.ones((count, 1, 1, 1)))
    assert [magnitude for *_, magnitude in drawn] == [4, 4, 4]
    op, sign = (np.stack(part) for part in list(zip(*drawn, strict=True))[:2])
    pairs = np.unique(2 * op + (sign > 0), return_counts=True)[1]
    assert len(pairs) == 2 * COUNT
    p = 1 / (2 * COUNT)
    # five standard errors of a share
    np.testing.assert_allclose(
        pairs / op.size, p, atol=5 * np.sqrt(p * (1 - p) / op.size)
    )
    # one after the other, independently: 14 pairs of the same
    same = (op[0] == op[1]).mean()
    assert abs(same - 1 / COUNT) < 5 * np.sqrt(1 / COUNT / count)


@pytest.mark.full  # two of all operations
def test_the_key_decides_and_each_image_draws_for_itself():
    apply = jax.jit(augment.rand_augment())
    x = np.tile(photo()[None].astype(np.float32), (16, 1, 1, 1))
    one, again, other = (apply(jax.random.key(seed), x) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert len(np.unique(np.asarray(one).reshape(16, -1), axis=0)) > 10
    assert one.shape == x.shape
    assert one.dtype == x.dtype
    assert 0 <= np.min(one) < np.max(one) <= 255


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: augment.rand_augment(-1), "num_ops=-1"),
        (lambda: augment.rand_augment(1.5), "num_ops=1.5"),  # pyright: ignore
        (
            lambda: augment.rand_augment(2, BINS),
            "magnitude=31: pass a whole number from 0 to 30",
        ),
        (lambda: augment.rand_augment(2, -1), "magnitude=-1"),
        (lambda: augment.rand_augment(white=-1), "white=-1"),
        (lambda: augment.rand_augment(fill=np.inf), "fill=inf"),
        (lambda: augment.rand_augment(method="x"), "method='x'"),
    ],
)
def test_wrong_options_are_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "x", "message"),
    [
        ({}, np.ones((1, 2, 2, 2), np.float32), "needs images of 1 or 3 channels"),
        ({}, np.ones((1, 2, 2, 3), np.int32), "needs floats, but x is int32"),
        ({}, np.ones((2, 3), np.float32), "needs images"),
        ({"fill": (1, 2)}, np.ones((1, 2, 2, 3), np.float32), "fill has 2 values"),
    ],
)
def test_inputs_that_do_not_fit_are_errors(options, x, message):
    with pytest.raises(ValueError, match=message):
        augment.rand_augment(**options)(KEY, x)
