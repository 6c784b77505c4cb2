"""Pooling against loops and reduce_window; inputs as images; residual blocks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from hetjax import models
from hetjax.models import blocks

# (height, width, window, stride, ceil); odd sizes leave a remainder
CASES = [
    (8, 8, 2, 2, False),
    (7, 9, 2, 2, False),
    (9, 6, 3, 3, False),
    (7, 9, 2, 2, True),
    (8, 7, 3, 2, False),
    (8, 7, 3, 2, True),
    (4, 5, 3, 2, True),
    (9, 8, 4, 3, True),
    (7, 8, 7, 1, False),
]


def images(height, width):
    rng = np.random.default_rng(0)
    return rng.normal(size=(2, height, width, 3)).astype(np.float32)


def pooled(x, window, stride, ceil, reduce):
    """Pooling by loops; a window beyond the border covers what is inside."""
    up = math.ceil if ceil else math.floor
    rows, columns = (up((n - window) / stride) + 1 for n in x.shape[1:3])
    out = np.empty((len(x), rows, columns, x.shape[3]), np.float32)
    for i in range(rows):
        for j in range(columns):
            a, b = i * stride, j * stride
            out[:, i, j] = reduce(x[:, a : a + window, b : b + window], axis=(1, 2))
    return out


@pytest.mark.parametrize(("height", "width", "window", "stride", "ceil"), CASES)
def test_pooling_equals_loops(height, width, window, stride, ceil):
    x = images(height, width)
    largest = blocks.max_pool(x, window, stride, ceil=ceil)
    np.testing.assert_array_equal(largest, pooled(x, window, stride, ceil, np.max))
    mean = blocks.avg_pool(x, window, stride, ceil=ceil)
    expected = pooled(x, window, stride, ceil, np.mean)
    np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)  # order of sums


def test_max_pooling_has_the_values_and_the_gradient_of_reduce_window():
    x, weights = images(7, 8), images(3, 4)

    def oracle(x):
        shape = (1, 2, 2, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, shape, shape, "VALID")

    np.testing.assert_array_equal(blocks.max_pool(x), oracle(x))
    gradients = [
        jax.grad(lambda x, pool=pool: jnp.vdot(weights, pool(x)))(x)
        for pool in (blocks.max_pool, oracle)
    ]
    np.testing.assert_array_equal(*gradients)


def test_equal_largest_values_share_the_gradient():
    x = jnp.zeros((1, 2, 2, 1))
    gradient = jax.grad(lambda x: blocks.max_pool(x).sum())(x)
    np.testing.assert_array_equal(gradient, 0.25 * jnp.ones((1, 2, 2, 1)))


def test_inputs_of_every_layout_are_the_same_images():
    x = images(4, 5)
    same = blocks.Images((4, 5, 3))
    for layout in (x, x.reshape(2, -1)):
        np.testing.assert_array_equal(same(layout), x)
    gray = blocks.Images((4, 5, 1))
    np.testing.assert_array_equal(gray(x[..., 0]), x[..., :1])


@pytest.mark.parametrize(
    ("image", "shape"),
    [((4, 5, 3), (3, 4, 5)), ((4, 5, 3), (4, 5)), ((2, 3, 1), (3, 2))],
)
def test_other_axis_orders_are_errors(image, shape):
    with pytest.raises(ValueError, match="are not images of"):
        blocks.Images(image)(jnp.zeros((2, *shape)))


def test_a_residual_block_is_its_formula():
    block = blocks.Residual(
        branch=lambda x: 10 * x,
        shortcut=lambda x: -x,
        before=lambda x: x + 1,
        after=lambda x: x / 2,
    )
    assert block(3.0) == (10 * 4 - 4) / 2


@pytest.mark.parametrize("image", [(8, 8), (8, 8, 0), (8, 8, 1, 1)])
def test_an_image_has_three_sizes(image):
    with pytest.raises(ValueError, match="image=.*a sequence of 3 whole numbers"):
        models.lenet(image=image)


def test_a_builder_checks_the_data():
    build = blocks.image_model((8, 8, 3), lambda classes, rngs: [])
    with pytest.raises(ValueError, match="64 features.*192.*image="):
        build(64, 10, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3])
def test_convolutions_are_those_of_jax(size, stride):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 7, 8, 3)).astype(np.float32)
    pad = [(size // 2, size // 2)] * 2
    kernel = rng.normal(size=(size, size, 3, 4)).astype(np.float32)
    settings = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "precision": None}
    given = kernel, (stride, stride), pad
    expected = lax.conv_general_dilated(x, *given, **settings)
    found = blocks.convolution(x, *given, **settings)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("platform", "size", "made_of"),
    [
        ("cpu", 1, "dot_general"),
        ("cpu", 3, "convolution"),
        ("cuda", 1, "convolution"),  # XLA aborts on products' gradients there
        ("tpu", 1, "convolution"),
    ],
)
def test_only_on_a_cpu_are_convolutions_of_one_pixel_products(platform, size, made_of):
    """The programs of other platforms are lowered here, too; with the gradient."""

    def loss(x, kernel):
        given = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        return jnp.sum(blocks.convolution(x, kernel, (2, 2), "SAME", **given) ** 2)

    x = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
    kernel = jax.ShapeDtypeStruct((size, size, 3, 4), jnp.float32)
    traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(x, kernel)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    found = {op for op in ("dot_general", "convolution") if f"stablehlo.{op}" in text}
    assert found == {made_of}
