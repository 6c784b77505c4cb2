"""VGG-16 for CIFAR, with batch normalization and dropout (docs/algorithms J)."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from hetjax.arguments import Count, checked
from hetjax.models.blocks import (
    Image,
    Layer,
    Rates,
    compute_dtype,
    flatten,
    image_model,
    max_pool,
    num_positions,
)
from hetjax.recipes import by_name

STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))  # in units of the width


@by_name
@checked
def vgg16(
    *,
    image: Image = (32, 32, 3),
    variant: Literal["crossbow", "torch"] = "crossbow",
    width: Count = 64,
    hidden: Count = 512,
    dropout: Rates = (0.3, 0.4, 0.5),
    dtype: Any = jnp.float32,
) -> Callable[..., nnx.Module]:
    """VGG-16 for CIFAR; 15,038,116 parameters for 100 classes.

        [32, 32, 3]  3x3 64, 64, max pool 2         [16, 16, 64]
                     3x3 128, 128, max pool 2       [8, 8, 128]
                     3x3 256, 256, 256, max pool 2  [4, 4, 256]
                     3x3 512, 512, 512, max pool 2  [2, 2, 512]
                     3x3 512, 512, 512, max pool 2  [1, 1, 512]
                     dropout .5, dense 512, dropout .5, dense C

    Convolutions are padded. Dropout .3 follows the first one, and .4 every other one
    that precedes no pool. Batch normalization and ReLU follow every convolution and the
    hidden layer:
    - variant="crossbow": ReLU, then normalization (epsilon .001, momentum .99);
      weights Glorot uniform, biases 0.
    - variant="torch", which we infer to be HierSGD's: normalization (epsilon .001, in
      the dense part 1e-5; momentum .9), then ReLU; convolutions normal with variance
      2 / fan_out, dense weights uniform up to 1 / sqrt(fan_in). The source's biases
      before a normalization, which cancels them, are omitted.

    The layers compute in `dtype`, such as `jnp.bfloat16`; parameters and statistics are
    float32, and so are the last layer and the logits.

    Sources: VGG.java of Koliousis et al., CROSSBOW, VLDB 2019, which follows
    cifar100vgg.py of geifmany/cifar-vgg; vgg_bn_drop.lua of szagoruyko/cifar.torch.
    """
    dtype = compute_dtype(dtype)
    positions = num_positions(image, lambda n: n // 32)
    init = nnx.initializers.variance_scaling
    if crossbow := variant == "crossbow":
        conv_init = dense_init = nnx.initializers.glorot_uniform()
    else:
        conv_init = init(2.0, "fan_out", "normal")
        dense_init = init(1 / 3, "fan_in", "uniform")

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        momentum = 0.99 if crossbow else 0.9
        norm = partial(nnx.BatchNorm, momentum=momentum, dtype=dtype, rngs=rngs)
        drop = partial(nnx.Dropout, rngs=rngs)
        dense = partial(nnx.Linear, kernel_init=dense_init, rngs=rngs)
        conv = partial(
            nnx.Conv,
            kernel_size=(3, 3),
            use_bias=crossbow,
            kernel_init=conv_init,
            dtype=dtype,
            rngs=rngs,
        )

        def normed(layer: Layer, normal: Layer) -> list[Layer]:
            relu = jax.nn.relu
            return [layer, relu, normal] if crossbow else [layer, normal, relu]

        found: list[Layer] = []
        channels = image[2]
        for stage in STAGES:
            for i, units in enumerate(stage):
                rate = dropout[1] if found else dropout[0]
                layer = conv(channels, channels := units * width)
                found += normed(layer, norm(channels, epsilon=1e-3))
                found.append(max_pool if i == len(stage) - 1 else drop(rate))
        fan_in = positions * channels
        first = dense(fan_in, hidden, use_bias=crossbow, dtype=dtype)
        return [
            *found,
            flatten,
            drop(dropout[2]),
            *normed(first, norm(hidden, epsilon=1e-3 if crossbow else 1e-5)),
            drop(dropout[2]),
            dense(hidden, classes, dtype=jnp.float32),
        ]

    return image_model(image, layers)
