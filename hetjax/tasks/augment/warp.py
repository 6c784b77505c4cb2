"""RandAugment's affine warps: shears, translations and rotations by one gather."""

import jax
import jax.numpy as jnp
import numpy as np

METHODS = ("nearest", "bilinear")
_SHEAR = 0.3  # pixels per pixel
_TRANSLATE = 150 / 331  # of a side
_ROTATE = np.deg2rad(30)


def affine(op: jax.Array, level: jax.Array, height: int, width: int) -> jax.Array:
    """Return [B, 2, 3], the inverse maps (row, column, 1) -> (row, column) [pixels].

    `op` [B]: 0 and 1 shear along the columns and the rows, 2 and 3 translate along
    them, 4 rotates about the center; other numbers are the identity. `level` [B] in
    -1..1. Coordinates refer to pixel centers: the first pixel is at (1/2, 1/2).
    """

    def used(number: int, value: jax.Array) -> jax.Array:
        return jnp.where(op == number, value, 0.0)

    angle = used(4, _ROTATE * level)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    middle = height / 2, width / 2
    # whole pixels, towards zero
    down = used(3, jnp.trunc(_TRANSLATE * height * level))
    right = used(2, jnp.trunc(_TRANSLATE * width * level))
    rows = (
        cos,
        sin + used(1, _SHEAR * level),
        (1 - cos) * middle[0] - sin * middle[1] - down,
    )
    columns = (
        -sin + used(0, _SHEAR * level),
        cos,
        sin * middle[0] + (1 - cos) * middle[1] - right,
    )
    return jnp.stack([jnp.stack(rows, -1), jnp.stack(columns, -1)], 1)


def warp_images(
    x: jax.Array, matrices: jax.Array, fill: jax.Array, method: str
) -> jax.Array:
    """Return y(p) = x(M p), and `fill` where M p is outside of x.

    "bilinear" mixes the four neighbors; those outside have the value `fill`.
    """
    height, width = x.shape[1:3]
    i = jnp.arange(height, dtype=jnp.float32)[None, :, None] + 0.5
    j = jnp.arange(width, dtype=jnp.float32)[None, None, :] + 0.5
    m = matrices[:, :, :, None, None]
    row, column = (m[:, a, 0] * i + m[:, a, 1] * j + m[:, a, 2] for a in (0, 1))
    if method == "nearest":
        return _take(x, jnp.floor(row), jnp.floor(column), fill)
    row, column = row - 0.5, column - 0.5
    top, left = jnp.floor(row), jnp.floor(column)
    below, beside = ((row - top)[..., None], (column - left)[..., None])
    total = jnp.zeros((), x.dtype)
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        weight = (below if down else 1 - below) * (beside if right else 1 - beside)
        part = _take(x, top + down, left + right, fill)
        total = total + weight.astype(x.dtype) * part
    return total


def _take(
    x: jax.Array, row: jax.Array, column: jax.Array, fill: jax.Array
) -> jax.Array:
    """Return x at integer rows and columns [B, H, W], `fill` outside."""
    count, height, width, depth = x.shape
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    index = jnp.where(inside, row * width + column, 0).astype(jnp.int32)
    flat = x.reshape(count, height * width, depth)
    pixels = jax.vmap(lambda image, at: image[at])(flat, index)
    return jnp.where(inside[..., None], pixels, fill)
