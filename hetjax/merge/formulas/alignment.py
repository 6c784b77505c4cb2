"""HeLoCo's correction of a late pseudo-gradient, as a function on pytrees."""

import jax
import jax.numpy as jnp

from hetjax.arguments import NotNegative, Positive, checked
from hetjax.tree import PyTree

_KEEP = 1e-8  # norms below this have no direction


@checked
def aligned(
    move: PyTree,
    momentum: PyTree,
    *,
    keep: float = 0.2,
    strength: NotNegative = 0.5,
    most: NotNegative = 0.5,
    softness: Positive = 3.0,
) -> PyTree:
    """The pseudo-gradient D, each of its tensors turned towards a momentum m.

        q = cos(D, m)
        q >= keep     D
        q < 0         D - z q |D| m / |m|,    z = min(strength (-q) f, most)
        else          |D| y / |y|,            y = (1 - l) D / |D| + l m / |m|

    with f = |D| / (|D| + softness |m| + e), l = min((1 - q) f, 1) and e = 1e-8. A
    tensor whose |D| or |m| is below e stays. Promises: a weakly aligned tensor keeps
    its norm. Source: HeLoCo; docs/algorithms L.4.
    """

    def one(d: jax.Array, m: jax.Array) -> jax.Array:
        size, other = (jnp.sqrt(jnp.sum(jnp.square(x))) for x in (d, m))
        known = (size >= _KEEP) & (other >= _KEEP)
        a, b = d / jnp.where(known, size, 1.0), m / jnp.where(known, other, 1.0)
        q = jnp.sum(a * b)
        f = size / (size + softness * other + _KEEP)
        z = jnp.minimum(strength * -q * f, most)
        against = d - z * q * size * b
        mix = jnp.minimum((1 - q) * f, 1.0)
        y = (1 - mix) * a + mix * b
        length = jnp.sqrt(jnp.sum(jnp.square(y)))
        weak = size * y / jnp.where(length > 0, length, 1.0)
        turned = jnp.where(q < 0, against, weak)
        return jnp.where(known & (q < keep), turned, d)

    return jax.tree.map(one, move, momentum)
