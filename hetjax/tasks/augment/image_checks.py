"""Checks of arguments and inputs, shared by several transforms."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Size = int | tuple[int, int]
"""The height and the width in pixels, or one number for both."""


def size_of(size: Any) -> tuple[int, int]:
    """Return (height, width) of the argument `size`, checked."""
    pair = (size, size) if _is_int(size) else size
    fits = isinstance(pair, tuple | list) and len(pair) == 2
    if not fits or not all(_is_int(n) and n > 0 for n in pair):
        raise ValueError(
            f"size is {size!r}; it must be a number of pixels above 0, or a pair "
            "(height, width) of them"
        )
    return int(pair[0]), int(pair[1])


def white_of(white: float) -> float:
    """Return the value of white, checked."""
    if not 0 < white < float("inf"):
        raise ValueError(f"white is {white}; it must be a finite number above 0")
    return float(white)


def range_of(what: str, values: Any, low: float, high: float) -> tuple[float, float]:
    """Return a pair in ascending order within low..high, checked."""
    pair = tuple(values) if isinstance(values, tuple | list | np.ndarray) else ()
    if len(pair) != 2 or not low <= pair[0] <= pair[1] <= high:
        raise ValueError(
            f"{what} is {values}; it must be a pair (least, most) in {low:g}..{high:g}"
        )
    return float(pair[0]), float(pair[1])


def channels(what: str, values: float | Sequence[float] | np.ndarray) -> np.ndarray:
    """Return numbers [] or [C] as an array, checked."""
    array = np.asarray(values, np.float32)
    if array.ndim > 1 or not np.isfinite(array).all():
        raise ValueError(f"{what} is {values}; it must be a finite number, or [C]")
    return array


def check_channels(what: str, values: np.ndarray, x: jax.Array) -> None:
    """Raise a ValueError unless values [] or [C] fit the last axis of x."""
    if values.ndim and values.shape[0] != x.shape[-1]:
        raise ValueError(
            f"{what} has {values.shape[0]} values, but x {list(x.shape)} has "
            f"{x.shape[-1]} channels, its last axis"
        )


def check_images(what: str, x: jax.Array) -> None:
    """Raise a ValueError unless x is [B, H, W, C]."""
    if len(x.shape) != 4:
        raise ValueError(
            f"{what} needs images [B, H, W, C], but x is {list(x.shape)}; reshape the "
            "data set's x to [N, H, W, C]"
        )


def check_colors(what: str, x: jax.Array, *numbers: int) -> None:
    """Raise a ValueError unless x is [B, H, W, C] of floats, with one of these C."""
    check_images(what, x)
    if x.shape[-1] not in numbers:
        counts = " or ".join(map(str, numbers))
        raise ValueError(
            f"{what} needs images of {counts} channels, but x {list(x.shape)} has "
            f"{x.shape[-1]}"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"{what} needs floats, but x is {x.dtype}: convert it, as the tasks do"
        )


def align(values: np.ndarray, x: jax.Array) -> jax.Array:
    """Return values [] or [C] with the rank and dtype of x."""
    return jnp.asarray(values, x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
