"""The two models of the MagmaDNN paper (docs/algorithms J)."""

import math
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from hetjax.models.blocks import (
    Image,
    Layer,
    check_rates,
    check_widths,
    flatten,
    image_model,
    max_pool,
    num_positions,
)
from hetjax.models.mlp import mlp
from hetjax.recipes import by_name


@by_name
def magma_mlp(
    *, image: Image = (28, 28, 1), hidden: tuple[int, ...] = (512, 256)
) -> Callable[..., nnx.Module]:
    """MagmaDNN's perceptron for MNIST, 784-512-256-C with ReLU; 535,818 parameters.

    The paper says "three fully connected layers"; the widths are those of its example
    mnist_interactive.cpp. This is `mlp` for images of a fixed size.

    Source: Lopez et al., ICL-UT-20-04, 2020.
    """

    build = mlp(hidden=hidden)

    def layers(classes: int, rngs: nnx.Rngs) -> list[Any]:
        return [build(math.prod(image), classes, rngs=rngs)]

    return image_model(image, layers)


@by_name
def magma_cnn(
    *,
    image: Image = (32, 32, 3),
    width: int = 32,
    hidden: int = 128,
    dropout: float = 0.25,
) -> Callable[..., nnx.Module]:
    """MagmaDNN's network for CIFAR-10, with one convolution; 806,624 parameters.

        [32, 32, 3]  conv 5x5 32, ReLU, max pool 2   [14, 14, 32]
                     dropout .25, dense 128, ReLU, dense C

    The convolution is unpadded; only the hidden layer has biases. The paper gives the
    kinds of layers, its example cifar10_interactive.cpp their sizes. Dense weights are
    uniform up to sqrt(2 / fan_in), those of the convolution Glorot normal.

    Source: Lopez et al., ICL-UT-20-04, 2020.
    """
    check_rates(dropout)
    check_widths(width, hidden)
    positions = num_positions(image, lambda n: (n - 4) // 2)
    uniform = nnx.initializers.variance_scaling(2 / 3, "fan_in", "uniform")
    glorot = nnx.initializers.glorot_normal()

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        conv = nnx.Conv(
            image[2],
            width,
            (5, 5),
            padding="VALID",
            use_bias=False,
            kernel_init=glorot,
            rngs=rngs,
        )
        first = nnx.Linear(positions * width, hidden, kernel_init=uniform, rngs=rngs)
        last = nnx.Linear(
            hidden, classes, use_bias=False, kernel_init=uniform, rngs=rngs
        )
        drop = nnx.Dropout(dropout, rngs=rngs)
        return [conv, jax.nn.relu, max_pool, drop, flatten, first, jax.nn.relu, last]

    return image_model(image, layers)
