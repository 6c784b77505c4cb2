"""Crops and resizing of images, by dm-pix and `jax.image`."""

from functools import partial
from typing import Any, Literal

import dm_pix
import jax
import jax.numpy as jnp
import numpy as np

from hetjax.arguments import Count, Positive, PositiveShare, Whole, checked
from hetjax.recipes import by_name
from hetjax.tasks.augment.transforms import (
    Numbers,
    Transform,
    check_ascending,
    check_images,
    per_channel,
)

Size = Count | tuple[Count, Count]
Method = Literal["bilinear", "bicubic"]
_ATTEMPTS = 10  # draws of random_resized_crop, as in Inception and torchvision


@by_name
@checked
def pad_crop(padding: Whole = 4, *, fill: Numbers = 0.0) -> Transform:
    """Pads by `padding` pixels on all sides, then crops to the original size at random.

    All (2 padding + 1)^2 positions are equally likely. `fill` [] or [C] is the value of
    the new pixels, on the scale of x: 0 is black before normalization, as in Biased
    Local SGD. CROSSBOW scales images to -1..1 before it pads with 0, which is 0.5 here.
    """
    border = per_channel("fill", fill)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_images("pad_crop", x)
        count, height, width, depth = x.shape
        wide = count, height + 2 * padding, width + 2 * padding, depth
        inner = slice(padding, padding + height), slice(padding, padding + width)
        padded = jnp.broadcast_to(border(x), wide).at[:, *inner].set(x)
        return _random_crops(key, padded, (height, width))

    return apply


@by_name
@checked
def random_crop(size: Size) -> Transform:
    """Crops to `size`, a number or (height, width), at a random position.

    All (H - h + 1) (W - w + 1) positions are equally likely. x: [B, H, W, C] ->
    [B, h, w, C]. A ValueError if the images are smaller.
    """
    shape = _size_of(size)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_images("random_crop", x, least=shape)
        return _random_crops(key, x, shape)

    return apply


@by_name
@checked
def center_crop(size: Size) -> Transform:
    """Crops to the central `size` pixels, a number or (height, width).

    It ignores its key. x: [B, H, W, C] -> [B, h, w, C], from row (H - h) // 2 and
    column (W - w) // 2 on. A ValueError if the images are smaller.
    """
    height, width = shape = _size_of(size)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_images("center_crop", x, least=shape)
        top, left = (x.shape[1] - height) // 2, (x.shape[2] - width) // 2
        return x[:, top : top + height, left : left + width]

    return apply


@by_name
@checked
def resize(
    size: Size,
    *,
    method: Method = "bilinear",
    antialias: bool = True,
    white: Positive | None = None,
) -> Transform:
    """Resizes to `size`, a number or (height, width), ignoring the aspect ratio.

    It ignores its key. x: [B, H, W, C] -> [B, h, w, C], by `jax.image.resize`; bytes
    stay bytes. `method` is "bilinear", or "bicubic" (the kernel of Keys, 1981, with
    a = -1/2), which overshoots at edges by up to a tenth of the step there; results are
    clipped to 0..`white` if that is given (255 for bytes). With `antialias`, results
    are those of Pillow on floats; without, some pixels are ignored when an image
    shrinks.
    """
    shape = _size_of(size)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_images("resize", x)
        wanted = (len(x), *shape, x.shape[-1])
        y = jax.image.resize(x.astype(jnp.float32), wanted, method, antialias)
        return _with_dtype(y if white is None else jnp.clip(y, 0, white), x.dtype)

    return apply


@by_name
@checked
def random_resized_crop(
    size: Size,
    *,
    scale: tuple[PositiveShare, PositiveShare] = (0.08, 1.0),
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3),
    method: Method = "bilinear",
    antialias: bool = True,
) -> Transform:
    """Resizes a random part of each image to `size`, a number or (height, width).

        w = round(sqrt(H W A r)),  h = round(sqrt(H W A / r))       [pixels]
        A ~ U(scale),  log r ~ U(log ratio)

    The first of ten such draws that fits into the image is taken, at a random position;
    if none fits, the largest central part whose w / h is within `ratio`. It is resized
    as by `resize`; its outermost pixels are interpolated with their neighbors outside
    the part. x: [B, H, W, C] -> [B, h, w, C].

    Szegedy et al., Going deeper with convolutions (2015); the ten draws and the
    fallback are those of torchvision.
    """
    shape = _size_of(size)
    check_ascending("scale", scale)
    check_ascending("ratio", ratio)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_images("random_resized_crop", x)
        wanted = *shape, x.shape[-1]

        def part(image: jax.Array, corner: jax.Array, sides: jax.Array) -> jax.Array:
            zoom = jnp.asarray(shape) / sides
            return jax.image.scale_and_translate(
                image, wanted, (0, 1), zoom, -corner * zoom, method, antialias
            )

        corners, sides = random_parts(key, x.shape[:3], scale, ratio)
        y = jax.vmap(part)(x.astype(jnp.float32), corners, sides)
        return _with_dtype(y, x.dtype)

    return apply


def random_parts(
    key: jax.Array,
    shape: tuple[int, ...],
    areas: tuple[float, float],
    ratios: tuple[float, float],
) -> tuple[jax.Array, jax.Array]:
    """Return (corners, sides), [B, 2] each, of parts of images [B, H, W], in pixels."""
    count, height, width = shape
    size_key, place_key = jax.random.split(key)
    u = jax.random.uniform(size_key, (2, count, _ATTEMPTS))
    area = height * width * (areas[0] + (areas[1] - areas[0]) * u[0])
    low, high = np.log(ratios)
    root = jnp.exp((low + (high - low) * u[1]) / 2)
    sides = jnp.round(jnp.sqrt(area)[..., None] * jnp.stack([1 / root, root], -1))
    whole = jnp.array([[height, width]], jnp.float32)
    fits = ((sides > 0) & (sides <= whole[None])).all(-1)
    first = jnp.take_along_axis(sides, jnp.argmax(fits, 1)[:, None, None], 1)[:, 0]
    last = [
        max(1, min(height, round(width / ratios[0]))),
        max(1, min(width, round(height * ratios[1]))),
    ]
    any_fits = fits.any(1)[:, None]
    sides = jnp.where(any_fits, first, jnp.array([last], jnp.float32))
    spare = whole - sides
    drawn = jnp.floor(jax.random.uniform(place_key, (count, 2)) * (spare + 1))
    # if the product rounds up to spare + 1, the part would lie outside
    return jnp.where(any_fits, jnp.minimum(drawn, spare), spare // 2), sides


def _random_crops(key: jax.Array, x: jax.Array, shape: tuple[int, int]) -> jax.Array:
    crop = partial(dm_pix.random_crop, crop_sizes=(*shape, x.shape[-1]))
    return jnp.asarray(jax.vmap(crop)(jax.random.split(key, len(x)), jnp.asarray(x)))


def _with_dtype(y: jax.Array, dtype: Any) -> jax.Array:
    """Return y in this dtype, rounded and within its bounds if it has integers."""
    if jnp.issubdtype(dtype, jnp.integer):
        y = jnp.clip(jnp.round(y), jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    return y.astype(dtype)


def _size_of(size: Any) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)
