"""RandAugment: a few random operations out of fourteen, all of the same strength."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.recipes import by_name
from hetjax.tasks.augment.color import blend, gray, mean_gray
from hetjax.tasks.augment.image_checks import (
    align,
    channels,
    check_channels,
    check_colors,
    white_of,
)
from hetjax.tasks.augment.level_tables import look_up
from hetjax.tasks.augment.transforms import Transform
from hetjax.tasks.augment.warp import METHODS, affine, warp_images

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
_GEOMETRIC = OPERATIONS.index("ShearX"), OPERATIONS.index("Rotate")
_BLENDS = OPERATIONS.index("Brightness"), OPERATIONS.index("Sharpness")
_TABLES = OPERATIONS.index("Posterize")


@by_name
def rand_augment(
    num_ops: int = 2,
    magnitude: int = 9,
    *,
    white: float = 255.0,
    fill: float | Sequence[float] | np.ndarray = 0.0,
    method: str = "nearest",
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
    if not _whole(num_ops) or num_ops < 0:
        raise ValueError(f"num_ops is {num_ops}; it must be an integer of at least 0")
    if not _whole(magnitude) or not 0 <= magnitude < BINS:
        raise ValueError(f"magnitude is {magnitude}; it must be an integer of 0..30")
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; choose one of {list(METHODS)}")
    border, white = channels("fill", fill), white_of(white)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_colors("rand_augment", x, 1, 3)
        check_channels("fill", border, x)
        for part in jax.random.split(key, num_ops):
            op_key, sign_key = jax.random.split(part)
            op = jax.random.randint(op_key, (len(x),), 0, len(OPERATIONS))
            sign = jax.random.rademacher(sign_key, (len(x),), jnp.float32)
            x = apply_operations(
                x, op, sign, magnitude, white, align(border, x), method
            )
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

    The batch takes one warp, one blend and one look-up; a vmapped `switch` would
    compute all fourteen.
    """
    u = magnitude / (BINS - 1)
    kind = op[:, None, None, None]
    y = jnp.where(kind >= _TABLES, look_up(x, op - _TABLES, u, white), x)
    is_blend = (kind >= _BLENDS[0]) & (kind <= _BLENDS[1])
    factor = (1 + 0.9 * u * sign).astype(x.dtype)[:, None, None, None]
    mixed = jnp.clip(blend(x, _other(x, kind - _BLENDS[0]), factor), 0, white)
    y = jnp.where(is_blend, mixed, y)
    moved = (kind >= _GEOMETRIC[0]) & (kind <= _GEOMETRIC[1])
    matrices = affine(op - _GEOMETRIC[0], u * sign, x.shape[1], x.shape[2])
    return jnp.where(moved, warp_images(x, matrices, fill, method), y)


def _other(x: jax.Array, kind: jax.Array) -> jax.Array:
    """Return the image to blend with x: black, gray, the mean gray, or a smooth x."""
    others = jnp.zeros_like(x), gray(x), mean_gray(x), _smooth(x)
    result = others[-1]
    for i, other in enumerate(others[:-1]):
        result = jnp.where(kind == i, other, result)
    return result


def _smooth(x: jax.Array) -> jax.Array:
    """Return the 3x3 mean with weight 5 / 13 at the center; the border is unchanged."""
    count, height, width, depth = x.shape
    if min(height, width) < 3:
        return x
    # a last axis of pixels and channels is long, which is fast on a CPU
    flat = x.reshape(count, height, width * depth)
    rows = flat[:, :-2] + flat[:, 1:-1] + flat[:, 2:]
    total = rows[..., : -2 * depth] + rows[..., depth:-depth] + rows[..., 2 * depth :]
    inner = (total + 4 * flat[:, 1:-1, depth:-depth]) / 13
    smooth = jax.lax.dynamic_update_slice(flat, inner, (0, 1, depth))
    return smooth.reshape(x.shape)


def _whole(value: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
