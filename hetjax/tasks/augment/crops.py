"""Crops of images: random and central ones, with and without padding or resizing."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.recipes import by_name
from hetjax.tasks.augment.image_checks import (
    Size,
    align,
    channels,
    check_channels,
    check_images,
    range_of,
    size_of,
    white_of,
)
from hetjax.tasks.augment.resample import check_method, resample_boxes
from hetjax.tasks.augment.transforms import Transform

_ATTEMPTS = 10  # draws of random_resized_crop, as in Inception and torchvision


@by_name
def pad_crop(
    padding: int = 4, *, fill: float | Sequence[float] | np.ndarray = 0.0
) -> Transform:
    """Pads by `padding` pixels on all sides, then crops to the original size at random.

    All (2 padding + 1)^2 positions are equally likely. `fill` [] or [C] is the value of
    the new pixels, on the scale of x: 0 is black before normalization, as in Biased
    Local SGD. CROSSBOW scales images to -1..1 before it pads with 0, which is 0.5 here.
    """
    if not isinstance(padding, int) or padding < 0:
        raise ValueError(f"padding is {padding}; it must be an integer of at least 0")
    border = channels("fill", fill)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_images("pad_crop", x)
        count, height, width, depth = x.shape
        check_channels("fill", border, x)
        wide = (count, height + 2 * padding, width + 2 * padding, depth)
        frame = jnp.broadcast_to(align(border, x), wide)
        padded = jax.lax.dynamic_update_slice(frame, x, (0, padding, padding, 0))
        offsets = jax.random.randint(key, (count, 2), 0, 2 * padding + 1)
        return _crops(padded, offsets, (height, width))

    return apply


@by_name
def random_crop(size: Size) -> Transform:
    """Crops to `size`, a number or (height, width), at a random position.

    All (H - h + 1) (W - w + 1) positions are equally likely. x: [B, H, W, C] ->
    [B, h, w, C]. A ValueError if the images are smaller.
    """
    shape = size_of(size)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        spare = _spare("random_crop", x, shape)
        offsets = jax.random.randint(key, (len(x), 2), 0, spare[None] + 1)
        return _crops(x, offsets, shape)

    return apply


@by_name
def center_crop(size: Size) -> Transform:
    """Crops to the central `size` pixels, a number or (height, width).

    It ignores its key. x: [B, H, W, C] -> [B, h, w, C], from row (H - h) // 2 and
    column (W - w) // 2 on. A ValueError if the images are smaller.
    """
    height, width = shape = size_of(size)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        del key
        top, left = _spare("center_crop", x, shape) // 2
        return x[:, top : top + height, left : left + width]

    return apply


@by_name
def resize(
    size: Size,
    *,
    method: str = "bilinear",
    antialias: bool = True,
    white: float | None = None,
) -> Transform:
    """Resizes to `size`, a number or (height, width), ignoring the aspect ratio.

    It ignores its key. x: [B, H, W, C] -> [B, h, w, C]; a pixel is a weighted mean of
    those around its position,

        y_p = sum_i k((c_p - i) / s) x_i / sum_i k((c_p - i) / s)
        c_p = (p + 1/2) H / h - 1/2,    s = max(1, H / h),

    and likewise along the rows. `method`: "bilinear", k(d) = max(0, 1 - |d|), or
    "bicubic", the kernel of Keys (1981) with a = -1/2, which overshoots at edges by up
    to a tenth of the step there; results are clipped to 0..`white` if that is given
    (255 for bytes), as for images that remain bytes. With `antialias`, results are
    those of Pillow on floats; without, s = 1, and some pixels are ignored when an image
    shrinks.
    """
    shape = size_of(size)
    check_method(method)
    white = None if white is None else white_of(white)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        del key
        check_images("resize", x)
        whole = np.array([[0, 0, *x.shape[1:3]]], np.float32)
        boxes = jnp.broadcast_to(jnp.asarray(whole), (len(x), 4))
        y = resample_boxes(x, boxes, shape, method, antialias)
        return y if white is None else jnp.clip(y, 0, white)

    return apply


@by_name
def random_resized_crop(
    size: Size,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    method: str = "bilinear",
    antialias: bool = True,
) -> Transform:
    """Resizes a random part of each image to `size`, a number or (height, width).

        w = round(sqrt(H W A r)),  h = round(sqrt(H W A / r))       [pixels]
        A ~ U(scale),  log r ~ U(log ratio)

    The first of ten such draws that fits into the image is taken, at a random position;
    if none fits, the largest central part whose w / h is within `ratio`. It is resized
    as by `resize`, without pixels from outside the part. x: [B, H, W, C] ->
    [B, h, w, C].

    Szegedy et al., Going deeper with convolutions (2015); the ten draws and the
    fallback are those of torchvision.
    """
    shape = size_of(size)
    areas, ratios = range_of("scale", scale, 0, 1), range_of("ratio", ratio, 0, np.inf)
    if min(areas[0], ratios[0]) <= 0 or np.isinf(ratios[1]):
        raise ValueError(
            f"scale is {scale} and ratio is {ratio}; they must be finite and above 0"
        )
    check_method(method)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_images("random_resized_crop", x)
        boxes = _boxes(key, x.shape[:3], areas, ratios)
        return resample_boxes(x, boxes, shape, method, antialias)

    return apply


def _boxes(
    key: jax.Array,
    shape: tuple[int, ...],
    areas: tuple[float, float],
    ratios: tuple[float, float],
) -> jax.Array:
    """Return [B, 4], top, left, height and width of each image's part [pixels]."""
    count, height, width = shape
    size_key, place_key = jax.random.split(key)
    u = jax.random.uniform(size_key, (2, count, _ATTEMPTS))
    area = height * width * (areas[0] + (areas[1] - areas[0]) * u[0])
    low, high = np.log(ratios)
    r = jnp.exp(low + (high - low) * u[1])
    h, w = jnp.round(jnp.sqrt(area / r)), jnp.round(jnp.sqrt(area * r))
    fits = (h > 0) & (h <= height) & (w > 0) & (w <= width)
    first = jnp.argmax(fits, axis=1)[:, None]
    drawn = jnp.stack([jnp.take_along_axis(n, first, 1)[:, 0] for n in (h, w)], 1)
    last = jnp.asarray([_largest(height, width, ratios)], drawn.dtype)
    sides = jnp.where(fits.any(1)[:, None], drawn, last)
    spare = jnp.asarray([[height, width]], drawn.dtype) - sides
    place = jax.random.uniform(place_key, (count, 2))
    # if the product rounds up to spare + 1, the part would lie outside
    drawn_at = jnp.minimum(jnp.floor(place * (spare + 1)), spare)
    at = jnp.where(fits.any(1)[:, None], drawn_at, spare // 2)
    return jnp.concatenate([at, sides], axis=1)


def _largest(
    height: int, width: int, ratios: tuple[float, float]
) -> tuple[float, float]:
    """Return (h, w) of the largest part of an image whose w / h is within `ratios`."""
    if width / height < ratios[0]:
        return max(1, round(width / ratios[0])), width
    if width / height > ratios[1]:
        return height, max(1, round(height * ratios[1]))
    return height, width


def _spare(what: str, x: jax.Array, shape: tuple[int, int]) -> np.ndarray:
    """Return [2], how much higher and wider x is; a ValueError if x is smaller."""
    check_images(what, x)
    spare = np.subtract(x.shape[1:3], shape)
    if (spare < 0).any():
        raise ValueError(
            f"{what} to {list(shape)} pixels needs images of at least that size, but x "
            f"is {list(x.shape)}: use pad_crop, or resize first"
        )
    return spare


def _crops(x: jax.Array, offsets: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Return the part of this shape of each image, starting at its offset [B, 2]."""

    def crop(image: jax.Array, offset: jax.Array) -> jax.Array:
        start = offset[0], offset[1], 0
        return jax.lax.dynamic_slice(image, start, (*shape, x.shape[-1]))

    # the fastest of seven implementations on a CPU at B = 256, close to it at B = 32
    return jax.vmap(crop)(x, offsets)
