"""The papers' small networks for MNIST and CIFAR-10 (docs/algorithms J)."""

import math
from collections.abc import Callable
from functools import partial

import jax
from flax import nnx

from hetjax.arguments import Count, Fraction, checked
from hetjax.models.blocks import (
    Image,
    Layer,
    avg_pool,
    flatten,
    image_model,
    max_pool,
    mean_pool,
    num_positions,
)
from hetjax.models.mlp import mlp
from hetjax.recipes import by_name

NIN_STAGES = (  # (width, kernel size) of each convolution
    ((192, 5), (160, 1), (96, 1)),
    ((192, 5), (192, 1), (192, 1)),
    ((192, 3), (192, 1)),  # and the one whose outputs are the classes
)


@by_name
@checked
def lenet(
    *,
    image: Image = (28, 28, 1),
    widths: tuple[Count, Count] = (32, 64),
    hidden: Count = 1024,
    dropout: Fraction = 0.4,
) -> Callable[..., nnx.Module]:
    """CROSSBOW's LeNet: two convolutions, two dense layers; 1,111,946 parameters.

        [28, 28, 1]  conv 5x5 32, ReLU, max pool 2   [12, 12, 32]
                     conv 5x5 64, ReLU, max pool 2   [4, 4, 64]
                     dense 1024, ReLU, dropout .4, dense C

    Convolutions are unpadded. Weights are normal with standard deviation .1, truncated
    at two deviations; biases are 0 in the first convolution, .1 elsewhere. The LeNet of
    the TensorFlow benchmarks (padded, 512 hidden units) is a different network.

    Source: Koliousis et al., CROSSBOW, VLDB 2019, and its LeNet.java.
    """
    positions = num_positions(image, lambda n: ((n - 4) // 2 - 4) // 2)

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        init = nnx.initializers.truncated_normal(0.1)  # at +-2 deviations
        tenth = nnx.initializers.constant(0.1)
        conv = partial(
            nnx.Conv,
            kernel_size=(5, 5),
            padding="VALID",
            kernel_init=init,
            rngs=rngs,
        )
        dense = partial(nnx.Linear, kernel_init=init, bias_init=tenth, rngs=rngs)
        return [
            conv(image[2], widths[0]),
            jax.nn.relu,
            max_pool,
            conv(*widths, bias_init=tenth),
            jax.nn.relu,
            max_pool,
            flatten,
            dense(positions * widths[1], hidden),
            jax.nn.relu,
            nnx.Dropout(dropout, rngs=rngs),
            dense(hidden, classes),
        ]

    return image_model(image, layers)


@by_name
@checked
def convnet(
    *,
    image: Image = (32, 32, 3),
    widths: tuple[Count, Count, Count, Count] = (64, 128, 256, 128),
    dropout: Fraction = 0.5,
) -> Callable[..., nnx.Module]:
    """HierSGD's convnet: four convolutions, one dense layer; 506,378 parameters.

        [32, 32, 3]  conv 5x5 64, ReLU, max pool 2, dropout .5    [14, 14, 64]
                     conv 3x3 128, ReLU, max pool 2, dropout .5   [6, 6, 128]
                     conv 3x3 256, ReLU, max pool 2, dropout .5   [2, 2, 256]
                     conv 2x2 128, ReLU, dropout .5, dense C      [1, 1, 128]

    Convolutions are unpadded. The source leaves initialization to Torch: weights
    uniform up to 1 / sqrt(fan_in); biases are 0 here. HierSGD probably means this
    network, but does not say so.

    Source: eladhoffer/ConvNet-torch, Model.lua.
    """
    positions = num_positions(image, lambda n: (((n - 4) // 2 - 2) // 2 - 2) // 2 - 1)

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        init = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        found: list[Layer] = []
        channels = image[2]
        for width, size in zip(widths, (5, 3, 3, 2), strict=True):
            conv = nnx.Conv(
                channels,
                channels := width,
                (size, size),
                padding="VALID",
                kernel_init=init,
                rngs=rngs,
            )
            pool = flatten if size == 2 else max_pool
            found += [conv, jax.nn.relu, pool, nnx.Dropout(dropout, rngs=rngs)]
        fan_in = positions * channels
        return [*found, nnx.Linear(fan_in, classes, kernel_init=init, rngs=rngs)]

    return image_model(image, layers)


@by_name
@checked
def magma_mlp(
    *, image: Image = (28, 28, 1), hidden: tuple[Count, ...] = (512, 256)
) -> Callable[..., nnx.Module]:
    """MagmaDNN's perceptron for MNIST, 784-512-256-C with ReLU; 535,818 parameters.

    The paper says "three fully connected layers"; the widths are those of its example
    mnist_interactive.cpp. This is `mlp` for images of a fixed size.

    Source: Lopez et al., ICL-UT-20-04, 2020.
    """
    build = mlp(hidden=hidden)
    return image_model(
        image, lambda classes, rngs: [build(math.prod(image), classes, rngs=rngs)]
    )


@by_name
@checked
def magma_cnn(
    *,
    image: Image = (32, 32, 3),
    width: Count = 32,
    hidden: Count = 128,
    dropout: Fraction = 0.25,
) -> Callable[..., nnx.Module]:
    """MagmaDNN's network for CIFAR-10, with one convolution; 806,624 parameters.

        [32, 32, 3]  conv 5x5 32, ReLU, max pool 2   [14, 14, 32]
                     dropout .25, dense 128, ReLU, dense C

    The convolution is unpadded; only the hidden layer has biases. The paper gives the
    kinds of layers, its example cifar10_interactive.cpp their sizes. Dense weights are
    uniform up to sqrt(2 / fan_in), those of the convolution Glorot normal.

    Source: Lopez et al., ICL-UT-20-04, 2020.
    """
    positions = num_positions(image, lambda n: (n - 4) // 2)

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        init = nnx.initializers.variance_scaling(2 / 3, "fan_in", "uniform")
        dense = partial(nnx.Linear, kernel_init=init, rngs=rngs)
        conv = nnx.Conv(
            image[2],
            width,
            (5, 5),
            padding="VALID",
            use_bias=False,
            kernel_init=nnx.initializers.glorot_normal(),
            rngs=rngs,
        )
        first = dense(positions * width, hidden)
        last = dense(hidden, classes, use_bias=False)
        drop = nnx.Dropout(dropout, rngs=rngs)
        return [conv, jax.nn.relu, max_pool, drop, flatten, first, jax.nn.relu, last]

    return image_model(image, layers)


@by_name
@checked
def nin(
    *, image: Image = (32, 32, 3), dropout: Fraction = 0.5
) -> Callable[..., nnx.Module]:
    """Network in network: nine convolutions, no dense layer; 968,404 parameters.

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
    num_positions(image, lambda n: n - 3)  # four pixels are pooled to one position

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        found: list[Layer] = []
        channels = image[2]
        *stages, last = NIN_STAGES
        pools = max_pool, avg_pool, None
        for stage, pool in zip((*stages, (*last, (classes, 1))), pools, strict=True):
            for width, size in stage:
                conv = nnx.Conv(
                    channels,
                    channels := width,
                    (size, size),
                    use_bias=False,
                    kernel_init=nnx.initializers.normal(0.05),
                    rngs=rngs,
                )
                norm = nnx.BatchNorm(width, epsilon=1e-3, momentum=0.9, rngs=rngs)
                found += [conv, norm, jax.nn.relu]
            if pool is not None:
                pooled = partial(pool, window=3, stride=2, ceil=True)
                found += [pooled, nnx.Dropout(dropout, rngs=rngs)]
        return [*found, mean_pool]

    return image_model(image, layers)
