"""ResNet-50 and ResNet-101 for ImageNet, with bottleneck blocks (docs/algorithms J)."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from hetjax.arguments import Count, checked
from hetjax.models.blocks import (
    Block,
    ConvLayers,
    Image,
    Images,
    check_features,
    compute_dtype,
    identity,
    max_pool,
    mean_pool,
    num_positions,
)
from hetjax.recipes import by_name

EXPANSION = 4  # ratio of a block's output channels to its inner channels
Variant = Literal["torch", "crossbow"]


class BottleneckLayers(ConvLayers):
    """Builder of a network's layers, which share initial weights, dtype and variant."""

    def __init__(self, variant: Variant, dtype: Any, zero_gamma: bool, rngs: nnx.Rngs):
        """See `resnet50`."""
        init = nnx.initializers.variance_scaling
        self.crossbow, self.zero_gamma = variant == "crossbow", zero_gamma
        kernel_init = init(2.0, "fan_out", "normal")
        self.dense_init = init(1 / 3, "fan_in", "uniform")
        if self.crossbow:
            kernel_init = self.dense_init = init(1.0, "fan_avg", "uniform")
        super().__init__(kernel_init, dtype, rngs)


class Bottleneck(Block):
    """x -> ReLU(BN(conv 1x1(...conv 3x3(...conv 1x1(x)))) + shortcut(x))."""

    def __init__(
        self,
        channels: int,
        width: int,
        stride: int,
        remat: bool,
        make: BottleneckLayers,
    ):
        """From [B, H, W, channels] to [B, H', W', 4 width]."""
        super().__init__(remat=remat)
        out = EXPANSION * width
        first, second = (stride, 1) if make.crossbow else (1, stride)
        self.conv1, self.norm1 = make.conv(channels, width, 1, first), make.norm(width)
        self.conv2, self.norm2 = make.conv(width, width, 3, second), make.norm(width)
        self.conv3 = make.conv(width, out, 1)
        self.norm3 = make.norm(out, 0.0 if make.zero_gamma else 1.0)
        shortcut: Any = identity
        if stride > 1 or channels != out:
            shortcut = make.conv(channels, out, 1, stride), make.norm(out)
            shortcut = nnx.Sequential(*shortcut)
        self.shortcut = shortcut

    def output(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] to [B, H', W', C']."""
        h = jax.nn.relu(self.norm1(self.conv1(x)))
        h = jax.nn.relu(self.norm2(self.conv2(h)))
        return jax.nn.relu(self.norm3(self.conv3(h)) + self.shortcut(x))


class BottleneckResNet(nnx.Module):
    """The network; its factories are `resnet50` and `resnet101`."""

    def __init__(
        self,
        image: Image,
        classes: int,
        blocks: tuple[int, ...],
        width: int,
        remat: bool,
        make: BottleneckLayers,
    ):
        """`blocks` per stage; the first stage has `width` inner channels."""
        self.images = Images(image)
        self.conv, self.norm = make.conv(image[2], width, 7, 2), make.norm(width)
        self.padded_pool = not make.crossbow
        channels, stages = width, []
        for stage, number in enumerate(blocks):
            found = []
            for i in range(number):
                stride = 2 if stage and not i else 1
                found.append(Bottleneck(channels, width << stage, stride, remat, make))
                channels = EXPANSION * width << stage
            stages.append(nnx.List(found))
        self.stages = nnx.List(stages)
        self.head = make.last(channels, classes, make.dense_init)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] to logits [B, classes]."""
        x = jax.nn.relu(self.norm(self.conv(self.images(x))))
        if self.padded_pool:  # after a ReLU, padding with zeros is neutral
            x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        x = max_pool(x, 3, 2)
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return self.head(mean_pool(x))


@by_name
@checked
def resnet50(
    *,
    image: Image = (224, 224, 3),
    variant: Variant = "torch",
    blocks: tuple[Count, ...] = (3, 4, 6, 3),
    width: Count = 64,
    zero_gamma: bool = False,
    dtype: Any = jnp.float32,
    remat: bool = False,
) -> Callable[..., nnx.Module]:
    """ResNet-50 of ImageNet size; 25,557,032 parameters for 1000 classes.

        [224, 224, 3]  conv 7x7 64 / 2, BN, ReLU   [112, 112, 64]
                       max pool 3x3 / 2            [56, 56, 64]
                       3 blocks of 64              [56, 56, 256]
                       4 blocks of 128             [28, 28, 512]
                       6 blocks of 256             [14, 14, 1024]
                       3 blocks of 512             [7, 7, 2048]
                       mean over all positions, dense C
        block of m:    ReLU(BN(conv 1x1 4m(a(conv 3x3 m(a(conv 1x1 m(x)))))) + s(x))
                       with a = ReLU(BN(.)); s is x, or a 1x1 convolution and BN where
                       the shape changes

    Convolutions have no biases; BN has epsilon 1e-5, momentum .9. `blocks` and `width`
    (of the first stage) allow for smaller networks of this kind.
    - variant: "torch" has its strides in the 3x3 convolutions ("v1.5"), pads the max
      pool, and initializes convolutions as normal with variance 2 / fan_out; published
      weights are of this variant. "crossbow" has its strides in the first 1x1
      convolution of a block (as the original), does not pad the max pool (112 to 55
      pixels), and initializes all weights with Xavier: uniform with variance
      2 / (fan_in + fan_out).
    - zero_gamma: the last BN of each block starts with scale 0 (Goyal et al., 2017).
    - dtype: compute dtype of the layers, such as `jnp.bfloat16`; parameters and
      statistics are float32, and so are the last layer and the logits.
    - remat: store only the inputs of blocks for the backward pass: less memory on
      accelerators (XLA undoes it on a CPU), about a third more work.

    Sources: He et al., CVPR 2016; Koliousis et al., CROSSBOW, VLDB 2019, and its
    ResNetv1.java; torchvision's resnet50.
    """
    if variant == "crossbow":  # its max pool is not padded
        num_positions(image, lambda n: (-(-n // 2) - 3) // 2 + 1)
    found = compute_dtype(dtype)

    def build(features: int, classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        check_features(features, image)
        make = BottleneckLayers(variant, found, zero_gamma, rngs)
        return BottleneckResNet(image, classes, blocks, width, remat, make)

    return build


@by_name
@checked
def resnet101(
    *,
    image: Image = (224, 224, 3),
    variant: Variant = "torch",
    blocks: tuple[Count, ...] = (3, 4, 23, 3),
    width: Count = 64,
    zero_gamma: bool = False,
    dtype: Any = jnp.float32,
    remat: bool = False,
) -> Callable[..., nnx.Module]:
    """ResNet-101 of ImageNet size; 44,549,160 parameters for 1000 classes.

    As `resnet50`, with 23 blocks in the third stage.
    """
    return resnet50(
        image=image,
        variant=variant,
        blocks=blocks,
        width=width,
        zero_gamma=zero_gamma,
        dtype=dtype,
        remat=remat,
    )
