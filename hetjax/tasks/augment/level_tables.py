"""RandAugment's operations that map 256 levels to others, by a table per channel."""

import jax
import jax.numpy as jnp

LEVELS = 256
# halves, a frequent result of blending integer levels, are rounded up robustly: the
# result does not depend on the blend's last bit, which changes if the compiler fuses it
_HALF = 0.501


def look_up(x: jax.Array, op: jax.Array, u: float, white: float) -> jax.Array:
    """Round x [B, H, W, C] to 256 levels, then apply the operation `op` [B] per image.

    Halves are rounded up. 0 posterizes, 1 solarizes, 2 stretches the contrast, 3
    equalizes the histogram; u in 0..1 is the strength of the first two.
    """
    level = jnp.clip(x, 0, white).astype(jnp.float32) * ((LEVELS - 1) / white)
    level = jnp.floor(level + _HALF).astype(jnp.int32)
    count, height, width, depth = x.shape
    # all tables in one array: that of image b and channel c starts at LEVELS (C b + c)
    start = LEVELS * jnp.arange(count * depth, dtype=jnp.int32)
    index = level + start.reshape(count, 1, 1, depth)
    histogram = jnp.zeros(count * depth * LEVELS, jnp.int32).at[index.ravel()].add(1)
    histogram = histogram.reshape(count, depth, LEVELS)
    kind = op[:, None, None]
    old = jnp.arange(LEVELS, dtype=jnp.int32)[None, None]
    table = jnp.where(
        kind == 0,
        _posterize(old, u),
        jnp.where(
            kind == 1,
            _solarize(old, u),
            jnp.where(kind == 2, _stretch(old, histogram), _equalize(histogram)),
        ),
    )
    values = (table.ravel() * (white / (LEVELS - 1))).astype(x.dtype)
    # the scatter prevents XLA from recomputing a table's entry for each pixel, which
    # took several times as long on a CPU; an optimization barrier does not prevent it
    places = jnp.arange(len(values))
    values = jnp.zeros_like(values).at[places].set(values, unique_indices=True)
    return values[index]


def _posterize(old: jax.Array, u: float) -> jax.Array:
    """Return the upper 8 - round(4 u) bits."""
    lost = round(4 * u)
    return (old >> lost) << lost


def _solarize(old: jax.Array, u: float) -> jax.Array:
    """Invert levels from (1 - u) white on."""
    white = LEVELS - 1
    return jnp.where(old >= (1 - u) * white, white - old, old)


def _stretch(old: jax.Array, histogram: jax.Array) -> jax.Array:
    """Map the lowest level that occurs to 0, the highest to 255; a single one stays."""
    occurs = histogram > 0
    lowest = jnp.argmax(occurs, -1, keepdims=True)
    highest = LEVELS - 1 - jnp.argmax(occurs[..., ::-1], -1, keepdims=True)
    span = highest - lowest
    stretched = (old - lowest) * (LEVELS - 1) // jnp.maximum(span, 1)
    return jnp.where(span > 0, jnp.clip(stretched, 0, LEVELS - 1), old)


def _equalize(histogram: jax.Array) -> jax.Array:
    """Return for each level the share of pixels below it, quantized as in Pillow.

    s = (pixels - pixels of the highest level) // 255
    level i -> min(255, (s // 2 + pixels below i) // s), and i itself if s = 0
    """
    old = jnp.arange(LEVELS, dtype=jnp.int32)[None, None]
    highest = LEVELS - 1 - jnp.argmax(histogram[..., ::-1] > 0, -1, keepdims=True)
    most = jnp.take_along_axis(histogram, highest, -1)
    step = (histogram.sum(-1, keepdims=True) - most) // (LEVELS - 1)
    below = jnp.cumsum(histogram, -1) - histogram
    new = (step // 2 + below) // jnp.maximum(step, 1)
    return jnp.where(step > 0, jnp.minimum(new, LEVELS - 1), old)
