"""Shared parts of the image models: sizes, pooling, the residual block.

An image model is a sequence of layers on images x [B, H, W, C]; its factory passes the
layers to `image_model`, which returns the builder that `hetjax.classification` calls.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import nnx

from hetjax.arguments import Count, Fraction

Image = Annotated[tuple[Count, Count, Count], "(height, width, channels)"]
Rates = Annotated[tuple[Fraction, Fraction, Fraction], "one for each of three places"]
Layer = Callable[[jax.Array], jax.Array]


def image_model(
    image: Image, layers: Callable[[int, nnx.Rngs], list[Layer]]
) -> Callable[..., nnx.Module]:
    """Return a builder of the sequence `layers(classes, rngs)` for `image`."""

    def build(features: int, classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        check_features(features, image)
        return nnx.Sequential(Images(image), *layers(classes, rngs))

    return build


def check_features(features: int, image: Image) -> None:
    """Raise a ValueError unless the data's inputs have the size of these images."""
    if features != math.prod(image):
        raise ValueError(
            f"the data has {features} features, but an image of {image} has "
            f"{math.prod(image)}: pass the data's image=(height, width, channels) to "
            "the model"
        )


class Images(nnx.Module):
    """Reshapes [B, H, W, C], [B, H*W*C] or, if gray, [B, H, W] to [B, H, W, C]."""

    def __init__(self, image: Image):
        """The shape (H, W, C)."""
        self.image = tuple(image)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the images; another order of axes is an error."""
        allowed = [self.image, (math.prod(self.image),)]
        if self.image[2] == 1:
            allowed.append(self.image[:2])
        if x.shape[1:] not in allowed:
            raise ValueError(
                f"inputs of shape {x.shape[1:]} are not images of {self.image}"
            )
        return jnp.reshape(x, (x.shape[0], *self.image))


class Block(nnx.Module):
    """A part of a model whose activations may be recomputed, to save memory.

    With `remat`, only the block's input is stored for the backward pass, which
    recomputes the activations. Batch statistics are updated once, and dropout draws are
    repeated. In evaluation nothing is stored.
    """

    def __init__(self, *, remat: bool):
        """`deterministic` is the attribute that `.eval()` and `.train()` set."""
        self.remat, self.deterministic = remat, False

    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Return the block's output."""
        # a module with remat could not be used inside another program's trace
        if self.remat and not self.deterministic:
            return nnx.remat(type(self).output)(self, *inputs)
        return self.output(*inputs)

    def output(self, *inputs: jax.Array) -> jax.Array:
        """Return the block's output, without recomputation."""
        raise NotImplementedError


