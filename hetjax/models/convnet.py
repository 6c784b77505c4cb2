"""A plain convolutional network for CIFAR-10 (docs/algorithms J, HierSGD's convnet)."""

from collections.abc import Callable

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
from hetjax.recipes import by_name

KERNELS = (5, 3, 3)


@by_name
def convnet(
    *,
    image: Image = (32, 32, 3),
    widths: tuple[int, int, int, int] = (64, 128, 256, 128),
    dropout: float = 0.5,
) -> Callable[..., nnx.Module]:
    """Four convolutions, dropout after each, one dense layer; 506,378 parameters.

        [32, 32, 3]  conv 5x5 64, ReLU, max pool 2, dropout .5    [14, 14, 64]
                     conv 3x3 128, ReLU, max pool 2, dropout .5   [6, 6, 128]
                     conv 3x3 256, ReLU, max pool 2, dropout .5   [2, 2, 256]
                     conv 2x2 128, ReLU, dropout .5, dense C      [1, 1, 128]

    Convolutions are unpadded. The source leaves initialization to Torch: weights
    uniform up to 1 / sqrt(fan_in); biases are 0 here. HierSGD probably means this
    network, but does not say so.

    Source: eladhoffer/ConvNet-torch, Model.lua.
    """
    check_rates(dropout)
    check_widths(*widths)
    positions = num_positions(image, lambda n: (((n - 4) // 2 - 2) // 2 - 2) // 2 - 1)
    uniform = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        def conv(a: int, b: int, size: int) -> nnx.Conv:
            kernel = (size, size)
            return nnx.Conv(
                a, b, kernel, padding="VALID", kernel_init=uniform, rngs=rngs
            )

        def drop() -> nnx.Dropout:
            return nnx.Dropout(dropout, rngs=rngs)

        sizes = (image[2], *widths)
        found: list[Layer] = []
        for a, b, size in zip(sizes[:-2], sizes[1:-1], KERNELS, strict=True):
            found += [conv(a, b, size), jax.nn.relu, max_pool, drop()]
        found += [conv(*widths[-2:], 2), jax.nn.relu, flatten, drop()]
        fan_in = positions * widths[-1]
        return [*found, nnx.Linear(fan_in, classes, kernel_init=uniform, rngs=rngs)]

    return image_model(image, layers)
