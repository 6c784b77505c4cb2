"""Residual networks for CIFAR (docs/algorithms J: CROSSBOW's, Biased's)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from hetjax.models.blocks import (
    ConvLayers,
    Image,
    Layer,
    Residual,
    avg_pool,
    check_choice,
    check_widths,
    compute_dtype,
    flatten,
    identity,
    image_model,
    mean_pool,
    num_positions,
)
from hetjax.recipes import by_name

SHORTCUTS = ("projection", "projection_everywhere", "pad")
POOLS = ("global", "crossbow")


@by_name
def resnet(
    *,
    depth: int = 20,
    image: Image = (32, 32, 3),
    width: int = 16,
    shortcut: str = "projection",
    zero_gamma: bool = False,
    pool: str = "global",
    dtype: Any = jnp.float32,
    remat: bool = False,
) -> Callable[..., nnx.Module]:
    """A residual network of 6 n + 2 layers, with basic blocks.

        [32, 32, 3]  conv 3x3 16, BN, ReLU   [32, 32, 16]
                     n blocks of 16          [32, 32, 16]
                     n blocks of 32          [16, 16, 32]
                     n blocks of 64          [8, 8, 64]
                     pool, dense C
        block:       x -> ReLU(BN(conv 3x3(ReLU(BN(conv 3x3(x))))) + shortcut(x))

    272,474 parameters at depth 20, 466,906 at depth 32; with "pad" 269,722 and 464,154.

    The first convolution of the second and third stage has stride 2. Convolutions have
    no biases; BN has epsilon 1e-5, momentum .9. Weights are Xavier as in CROSSBOW's
    code: uniform with variance 1 / fan_in.
    - shortcut: x itself if the shape does not change; otherwise "projection" is a 1x1
      convolution and BN (CROSSBOW), "pad" takes every second pixel and appends zero
      channels (option A of He et al.). "projection_everywhere" projects at the start of
      the first stage, too (as in the code of Biased's authors).
    - zero_gamma: the last BN of each block starts with scale 0 (as in the same code).
    - pool: the mean over all positions, or CROSSBOW's 7x7 means at stride 1, which
      reduce [8, 8, 64] to [2, 2, 64].
    - dtype: compute dtype of the layers, such as `jnp.bfloat16`; parameters and
      statistics are float32, and so are the last layer and the logits.
    - remat: store only the inputs of blocks for the backward pass: less memory on
      accelerators (XLA undoes it on a CPU), about a third more work.

    Sources: He et al., CVPR 2016; Koliousis et al., CROSSBOW, VLDB 2019, and its
    ResNetv1ForCifar.java; swblaster/FedLUAR, model.py.
    """
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"depth={depth}: must be 6 n + 2, such as 20 or 32")
    check_widths(width)
    check_choice("shortcut", shortcut, SHORTCUTS)
    check_choice("pool", pool, POOLS)
    dtype = compute_dtype(dtype)
    positions = 1
    if pool == "crossbow":
        positions = num_positions(image, lambda n: -(-n // 4) - 6)
    xavier = nnx.initializers.variance_scaling(1.0, "fan_in", "uniform")

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        make = ConvLayers(xavier, dtype, rngs)

        def around(a: int, b: int, stride: int, start: bool) -> Layer:
            everywhere = start and shortcut == "projection_everywhere"
            if a == b and not everywhere:
                return identity
            if shortcut == "pad":
                return partial(_pad, channels=b, stride=stride)
            return nnx.Sequential(make.conv(a, b, 1, stride), make.norm(b))

        def block(a: int, b: int, stride: int, start: bool) -> Residual:
            branch = nnx.Sequential(
                make.conv(a, b, 3, stride),
                make.norm(b),
                jax.nn.relu,
                make.conv(b, b, 3, 1),
                make.norm(b, 0.0 if zero_gamma else 1.0),
            )
            skip = around(a, b, stride, start)
            return Residual(
                branch, skip, before=identity, after=jax.nn.relu, remat=remat
            )

        found: list[Layer] = [
            make.conv(image[2], width, 3, 1),
            make.norm(width),
            jax.nn.relu,
        ]
        channels = width
        for stage in range(3):
            for i in range((depth - 2) // 6):
                stride = 2 if stage and not i else 1
                found.append(block(channels, channels := width << stage, stride, not i))
        last = nnx.Linear(
            positions * channels,
            classes,
            kernel_init=xavier,
            dtype=jnp.float32,
            rngs=rngs,
        )
        if pool == "global":
            return [*found, mean_pool, last]
        return [*found, partial(avg_pool, window=7, stride=1), flatten, last]

    return image_model(image, layers)


def _pad(x: jax.Array, channels: int, stride: int) -> jax.Array:
    """Return every `stride`-th pixel of x, padded with zeros to `channels`."""
    x = x[:, ::stride, ::stride]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, channels - x.shape[-1])))
