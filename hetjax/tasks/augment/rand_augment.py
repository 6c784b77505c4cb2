"""RandAugment: a few random operations out of fourteen, all of the same strength."""

from functools import partial
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

from hetjax.arguments import Bounds, Positive, Whole, checked
from hetjax.recipes import by_name
from hetjax.tasks.augment.transforms import (
    Numbers,
    Transform,
    blend,
    check_colors,
    gray,
    mean_gray,
    per_channel,
)

BINS = 31  # magnitudes 0..30
OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
_WARPS, _BLENDS, _TABLES = map(OPERATIONS.index, ("ShearX", "Brightness", "Posterize"))
_ORDERS = {"nearest": 0, "bilinear": 1}  # of the interpolation
_TOP = 255  # the highest of the levels to which the last four operations round


@by_name
@checked
def rand_augment(
    num_ops: Whole = 2,
    magnitude: Annotated[int, Bounds(0, BINS - 1)] = 9,
    *,
    white: Positive = 255.0,
    fill: Numbers = 0.0,
    method: Literal["nearest", "bilinear"] = "nearest",
) -> Transform:
    """Applies `num_ops` operations to each image, each drawn from fourteen.

    All are equally likely, and may repeat. Their strength grows with `magnitude`,
    0..30, here u = magnitude / 30; the sign of those marked +- is random, too.

        Identity
        ShearX, ShearY          +-.3 u pixels per pixel, about the top left corner
        TranslateX, TranslateY  +-150/331 u of the width, of the height: whole pixels
        Rotate                  +-30 u degrees, about the center
        Brightness              factor f = 1 +- .9 u: f x
        Color, Contrast         f = 1 +- .9 u: towards gray(x), the mean of gray(x)
        Sharpness               f = 1 +- .9 u: towards the 3x3 mean with weight 5 at
                                the center, except at the border
        Posterize               the upper 8 - round(4 u) bits of 8
        Solarize                white - x where x >= (1 - u) white
        AutoContrast            each channel stretched to 0..white
        Equalize                each channel with a flat histogram, as in Pillow

    `fill` [] or [C] is the value of pixels from outside the image, `method` the
    interpolation of moved pixels ("nearest" or "bilinear"), `white` the value of white
    on x's scale: 255 for bytes, 1 for data in [0, 1]. x: [B, H, W, C] with C = 1 or 3.
    Blends are f x + (1 - f) other, clipped to 0..white. The last four round x to 256
    levels; the blends do not round, so that results are within two levels of Pillow's.

    Cubuk et al., RandAugment (2020); the table is that of torchvision.
    """
    border = per_channel("fill", fill)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_colors("rand_augment", x, (1, 3))
        color = jnp.broadcast_to(border(x).ravel(), x.shape[-1:])
        for part in jax.random.split(key, num_ops):
            op_key, sign_key = jax.random.split(part)
            op = jax.random.randint(op_key, (len(x),), 0, len(OPERATIONS))
            sign = jax.random.rademacher(sign_key, (len(x),), jnp.float32)
            x = apply_operations(x, op, sign, magnitude, white, color, method)
        return x

    return apply


def apply_operations(
    x: jax.Array,
    op: jax.Array,
    sign: jax.Array,
    magnitude: int,
    white: float,
    fill: jax.Array,
    method: str,
) -> jax.Array:
    """Apply to each image the operation `op` [B] of `OPERATIONS`, with `sign` [B].

    An image takes one warp, one blend and one table, of which one is used; a vmapped
    `switch` would compute all fourteen.
    """
    u = magnitude / (BINS - 1)

    def one(image: jax.Array, op: jax.Array, sign: jax.Array) -> jax.Array:
        moved = _warped(image, op - _WARPS, u * sign, fill, _ORDERS[method])
        others = jnp.zeros_like(image), gray(image), mean_gray(image), _smooth(image)
        others = [jnp.broadcast_to(other, image.shape) for other in others]
        other = jax.lax.select_n(jnp.clip(op - _BLENDS, 0, 3), *others)
        factor = (1 + 0.9 * u * sign).astype(image.dtype)
        mixed = jnp.clip(blend(image, other, factor), 0, white)
        mapped = _mapped(image, op - _TABLES, u, white)
        starts = jnp.array([_WARPS, _BLENDS, _TABLES])
        return jax.lax.select_n((op >= starts).sum(), image, moved, mixed, mapped)

    return jax.vmap(one)(x, op, sign)


