"""Mixing pairs of examples of a batch: mixup and CutMix.

With share_i and partner(i), the loss of example i is

    share_i CE(z_i, y_i) + (1 - share_i) CE(z_i, y_partner(i)).

Partners are drawn by a random permutation of the whole batch. Rows of padding repeat
true examples of the batch with their labels, so that any row may be a partner.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.recipes import by_name
from hetjax.tasks.augment.image_checks import check_images

Mix = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
"""(key, x [B, ...]) -> (x [B, ...], partner [B] int, share [B] float)"""


@by_name
def mixup(alpha: float = 0.2, *, per_example: bool = False) -> Mix:
    """Mixes each example with another one of the batch.

        x_i <- share x_i + (1 - share) x_partner(i),    share ~ Beta(alpha, alpha)

    The share is drawn once per batch, as in the paper's code, or `per_example`. x may
    be any [B, ...]; integers become float32. Zhang et al., mixup: beyond empirical risk
    minimization (2018).
    """
    alpha = _alpha(alpha)

    def apply(key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        partner_key, share_key = jax.random.split(key)
        x, partner = _draw_partners(partner_key, x)
        share = _shares(share_key, alpha, len(x), per_example)
        weight = share.reshape(-1, *(1,) * (x.ndim - 1)).astype(x.dtype)
        return weight * x + (1 - weight) * x[partner], partner, share

    return apply  # pyright: ignore[reportReturnType]


@by_name
def cutmix(alpha: float = 1.0, *, per_example: bool = False) -> Mix:
    """Replaces a box of each image by the same box of another image of the batch.

        h = floor(H sqrt(1 - lambda)),  w = floor(W sqrt(1 - lambda))
        lambda ~ Beta(alpha, alpha)
        share = 1 - (area of the box within the image) / (H W)

    The box's center is uniform over the pixels; the box is clipped to the image, so
    that share >= lambda. The box is drawn once per batch, as in the paper's code, or
    `per_example`. x: [B, H, W, C]. Yun et al., CutMix (2019).
    """
    alpha = _alpha(alpha)

    def apply(key: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        check_images("cutmix", x)
        partner_key, share_key, center_key = jax.random.split(key, 3)
        x, partner = _draw_partners(partner_key, x)
        side = jnp.sqrt(1 - _shares(share_key, alpha, len(x), per_example))
        place = jax.random.uniform(center_key, (2, len(x) if per_example else 1))
        rows, columns = (
            _cover(place[axis], side, x.shape[axis + 1]) for axis in (0, 1)
        )
        box = rows[:, :, None, None] & columns[:, None, :, None]
        area = rows.sum(1) * columns.sum(1)
        share = 1 - area / np.float32(x.shape[1] * x.shape[2])
        return jnp.where(box, x[partner], x), partner, share

    return apply  # pyright: ignore[reportReturnType]


@by_name
def one_of(*mixes: Mix, probabilities: Sequence[float] | None = None) -> Mix:
    """Applies one of `mixes` to each batch, drawn with `probabilities` (or equal ones).

    `one_of(mixup(0.8), cutmix(1.0))` is DeiT's choice (Touvron et al., 2021). Errors: a
    ValueError without mixes, or unless there is one probability for each and they sum
    to one.
    """
    if not mixes:
        raise ValueError("one_of() has nothing to choose from: pass mixup() or others")
    p = np.full(len(mixes), 1 / len(mixes)) if probabilities is None else probabilities
    p = np.asarray(p, np.float32)
    if p.shape != (len(mixes),) or not (p >= 0).all() or abs(p.sum() - 1) > 1e-5:
        raise ValueError(
            f"probabilities is {probabilities}; it must be {len(mixes)} numbers of at "
            "least 0 that sum to one"
        )

    def apply(key: jax.Array, x: jax.Array) -> Any:
        choice_key, mix_key = jax.random.split(key)
        chosen = jax.random.choice(choice_key, len(mixes), p=jnp.asarray(p))
        return jax.lax.switch(chosen, mixes, mix_key, x)

    return apply


def _alpha(alpha: float) -> float:
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha is {alpha}; it must be a finite number above 0")
    return float(alpha)


def _draw_partners(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return x as floats, and each example's partner [B] int32."""
    floats = jnp.issubdtype(x.dtype, jnp.floating)
    partner = jax.random.permutation(key, jnp.arange(len(x), dtype=jnp.int32))
    return jnp.asarray(x, None if floats else jnp.float32), partner


def _shares(key: jax.Array, alpha: float, count: int, per_example: bool) -> jax.Array:
    """Return [B] draws of Beta(alpha, alpha), or one draw repeated [B] times."""
    drawn = jax.random.beta(key, alpha, alpha, (count if per_example else 1,))
    return jnp.broadcast_to(drawn, (count,))


def _cover(place: jax.Array, side: jax.Array, size: int) -> jax.Array:
    """Return [B, size], whether the box covers each pixel along one axis.

    `place` in 0..1 is the position of the box's center, `side` in 0..1 its length.
    """
    center = jnp.minimum(jnp.floor(place * size), size - 1)
    length = jnp.floor(size * side)
    start = (center - length // 2)[:, None]
    at = jnp.arange(size, dtype=jnp.float32)[None]
    return (at >= start) & (at < start + length[:, None])
