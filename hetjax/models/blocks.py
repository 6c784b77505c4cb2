"""What the image models share: sizes, pooling, the residual block.

An image model is a sequence of layers on images x [B, H, W, C]; its factory gives the
layers to `image_model`, which makes the builder that `hetjax.classification` calls.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

Image = tuple[int, int, int]  # height, width, channels
Layer = Callable[[jax.Array], jax.Array]


def image_model(
    image: Image, layers: Callable[[int, nnx.Rngs], list[Layer]]
) -> Callable[..., nnx.Module]:
    """A builder of the sequence `layers(classes, rngs)` for images of this shape."""
    if len(image) != 3 or min(image) < 1:
        raise ValueError(f"image={image}: give (height, width, channels)")
    size = math.prod(image)

    def build(features: int, classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        if features != size:
            raise ValueError(
                f"the data has {features} features, an image of {image} has {size}: "
                "give image=(height, width, channels) of the data to the model"
            )
        return nnx.Sequential(Images(image), *layers(classes, rngs))

    return build


class Images(nnx.Module):
    """Images [B, H, W, C] of inputs [B, H, W, C], [B, H*W*C] or, grey, [B, H, W]."""

    def __init__(self, image: Image):
        """The shape (H, W, C)."""
        self.image = tuple(image)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Another order of axes is an error, not a scrambled image."""
        allowed = [self.image, (math.prod(self.image),)]
        if self.image[2] == 1:
            allowed.append(self.image[:2])
        if x.shape[1:] not in allowed:
            raise ValueError(
                f"inputs of shape {x.shape[1:]} are no images of {self.image}"
            )
        return jnp.reshape(x, (x.shape[0], *self.image))


class Residual(nnx.Module):
    """x -> after(branch(h) + shortcut(h)) with h = before(x)."""

    def __init__(self, branch: Layer, shortcut: Layer, *, before: Layer, after: Layer):
        """Modules or functions."""
        self.before, self.after = before, after
        self.branch, self.shortcut = branch, shortcut

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] to [B, H', W', C']."""
        h = self.before(x)
        return self.after(self.branch(h) + self.shortcut(h))


def cells(image: Image, side: Callable[[int], int]) -> int:
    """How many places a feature map has whose sides are `side(n)` of the image's n."""
    height, width = side(image[0]), side(image[1])
    if min(height, width) < 1:
        raise ValueError(f"image={image} is too small for this model's layers")
    return height * width


def check_rates(*learning_rates: float) -> None:
    """Dropout rates are probabilities of dropping, below one."""
    if not all(0 <= rate < 1 for rate in learning_rates):
        raise ValueError(f"dropout={learning_rates}: rates are at least 0 and below 1")


def check_widths(*widths: int) -> None:
    """Layers have units."""
    if min(widths) < 1:
        raise ValueError(f"widths {widths}: give at least one unit in every layer")


def choose(name: str, value: str, options: tuple[str, ...]) -> None:
    """`value` of the argument `name` is one of `options`."""
    if value not in options:
        raise ValueError(f"{name}={value!r}: choose one of {options}")


def identity(x: Any) -> Any:
    """x."""
    return x


def flatten(x: jax.Array) -> jax.Array:
    """[B, ...] to [B, F]."""
    return jnp.reshape(x, (x.shape[0], -1))


def mean_pool(x: jax.Array) -> jax.Array:
    """[B, H, W, C] to the mean over all places, [B, C]."""
    return jnp.mean(x, (1, 2))


def max_pool(
    x: jax.Array, window: int = 2, stride: int | None = None, *, ceil: bool = False
) -> jax.Array:
    """Largest value in each square window, [B, H, W, C] to [B, H', W', C].

    `stride` is the window by default. H' = floor((H - window) / stride) + 1: what does
    not fill a window is left out; `ceil` rounds up and pools what there is. Windows
    that neither overlap nor leave gaps are pooled by reshape and max, which on a CPU
    is faster than reduce_window; equal largest values then share the gradient.
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
    """Mean over each square window; one cut off at the border has the mean of its rest.

    Sizes as `max_pool`'s.
    """
    pad = _padding(x, window, stride, ceil)
    return nnx.avg_pool(
        x, (window, window), (stride, stride), pad, count_include_pad=False
    )


def _padding(x: jax.Array, window: int, stride: int, ceil: bool) -> Any:
    """Of height and width, so that windows reach the last row and column."""
    return [(0, (window - n) % stride if ceil else 0) for n in x.shape[1:3]]