def _warped(
    image: jax.Array, op: jax.Array, level: jax.Array, fill: jax.Array, order: int
) -> jax.Array:
    """Shear along columns or rows, translate along them, or rotate (op 0 to 4)."""
    height, width, _ = image.shape
    shear, angle = 0.3 * level, np.deg2rad(30) * level
    right, down = (jnp.trunc(150 / 331 * side * level) for side in (width, height))
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    from_row = (1 - cos) * height / 2 - sin * width / 2
    from_column = sin * height / 2 + (1 - cos) * width / 2
    a, b, c, d, e, f = jnp.array(
        [  # row <- a row + b column + c, column <- d row + e column + f
            [1, 0, 0, shear, 1, 0],
            [1, shear, 0, 0, 1, 0],
            [1, 0, 0, 0, 1, -right],
            [1, 0, -down, 0, 1, 0],
            [cos, sin, from_row, -sin, cos, from_column],
        ]
    )[op]
    # the first pixel's center is at (1/2, 1/2)
    i, j = jnp.arange(height)[:, None] + 0.5, jnp.arange(width)[None] + 0.5
    at = [a * i + b * j + c - 0.5, d * i + e * j + f - 0.5]
    outside = fill[None, None]  # map_coordinates takes one number for all channels
    warp = partial(map_coordinates, coordinates=at, order=order)
    return jax.vmap(warp, in_axes=2, out_axes=2)(image - outside) + outside


def _smooth(image: jax.Array) -> jax.Array:
    """Return the 3x3 mean with weight 5 / 13 at the center; the border is unchanged."""
    if min(image.shape[:2]) < 3:
        return image
    rows = image[:-2] + image[1:-1] + image[2:]
    total = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    return image.at[1:-1, 1:-1].set((total + 4 * image[1:-1, 1:-1]) / 13)


def _mapped(image: jax.Array, op: jax.Array, u: float, white: float) -> jax.Array:
    """Posterize, solarize, stretch or equalize (op 0 to 3), rounded to 256 levels."""
    old = jnp.arange(_TOP + 1)
    lost = round(4 * u)  # bits
    fixed = jnp.stack(
        [(old >> lost) << lost, jnp.where(old >= (1 - u) * _TOP, _TOP - old, old)]
    )

    def channel(x: jax.Array) -> jax.Array:
        # .501: a blend's last bit depends on fusion, and must not decide on halves
        level = jnp.clip(x, 0, white).astype(jnp.float32) * (_TOP / white)
        level = jnp.floor(level + 0.501).astype(jnp.int32)
        histogram = jnp.bincount(level.ravel(), length=_TOP + 1)
        tables = jnp.stack([*fixed, _stretched(histogram), _equalized(histogram)])
        return tables[op][level] * (white / _TOP)

    return jax.vmap(channel, in_axes=2, out_axes=2)(image).astype(image.dtype)


def _stretched(histogram: jax.Array) -> jax.Array:
    """Map the lowest level that occurs to 0, the highest to 255; a single one stays."""
    old, occurs = jnp.arange(_TOP + 1), histogram > 0
    lowest, highest = jnp.argmax(occurs), _TOP - jnp.argmax(occurs[::-1])
    span = highest - lowest
    new = jnp.clip((old - lowest) * _TOP // jnp.maximum(span, 1), 0, _TOP)
    return jnp.where(span > 0, new, old)


def _equalized(histogram: jax.Array) -> jax.Array:
    """Return for each level the share of pixels below it, quantized as in Pillow.

    s = (pixels - pixels of the highest level) // 255
    level i -> min(255, (s // 2 + pixels below i) // s), and i itself if s = 0
    """
    highest = _TOP - jnp.argmax(histogram[::-1] > 0)
    step = (histogram.sum() - histogram[highest]) // _TOP
    below = jnp.cumsum(histogram) - histogram
    new = jnp.minimum((step // 2 + below) // jnp.maximum(step, 1), _TOP)
    return jnp.where(step > 0, new, jnp.arange(_TOP + 1))
