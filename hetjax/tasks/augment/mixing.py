"""Mixing pairs of examples of a batch: mixup and CutMix.

With share_i and partner(i), the loss of example i is

    share_i CE(z_i, y_i) + (1 - share_i) CE(z_i, y_partner(i)).

Partners are drawn by a random permutation of the whole batch. Rows of padding repeat
true examples of the batch with their labels, so that any row may be a partner.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.arguments import NotNegative, Positive, checked
from hetjax.recipes import by_name
from hetjax.tasks.augment.transforms import check_images

Mixed = tuple[jax.Array, jax.Array, jax.Array]
Mix = Callable[[jax.Array, jax.Array], Mixed]
"""(key, x [B, ...]) -> (x [B, ...], partner [B] int, share [B] float)"""


@by_name
@checked
def mixup(alpha: Positive = 0.2, *, per_example: bool = False) -> Mix:
    """Mixes each example with another one of the batch.

        x_i <- share x_i + (1 - share) x_partner(i),    share ~ Beta(alpha, alpha)

    The share is drawn once per batch, as in the paper's code, or `per_example`. x may
    be any [B, ...]; integers become float32. Zhang et al., mixup: beyond empirical risk
    minimization (2018).
    """

    def apply(key: jax.Array, x: jax.Array) -> Mixed:
        partner_key, share_key = jax.random.split(key)
        x, partner = _draw_partners(partner_key, x)
        share = _draw_shares(share_key, alpha, len(x), per_example)
        weight = share.reshape(-1, *(1,) * (x.ndim - 1)).astype(x.dtype)
        return weight * x + (1 - weight) * x[partner], partner, share

    return apply


@by_name
@checked
def cutmix(alpha: Positive = 1.0, *, per_example: bool = False) -> Mix:
    """Replaces a box of each image by the same box of another image of the batch.

        h = floor(H sqrt(1 - lambda)),  w = floor(W sqrt(1 - lambda))
        lambda ~ Beta(alpha, alpha)
        share = 1 - (area of the box within the image) / (H W)

    The box's center is uniform over the pixels; the box is clipped to the image, so
    that share >= lambda. The box is drawn once per batch, as in the paper's code, or
    `per_example`. x: [B, H, W, C]. Yun et al., CutMix (2019).
    """

    def apply(key: jax.Array, x: jax.Array) -> Mixed:
        check_images("cutmix", x)
        partner_key, share_key, center_key = jax.random.split(key, 3)
        x, partner = _draw_partners(partner_key, x)
        side = jnp.sqrt(1 - _draw_shares(share_key, alpha, len(x), per_example))
        place = jax.random.uniform(center_key, (2, len(x) if per_example else 1))

        def covered(axis: int) -> jax.Array:  # [B, H] and [B, W]
            size = x.shape[axis + 1]
            center = jnp.minimum(jnp.floor(place[axis] * size), size - 1)
            length = jnp.floor(size * side)
            from_start = jnp.arange(size)[None] - (center - length // 2)[:, None]
            return (from_start >= 0) & (from_start < length[:, None])

        rows, columns = covered(0), covered(1)
        box = rows[:, :, None, None] & columns[:, None, :, None]
        share = 1 - rows.mean(1) * columns.mean(1)
        return jnp.where(box, x[partner], x), partner, share

    return apply


@by_name
@checked
def one_of(*mixes: Mix, probabilities: Sequence[NotNegative] | None = None) -> Mix:
    """Applies one of `mixes` to each batch, drawn with `probabilities` (or equal ones).

    `one_of(mixup(0.8), cutmix(1.0))` is DeiT's choice (Touvron et al., 2021). Errors: a
    ValueError without mixes, or unless there is one probability for each and they sum
    to one.
    """
    if not mixes:
        raise ValueError("one_of() has nothing to choose from: pass mixup() or others")
    p = np.full(len(mixes), 1 / len(mixes)) if probabilities is None else probabilities
    p = np.asarray(p, np.float32)
    if p.shape != (len(mixes),) or abs(p.sum() - 1) > 1e-5:
        raise ValueError(
            f"probabilities={probabilities}: pass {len(mixes)} numbers that sum to one"
        )

    def apply(key: jax.Array, x: jax.Array) -> Mixed:
        choice_key, mix_key = jax.random.split(key)
        chosen = jax.random.choice(choice_key, len(mixes), p=jnp.asarray(p))
        return jax.lax.switch(chosen, mixes, mix_key, x)

    return apply


def _draw_partners(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return x as floats, and each example's partner [B] int32."""
    floats = jnp.issubdtype(x.dtype, jnp.floating)
    partner = jax.random.permutation(key, jnp.arange(len(x), dtype=jnp.int32))
    return jnp.asarray(x, None if floats else jnp.float32), partner


def _draw_shares(
    key: jax.Array, alpha: float, count: int, per_example: bool
) -> jax.Array:
    """Return [B] draws of Beta(alpha, alpha), or one draw repeated [B] times."""
    drawn = jax.random.beta(key, alpha, alpha, (count if per_example else 1,))
    return jnp.broadcast_to(drawn, (count,))
