"""Random changes of brightness, contrast, saturation and hue."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.recipes import by_name
from hetjax.tasks.augment.image_checks import check_colors, range_of, white_of
from hetjax.tasks.augment.transforms import Transform

_GRAY = (0.299, 0.587, 0.114)  # weights of red, green and blue: ITU-R BT.601
_Change = Callable[[jax.Array, jax.Array], jax.Array]  # x, amount [B, 1, 1, 1] -> x


@by_name
def color_jitter(
    *,
    brightness: float | tuple[float, float] = 0.0,
    contrast: float | tuple[float, float] = 0.0,
    saturation: float | tuple[float, float] = 0.0,
    hue: float | tuple[float, float] = 0.0,
    white: float = 255.0,
) -> Transform:
    """Changes brightness, contrast, saturation and hue by random amounts, in any order.

        brightness:  x <- f x                        f ~ U(max(0, 1 - b), 1 + b)
        contrast:    x <- f x + (1 - f) mean gray(x)
        saturation:  x <- f x + (1 - f) gray(x)
        hue:         rotated by t of a full turn     t ~ U(-h, h),  h <= 1/2

    with gray = .299 R + .587 G + .114 B, and each result clipped to 0..white. `white`
    is the value of white on x's scale: 255 for bytes, 1 for data in [0, 1]. A pair
    specifies the range of f, or of t, directly; a change whose argument is 0 is left
    out. x: [B, H, W, 3], or with one channel if saturation and hue are 0. Amounts are
    drawn for each image, the order of the changes once for the batch, so that each
    change is computed once. The definitions are torchvision's.
    """
    white = white_of(white)
    given = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
    ranges = {name: _factors(name, value) for name, value in given.items()}
    ranges["hue"] = _turns(hue)
    still = {"hue": (0.0, 0.0)}
    used = [n for n, pair in ranges.items() if pair != still.get(n, (1.0, 1.0))]
    depths = (3,) if {"saturation", "hue"} & set(used) else (1, 3)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        check_colors("color_jitter", x, *depths)
        amount_key, order_key = jax.random.split(key)
        drawn = jax.random.uniform(amount_key, (len(used), len(x), 1, 1, 1), x.dtype)
        pairs = [ranges[name] for name in used]
        amounts = [lo + (hi - lo) * u for (lo, hi), u in zip(pairs, drawn, strict=True)]
        parts = [_part(name, a, white) for name, a in zip(used, amounts, strict=True)]
        order = jax.random.permutation(order_key, len(used))
        for i in range(len(used)):
            x = jax.lax.switch(order[i], parts, x)
        return x

    return apply


def blend(x: jax.Array, other: jax.Array, factor: jax.Array) -> jax.Array:
    """Return factor x + (1 - factor) other."""
    return factor * x + (1 - factor) * other


def gray(x: jax.Array) -> jax.Array:
    """Return [B, H, W, 1], the luma of x [B, H, W, 1 or 3]."""
    if x.shape[-1] == 1:
        return x
    # much faster on a CPU than sums over an axis of three
    red, green, blue = _split(x)
    return _GRAY[0] * red + _GRAY[1] * green + _GRAY[2] * blue


def mean_gray(x: jax.Array) -> jax.Array:
    """Return [B, 1, 1, 1], the mean luma of each image."""
    return gray(x.mean((1, 2), keepdims=True))


def turn_hue(x: jax.Array, turn: jax.Array) -> jax.Array:
    """Return x [B, H, W, 3] with its hue, in HSV, rotated by `turn` of a full turn.

    With V the largest channel, C = V - the smallest, and the hue H in 0..6 (red is 0):
    channel n is V - C max(0, min(k, 4 - k, 1)), k = (n + H) mod 6, n = 5, 3, 1.
    """
    r, g, b = _split(x)
    value = jnp.maximum(jnp.maximum(r, g), b)
    chroma = value - jnp.minimum(jnp.minimum(r, g), b)
    some = jnp.where(chroma > 0, chroma, 1.0)
    sextant = jnp.where(
        value == r,
        (g - b) / some,
        jnp.where(value == g, 2 + (b - r) / some, 4 + (r - g) / some),
    )
    hue = sextant + 6 * turn
    # jnp.mod is not vectorized on a CPU
    each = (n + hue - 6 * jnp.floor((n + hue) / 6) for n in (5, 3, 1))
    shares = [jnp.clip(jnp.minimum(k, 4 - k), 0, 1) for k in each]
    return value - chroma * jnp.concatenate(shares, -1)


def _split(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return red, green and blue, [B, H, W, 1] each."""
    return x[..., 0:1], x[..., 1:2], x[..., 2:3]


def _part(name: str, amount: jax.Array, white: float) -> Callable[..., jax.Array]:
    """Return the named change as a function of x alone."""
    changes: dict[str, _Change] = {
        "brightness": lambda x, f: f * x,
        "contrast": lambda x, f: blend(x, mean_gray(x), f),
        "saturation": lambda x, f: blend(x, gray(x), f),
        "hue": turn_hue,
    }
    return lambda x: jnp.clip(changes[name](x, amount), 0, white)


def _factors(name: str, value: float | tuple[float, float]) -> tuple[float, float]:
    """Return the range of a factor, from a strength or a pair."""
    if isinstance(value, tuple | list | np.ndarray):
        return range_of(name, value, 0, 1e6)
    if not 0 <= value < np.inf:
        raise ValueError(f"{name} is {value}; it must be finite and at least 0")
    return max(0.0, 1.0 - value), 1.0 + value


def _turns(hue: float | tuple[float, float]) -> tuple[float, float]:
    """Return the range of the hue's rotation, from a strength or a pair."""
    if isinstance(hue, tuple | list | np.ndarray):
        return range_of("hue", hue, -0.5, 0.5)
    if not 0 <= hue <= 0.5:
        raise ValueError(f"hue is {hue}; it must be in 0..0.5, of a full turn")
    return -float(hue), float(hue)
