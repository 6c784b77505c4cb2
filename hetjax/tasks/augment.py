"""Augmentation of images: pure functions (key, x [B, H, W, C]) -> x of the same shape.

Random draws are independent per example, and the same key gives the same images. These
are for the arguments `augment` and `normalize` of `hetjax.tasks.classification`.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

Transform = Callable[[jax.Array, jax.Array], jax.Array]
"""(key, x [B, ...]) -> x"""


def pad_crop(
    padding: int = 4, *, fill: float | Sequence[float] | np.ndarray = 0.0
) -> Transform:
    """Pads by `padding` pixels on all sides, then crops to the old size at random.

    All (2 padding + 1)^2 positions are equally likely. `fill` [] or [C] is the value of
    the new pixels, on the scale of x: 0 is black before normalisation, as in Biased
    Local SGD. CROSSBOW scales images to -1..1 before it pads with 0, which is 0.5 here.
    """
    if not isinstance(padding, int) or padding < 0:
        raise ValueError(f"padding is {padding}; it must be an integer of 0 or more")
    border = _channels("fill", fill)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        _check_images("pad_crop", x)
        count, height, width, depth = x.shape
        _check_channels("fill", border, x)
        wide = (count, height + 2 * padding, width + 2 * padding, depth)
        frame = jnp.broadcast_to(_aligned(border, x), wide)
        padded = jax.lax.dynamic_update_slice(frame, x, (0, padding, padding, 0))
        offsets = jax.random.randint(key, (count, 2), 0, 2 * padding + 1)

        def crop(image: jax.Array, offset: jax.Array) -> jax.Array:
            start = offset[0], offset[1], 0
            return jax.lax.dynamic_slice(image, start, x.shape[1:])

        # the fastest of seven implementations on a CPU at B = 256, close to it at 32
        return jax.vmap(crop)(padded, offsets)

    return apply


def flip(probability: float = 0.5) -> Transform:
    """Mirrors each image, left to right, with this probability."""
    if not 0 <= probability <= 1:
        raise ValueError(f"probability is {probability}; it must be 0..1")

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        _check_images("flip", x)
        mirrored = jax.random.bernoulli(key, float(probability), (len(x), 1, 1, 1))
        return jnp.where(mirrored, x[:, :, ::-1], x)

    return apply


def normalize(
    mean: float | Sequence[float] | np.ndarray,
    std: float | Sequence[float] | np.ndarray,
) -> Transform:
    """(x - mean) / std, each [] or [C] for the last axis of x [B, ..., C].

    It takes a key, like the other transforms, and ignores it.
    """
    center, scale = _channels("mean", mean), _channels("std", std)
    if not (scale > 0).all():
        raise ValueError(f"std is {std}; it must be above 0")

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        del key
        _check_channels("mean", center, x)
        _check_channels("std", scale, x)
        return (x - _aligned(center, x)) / _aligned(scale, x)

    return apply


def chain(*transforms: Transform) -> Transform:
    """Applies the transforms in this order, each with its own key."""

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        keys = jax.random.split(key, len(transforms))
        for transform, part in zip(transforms, keys, strict=True):
            x = transform(part, x)
        return x

    return apply


def _channels(what: str, values: float | Sequence[float] | np.ndarray) -> np.ndarray:
    """Numbers [] or [C] as an array, checked."""
    array = np.asarray(values, np.float32)
    if array.ndim > 1 or not np.isfinite(array).all():
        raise ValueError(f"{what} is {values}; it must be a finite number, or [C]")
    return array


def _check_channels(what: str, values: np.ndarray, x: jax.Array) -> None:
    if values.ndim and values.shape[0] != x.shape[-1]:
        raise ValueError(
            f"{what} has {values.shape[0]} values, but x {list(x.shape)} has "
            f"{x.shape[-1]} channels, its last axis"
        )


def _check_images(what: str, x: jax.Array) -> None:
    if len(x.shape) != 4:
        raise ValueError(
            f"{what} needs images [B, H, W, C], but x is {list(x.shape)}; reshape the "
            "data set's x to [N, H, W, C]"
        )


def _aligned(values: np.ndarray, x: jax.Array) -> jax.Array:
    """Values [] or [C] with as many axes as x, and with its dtype."""
    return jnp.asarray(values, x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
