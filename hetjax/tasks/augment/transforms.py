"""Flips, colors and normalization, by dm-pix; checks that all transforms share."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import dm_pix
import jax
import jax.numpy as jnp
import numpy as np

from hetjax.arguments import Bounds, NotNegative, Positive, Share, checked
from hetjax.recipes import by_name

Transform = Callable[[jax.Array, jax.Array], jax.Array]
"""(key, x [B, ...]) -> x"""
Numbers = float | Sequence[float]
Turn = Annotated[float, Bounds(-0.5, 0.5)]
HalfTurn = Annotated[float, Bounds(0, 0.5)]


@by_name
@checked
def chain(*transforms: Transform) -> Transform:
    """Applies the transforms in this order, each with its own key."""

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        keys = jax.random.split(key, len(transforms))
        for transform, part in zip(transforms, keys, strict=True):
            x = transform(part, x)
        return x

    return apply


@by_name
@checked
def normalize(mean: Numbers, std: Positive | Sequence[Positive]) -> Transform:
    """(x - mean) / std, each [] or [C] for the last axis of x [B, ..., C].

    It takes a key, like the other transforms, and ignores it.
    """
    center, scale = per_channel("mean", mean), per_channel("std", std)
    return lambda key, x: (x - center(x)) / scale(x)


@by_name
@checked
def flip(probability: Share = 0.5) -> Transform:
    """Mirrors each image left to right, with this probability."""

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_images("flip", x)
        chosen = jax.random.bernoulli(key, float(probability), (len(x), 1, 1, 1))
        return jnp.where(chosen, x[:, :, ::-1], x)

    return apply


@by_name
@checked
def color_jitter(
    *,
    brightness: NotNegative | tuple[NotNegative, NotNegative] = 0.0,
    contrast: NotNegative | tuple[NotNegative, NotNegative] = 0.0,
    saturation: NotNegative | tuple[NotNegative, NotNegative] = 0.0,
    hue: HalfTurn | tuple[Turn, Turn] = 0.0,
    white: Positive = 255.0,
) -> Transform:
    """Changes brightness, contrast, saturation and hue by random amounts, in any order.

        brightness:  x <- f x                        f ~ U(max(0, 1 - b), 1 + b)
        contrast:    x <- f x + (1 - f) mean gray(x)
        saturation:  x <- f x + (1 - f) gray(x)
        hue:         rotated by t of a full turn     t ~ U(-h, h),  h <= 1/2

    with gray = .2989 R + .587 G + .114 B, and each result clipped to 0..white. `white`
    is the value of white on x's scale: 255 for bytes, 1 for data in [0, 1]. A pair
    specifies the range of f, or of t, directly; a change whose argument is 0 is left
    out. x: [B, H, W, 3], or with one channel if saturation and hue are 0. Amounts are
    drawn for each image, the order of the changes once for the batch, so that each
    change is computed once. The definitions are torchvision's.
    """
    changes: dict[str, tuple[tuple[float, float], Callable[..., Any]]] = {
        "brightness": (_factors(brightness), lambda x, f: f * x),
        "contrast": (_factors(contrast), lambda x, f: blend(x, mean_gray(x), f)),
        "saturation": (_factors(saturation), lambda x, f: blend(x, gray(x), f)),
        "hue": (_range_of(hue, 0.0), lambda x, t: dm_pix.adjust_hue(x, t[..., 0])),
    }
    for name, (pair, _) in changes.items():
        check_ascending(name, pair)
    off = {"hue": (0.0, 0.0)}  # of the others: a factor of 1
    used = [n for n, (pair, _) in changes.items() if pair != off.get(n, (1.0, 1.0))]
    depths = (3,) if {"saturation", "hue"} & set(used) else (1, 3)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_colors("color_jitter", x, depths)
        amount_key, order_key = jax.random.split(key)
        drawn = jax.random.uniform(amount_key, (len(used), len(x), 1, 1, 1), x.dtype)

        def changed(name: str, u: jax.Array) -> Callable[[jax.Array], jax.Array]:
            (low, high), change = changes[name]
            return lambda x: jnp.clip(change(x, low + (high - low) * u), 0, white)

        parts = [changed(name, u) for name, u in zip(used, drawn, strict=True)]
        order = jax.random.permutation(order_key, len(used))
        for i in range(len(used)):
            x = jax.lax.switch(order[i], parts, x)
        return x

    return apply


def blend(x: jax.Array, other: jax.Array, factor: jax.Array) -> jax.Array:
    """Return factor x + (1 - factor) other."""
    return factor * x + (1 - factor) * other


def gray(x: jax.Array) -> jax.Array:
    """Return the luma [..., 1] of x [..., 1 or 3]."""
    return x if x.shape[-1] == 1 else jnp.asarray(dm_pix.rgb_to_grayscale(x))


def mean_gray(x: jax.Array) -> jax.Array:
    """Return the mean luma of each image [..., H, W, C], [..., 1, 1, 1]."""
    return gray(x.mean((-3, -2), keepdims=True))


def check_images(what: str, x: jax.Array, least: tuple[int, int] = (0, 0)) -> None:
    """Raise a ValueError unless x is [B, H, W, C], with at least this (H, W)."""
    if x.ndim != 4:
        raise ValueError(
            f"{what} needs images [B, H, W, C], but x is {list(x.shape)}; reshape the "
            "data set's x to [N, H, W, C]"
        )
    if x.shape[1] < least[0] or x.shape[2] < least[1]:
        raise ValueError(
            f"{what} to {list(least)} pixels needs images of at least that size, but x "
            f"is {list(x.shape)}: use pad_crop, or resize first"
        )


def check_colors(what: str, x: jax.Array, depths: tuple[int, ...]) -> None:
    """Raise a ValueError unless x is [B, H, W, C] of floats, with one of these C."""
    check_images(what, x)
    if x.shape[-1] not in depths:
        raise ValueError(
            f"{what} needs images of {' or '.join(map(str, depths))} channels, but x "
            f"{list(x.shape)} has {x.shape[-1]}"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"{what} needs floats, but x is {x.dtype}: convert it, as the tasks do"
        )


def check_ascending(what: str, pair: tuple[float, float]) -> None:
    """Raise a ValueError unless this is a pair (least, most)."""
    if pair[0] > pair[1]:
        raise ValueError(f"{what}={pair}: pass the smaller number first")


def per_channel(what: str, values: Numbers) -> Callable[[jax.Array], jax.Array]:
    """Return a function of x [..., C]: numbers [] or [C] with its rank and dtype."""
    array = np.asarray(values, np.float32)

    def fitted(x: jax.Array) -> jax.Array:
        if array.ndim and len(array) != x.shape[-1]:
            raise ValueError(
                f"{what} has {len(array)} values, but x {list(x.shape)} has "
                f"{x.shape[-1]} channels, its last axis"
            )
        return jnp.asarray(array, x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))

    return fitted


def _range_of(value: Any, middle: float) -> tuple[float, float]:
    """Return the pair that is given, or that of a strength around `middle`."""
    return value if isinstance(value, tuple) else (middle - value, middle + value)


def _factors(value: Any) -> tuple[float, float]:
    low, high = _range_of(value, 1.0)
    return max(0.0, low), high
