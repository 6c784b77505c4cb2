"""Resampling of a box of each image to one size, with separable kernels."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def _triangle(d: jax.Array) -> jax.Array:
    return jnp.maximum(0.0, 1.0 - d)


def _keys(d: jax.Array) -> jax.Array:
    """Keys' cubic convolution kernel with a = -1/2, for d >= 0."""
    near = (1.5 * d - 2.5) * d * d + 1.0
    far = ((-0.5 * d + 2.5) * d - 4.0) * d + 2.0
    return jnp.where(d < 1, near, jnp.where(d < 2, far, 0.0))


_KERNELS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "bilinear": _triangle,
    "bicubic": _keys,
}


def check_method(method: str) -> None:
    """Raise a ValueError unless `method` names a kernel."""
    if method not in _KERNELS:
        raise ValueError(f"method is {method!r}; choose one of {list(_KERNELS)}")


def resample_boxes(
    x: jax.Array,
    boxes: jax.Array,
    shape: tuple[int, int],
    method: str,
    antialias: bool,
) -> jax.Array:
    """Resize the boxes [B, 4] (top, left, height, width) of x [B, H, W, C] to `shape`.

    Returns [B, h, w, C]. Two products with mostly zero matrices of weights are as fast
    on a CPU as `jax.image.scale_and_translate`, which would mix in the pixels around a
    box. Gathering the relevant pixels is up to four times faster or slower, depending
    on the sizes.
    """

    def one(image: jax.Array, box: jax.Array) -> jax.Array:
        for axis, size in enumerate(shape):
            start, length, old = box[axis], box[axis + 2], image.shape[axis]
            weights = _weights(start, length, old, size, method, antialias)
            # TensorFloat-32 would be off by a tenth of a gray level
            image = jnp.tensordot(weights, image, (1, axis), precision="highest")
            image = jnp.moveaxis(image, 0, axis)
        return image

    y = jax.vmap(one)(x.astype(jnp.float32), boxes)
    if jnp.issubdtype(x.dtype, jnp.integer):
        info = jnp.iinfo(x.dtype)
        y = jnp.clip(jnp.round(y), info.min, info.max)
    return y.astype(x.dtype)


def _weights(
    start: jax.Array,
    length: jax.Array,
    old: int,
    size: int,
    method: str,
    antialias: bool,
) -> jax.Array:
    """Return [size, old], the weight of each old pixel in each new one.

    Rows sum to one.
    """
    kernel = _KERNELS[method]
    step = length / size
    stretch = jnp.maximum(step, 1.0) if antialias else 1.0
    place = start + (jnp.arange(size) + 0.5)[:, None] * step - 0.5
    at = jnp.arange(old)[None]
    weights = kernel(jnp.abs(place - at) / stretch)
    weights = jnp.where((at >= start) & (at < start + length), weights, 0.0)
    return weights / weights.sum(1, keepdims=True)
