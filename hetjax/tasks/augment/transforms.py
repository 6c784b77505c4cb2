"""The type of all transforms, and the general ones: flip, normalize, chain."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.recipes import by_name
from hetjax.tasks.augment.image_checks import (
    align,
    channels,
    check_channels,
    check_images,
)

Transform = Callable[[jax.Array, jax.Array], jax.Array]
"""(key, x [B, ...]) -> x"""


@by_name
def flip(probability: float = 0.5) -> Transform:
    """Mirrors each image left to right, with this probability."""
    if not 0 <= probability <= 1:
        raise ValueError(f"probability is {probability}; it must be 0..1")

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_images("flip", x)
        mirrored = jax.random.bernoulli(key, float(probability), (len(x), 1, 1, 1))
        return jnp.where(mirrored, x[:, :, ::-1], x)

    return apply


@by_name
def normalize(
    mean: float | Sequence[float] | np.ndarray,
    std: float | Sequence[float] | np.ndarray,
) -> Transform:
    """(x - mean) / std, each [] or [C] for the last axis of x [B, ..., C].

    It takes a key, like the other transforms, and ignores it.
    """
    center, scale = channels("mean", mean), channels("std", std)
    if not (scale > 0).all():
        raise ValueError(f"std is {std}; it must be above 0")

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        del key
        check_channels("mean", center, x)
        check_channels("std", scale, x)
        return (x - align(center, x)) / align(scale, x)

    return apply


@by_name
def chain(*transforms: Transform) -> Transform:
    """Applies the transforms in this order, each with its own key."""

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        keys = jax.random.split(key, len(transforms))
        for transform, part in zip(transforms, keys, strict=True):
            x = transform(part, x)
        return x

    return apply
