"""Residual networks for CIFAR, plain and wide (docs/algorithms J: CROSSBOW, Biased)."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from hetjax.arguments import Count, Fraction, checked
from hetjax.models.blocks import (
    ConvLayers,
    Image,
    Layer,
    Residual,
    avg_pool,
    compute_dtype,
    flatten,
    identity,
    image_model,
    mean_pool,
    num_positions,
)
from hetjax.recipes import by_name

MakeBlock = Callable[[int, int, int, bool], Residual]


@by_name
@checked
def resnet(
    *,
    depth: Count = 20,
    image: Image = (32, 32, 3),
    width: Count = 16,
    shortcut: Literal["projection", "projection_everywhere", "pad"] = "projection",
    zero_gamma: bool = False,
    pool: Literal["global", "crossbow"] = "global",
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
    - dtype, remat: as in `resnet50`.

    Sources: He et al., CVPR 2016; Koliousis et al., CROSSBOW, VLDB 2019, and its
    ResNetv1ForCifar.java; swblaster/FedLUAR, model.py.
    """
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"depth={depth}: must be 6 n + 2, such as 20 or 32")
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

        stem = [make.conv(image[2], width, 3, 1), make.norm(width), jax.nn.relu]
        blocks = _three_stages(width, width, (depth - 2) // 6, block)
        last = make.last(positions * (width << 2), classes, xavier)
        if pool == "global":
            return [*stem, *blocks, mean_pool, last]
        return [*stem, *blocks, partial(avg_pool, window=7, stride=1), flatten, last]

    return image_model(image, layers)


@by_name
@checked
def wide_resnet(
    *,
    depth: Count = 16,
    widen: Count = 8,
    image: Image = (32, 32, 3),
    dropout: Fraction = 0.0,
    dtype: Any = jnp.float32,
    remat: bool = False,
) -> Callable[..., nnx.Module]:
    """A pre-activation residual network of 6 n + 4 layers, `widen` times as wide.

        [32, 32, 3]  conv 3x3 16
                     n blocks of 16 k, n of 32 k, n of 64 k    k = widen
                     BN, ReLU, mean over all positions, dense C
        block:       x -> conv 3x3(dropout(ReLU(BN(conv 3x3(ReLU(BN(x))))))) + shortcut

    10,961,370 parameters for WRN-16-8, 36,479,194 for WRN-28-10. The shortcut is x if
    the number of channels does not change, else a 1x1 convolution of ReLU(BN(x)). The
    first convolution of the second and third stage has stride 2. Convolutions have no
    biases and are normal with variance 2 / fan_out; BN has epsilon 1e-5, momentum .9;
    dense weights are uniform up to 1 / sqrt(fan_in). On larger images the last mean is
    over more positions: [56, 56] for 224 pixels. `dtype` and `remat` are as in
    `resnet50`.

    As in the original, there is no dropout by default; the code of Biased's authors
    has .3, in a post-activation variant that is not implemented here. Their paper does
    not state the factor for WRN-16; 8 is that of the original paper, for SVHN.

    Sources: Zagoruyko and Komodakis, BMVC 2016, and their wide-resnet.lua.
    """
    if depth < 10 or depth % 6 != 4:
        raise ValueError(f"depth={depth}: must be 6 n + 4, such as 16 or 28")
    dtype = compute_dtype(dtype)
    init = nnx.initializers.variance_scaling

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        make = ConvLayers(init(2.0, "fan_out", "normal"), dtype, rngs)

        def active(channels: int) -> list[Layer]:
            return [make.norm(channels), jax.nn.relu]

        def block(a: int, b: int, stride: int, start: bool) -> Residual:
            first = nnx.Sequential(*active(a))
            convs = [make.conv(a, b, 3, stride), *active(b)]
            if dropout:
                convs.append(nnx.Dropout(dropout, rngs=rngs))
            branch, skip = nnx.Sequential(*convs, make.conv(b, b, 3, 1)), identity
            if a == b:
                branch, first = nnx.Sequential(first, branch), identity
            else:
                skip = make.conv(a, b, 1, stride)
            return Residual(branch, skip, before=first, after=identity, remat=remat)

        stem = make.conv(image[2], 16, 3, 1)
        blocks = _three_stages(16, 16 * widen, (depth - 4) // 6, block)
        channels = 64 * widen
        last = make.last(channels, classes, init(1 / 3, "fan_in", "uniform"))
        return [stem, *blocks, *active(channels), mean_pool, last]

    return image_model(image, layers)


def _three_stages(
    channels: int, width: int, number: int, make_block: MakeBlock
) -> list[Layer]:
    """Return `number` blocks of `width`, of twice and of four times as many channels.

    make_block(channels before, after, stride, whether it is a stage's first one).
    """
    found: list[Layer] = []
    for stage in range(3):
        for i in range(number):
            stride = 2 if stage and not i else 1
            block = make_block(channels, channels := width << stage, stride, not i)
            found.append(block)
    return found


def _pad(x: jax.Array, channels: int, stride: int) -> jax.Array:
    """Return every `stride`-th pixel of x, padded with zeros to `channels`."""
    x = x[:, ::stride, ::stride]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, channels - x.shape[-1])))
