"""Network in network, for CIFAR-10 (docs/algorithms J, HierSGD's nin)."""

from collections.abc import Callable
from functools import partial

import jax
from flax import nnx

from hetjax.models.blocks import (
    Image,
    Layer,
    avg_pool,
    check_rates,
    image_model,
    max_pool,
    mean_pool,
    num_positions,
)
from hetjax.recipes import by_name

STAGES = (  # (width, kernel size) of each convolution
    ((192, 5), (160, 1), (96, 1)),
    ((192, 5), (192, 1), (192, 1)),
    ((192, 3), (192, 1)),  # and the one whose outputs are the classes
)


@by_name
def nin(
    *, image: Image = (32, 32, 3), dropout: float = 0.5
) -> Callable[..., nnx.Module]:
    """Nine convolutions and no dense layer; 968,404 parameters.

        [32, 32, 3]  5x5 192, 1x1 160, 1x1 96,  max pool 3/2, dropout .5    [16, 16, 96]
                     5x5 192, 1x1 192, 1x1 192, mean pool 3/2, dropout .5   [8, 8, 192]
                     3x3 192, 1x1 192, 1x1 C,   mean over all positions     [C]

    Each convolution, including the last one, is padded and followed by batch
    normalization (epsilon .001, momentum .9) and ReLU. Pooling rounds sizes up; the
    last mean equals the source's 8x8 pooling at its image size. Weights are normal with
    standard deviation .05. The source's convolutions have biases, omitted here since
    the normalization cancels them. We infer that HierSGD means this network.

    Source: szagoruyko/cifar.torch, nin.lua.
    """
    check_rates(dropout)
    num_positions(image, lambda n: n - 3)  # four pixels are pooled to one position
    pools = (
        partial(max_pool, window=3, stride=2, ceil=True),
        partial(avg_pool, window=3, stride=2, ceil=True),
    )

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        def block(a: int, b: int, size: int) -> list[Layer]:
            conv = nnx.Conv(
                a,
                b,
                (size, size),
                use_bias=False,
                kernel_init=nnx.initializers.normal(0.05),
                rngs=rngs,
            )
            norm = nnx.BatchNorm(b, epsilon=1e-3, momentum=0.9, rngs=rngs)
            return [conv, norm, jax.nn.relu]

        found: list[Layer] = []
        channels = image[2]
        for stage, pool in zip(STAGES, (*pools, None), strict=True):
            for width, size in stage:
                found += block(channels, width, size)
                channels = width
            if pool is not None:
                found += [pool, nnx.Dropout(dropout, rngs=rngs)]
        return [*found, *block(channels, classes, 1), mean_pool]

    return image_model(image, layers)
