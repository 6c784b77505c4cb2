"""Wide residual networks (docs/algorithms J: Biased's WRN-28 and WRN-16)."""

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
    check_rates,
    check_widths,
    compute_dtype,
    identity,
    image_model,
    mean_pool,
)
from hetjax.recipes import by_name


@by_name
def wide_resnet(
    *,
    depth: int = 16,
    widen: int = 8,
    image: Image = (32, 32, 3),
    dropout: float = 0.0,
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
    over more positions: [56, 56] for 224 pixels.

    As in the original, there is no dropout by default; the code of Biased's authors
    has .3, in a post-activation variant that is not implemented here. Their paper does
    not state the factor for WRN-16; 8 is that of the original paper, for SVHN.

    - dtype: compute dtype of the layers, such as `jnp.bfloat16`; parameters and
      statistics are float32, and so are the last layer and the logits.
    - remat: store only the inputs of blocks for the backward pass: less memory on
      accelerators (XLA undoes it on a CPU), about a third more work.

    Sources: Zagoruyko and Komodakis, BMVC 2016, and their wide-resnet.lua.
    """
    if depth < 10 or depth % 6 != 4:
        raise ValueError(f"depth={depth}: must be 6 n + 4, such as 16 or 28")
    check_rates(dropout)
    check_widths(widen)
    dtype = compute_dtype(dtype)
    init = nnx.initializers.variance_scaling
    residual = partial(Residual, remat=remat)

    def layers(classes: int, rngs: nnx.Rngs) -> list[Layer]:
        make = ConvLayers(init(2.0, "fan_out", "normal"), dtype, rngs)

        def active(channels: int) -> list[Layer]:
            return [make.norm(channels), jax.nn.relu]

        def block(a: int, b: int, stride: int) -> Residual:
            first = nnx.Sequential(*active(a))
            convs = [make.conv(a, b, 3, stride), *active(b)]
            if dropout:
                convs.append(nnx.Dropout(dropout, rngs=rngs))
            branch = nnx.Sequential(*convs, make.conv(b, b, 3, 1))
            if a == b:
                branch = nnx.Sequential(first, branch)
                return residual(branch, identity, before=identity, after=identity)
            skip = make.conv(a, b, 1, stride)
            return residual(branch, skip, before=first, after=identity)

        found: list[Layer] = [make.conv(image[2], 16, 3, 1)]
        channels = 16
        for stage in range(3):
            for i in range((depth - 4) // 6):
                stride = 2 if stage and not i else 1
                found.append(block(channels, channels := 16 * widen << stage, stride))
        dense_init = init(1 / 3, "fan_in", "uniform")
        last = nnx.Linear(
            channels, classes, kernel_init=dense_init, dtype=jnp.float32, rngs=rngs
        )
        return [*found, *active(channels), mean_pool, last]

    return image_model(image, layers)