class Residual(Block):
    """x -> after(branch(h) + shortcut(h)) with h = before(x)."""

    def __init__(
        self,
        branch: Layer,
        shortcut: Layer,
        *,
        before: Layer,
        after: Layer,
        remat: bool = False,
    ):
        """Modules or functions."""
        super().__init__(remat=remat)
        self.before, self.after = before, after
        self.branch, self.shortcut = branch, shortcut

    def output(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] to [B, H', W', C']."""
        h = self.before(x)
        return self.after(self.branch(h) + self.shortcut(h))


class ConvLayers:
    """Builder of the layers of a residual network, which share its settings."""

    def __init__(self, kernel_init: Any, dtype: Any, rngs: nnx.Rngs):
        """`kernel_init` is the convolutions' initializer."""
        self.rngs = rngs
        self._conv = partial(
            nnx.Conv,
            use_bias=False,
            kernel_init=kernel_init,
            dtype=dtype,
            conv_general_dilated=convolution,
            rngs=rngs,
        )
        self._norm = partial(
            nnx.BatchNorm, epsilon=1e-5, momentum=0.9, dtype=dtype, rngs=rngs
        )

    def conv(self, a: int, b: int, size: int, stride: int = 1) -> nnx.Conv:
        """Return a padded convolution without biases, to [B, H', W', b]."""
        return self._conv(a, b, (size, size), stride, padding=size // 2)

    def norm(self, channels: int, scale: float = 1.0) -> nnx.BatchNorm:
        """Return a batch normalization with this initial scale."""
        return self._norm(channels, scale_init=nnx.initializers.constant(scale))

    def last(self, a: int, b: int, init: Any) -> nnx.Linear:
        """Return the layer of the logits, in float32."""
        return nnx.Linear(a, b, kernel_init=init, dtype=jnp.float32, rngs=self.rngs)


def compute_dtype(dtype: Any) -> Any:
    """Return the floating-point dtype of a model's layers; a ValueError for others."""
    try:
        found = jnp.dtype(jnp.float32 if dtype is None else dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise ValueError(
            f"dtype={dtype!r}: pass a floating-point dtype, such as jnp.bfloat16"
        )
    return found


def convolution(
    x: jax.Array, kernel: jax.Array, strides: Any, padding: Any, **settings: Any
) -> jax.Array:
    """Convolve, for `nnx.Conv`; on a CPU, a 1x1 convolution is a matrix product.

    This is up to twice as fast on a CPU. On a GPU, XLA 0.11.2 aborts the process while
    it searches for tiles of the strided product's gradient. x [B, H, W, C], kernel
    [h, w, C, D].
    """

    def by_window(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, **settings)

    def by_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
        x = x[:, :: strides[0], :: strides[1]]
        chosen = ("precision", "preferred_element_type")
        given = {name: settings[name] for name in chosen if name in settings}
        return jax.lax.dot_general(x, kernel[0, 0], (((3,), (0,)), ((), ())), **given)

    if kernel.shape[:2] != (1, 1):
        return by_window(x, kernel)
    return jax.lax.platform_dependent(x, kernel, cpu=by_product, default=by_window)


def num_positions(image: Image, side: Callable[[int], int]) -> int:
    """Return the number of positions in a feature map [side(height), side(width)]."""
    height, width = side(image[0]), side(image[1])
    if min(height, width) < 1:
        raise ValueError(
            f"image={image} is too small for this model's layers: resize the images"
        )
    return height * width


def identity(x: Any) -> Any:
    """Return x."""
    return x


def flatten(x: jax.Array) -> jax.Array:
    """Reshape [B, ...] to [B, F]."""
    return jnp.reshape(x, (x.shape[0], -1))


def mean_pool(x: jax.Array) -> jax.Array:
    """Return the mean over all positions, [B, H, W, C] to [B, C]."""
    return jnp.mean(x, (1, 2))


def max_pool(
    x: jax.Array, window: int = 2, stride: int | None = None, *, ceil: bool = False
) -> jax.Array:
    """Return the maximum of each square window, [B, H, W, C] to [B, H', W', C].

    `stride` is the window size by default. H' = floor((H - window) / stride) + 1:
    pixels that do not fill a window are left out; `ceil` rounds up instead, and pools
    them in a smaller window. Windows that neither overlap nor leave gaps are pooled by
    reshape and max, which is faster on a CPU than reduce_window; equal maxima then
    share the gradient.
    """
    stride = stride or window
    if ceil or stride != window:
        pad = _padding(x, window, stride, ceil)
        return nnx.max_pool(x, (window, window), (stride, stride), pad)
    batch, height, width, channels = x.shape
    h, w = height // window, width // window
    x = x[:, : h * window, : w * window]
    return jnp.max(jnp.reshape(x, (batch, h, window, w, window, channels)), (2, 4))


def avg_pool(
    x: jax.Array, window: int, stride: int, *, ceil: bool = False
) -> jax.Array:
    """Return the mean of each square window, only over pixels inside the image.

    Sizes are as in `max_pool`.
    """
    pad = _padding(x, window, stride, ceil)
    return nnx.avg_pool(
        x, (window, window), (stride, stride), pad, count_include_pad=False
    )


def _padding(x: jax.Array, window: int, stride: int, ceil: bool) -> Any:
    """Return the padding with which windows reach the last row and column."""
    return [(0, (window - n) % stride if ceil else 0) for n in x.shape[1:3]]
