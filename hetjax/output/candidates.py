"""Softmax over the true labels of an example and some candidates, on rows of W.

Both sampled softmax and SLIDE choose candidates; this is their loss, and its gradient
as the rows of W and b that a batch uses (`sparse.RowSparseGrad`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax.output.layers import OutputLayer
from hetjax.softmax import Targets
from hetjax.sparse import RowSparseGrad


class Candidates(NamedTuple):
    """Labels beside the true ones: the same [m] for the batch, or [B, m] per example.

    The true labels of an example among them are left out by `losses_of`.
    """

    ids: jax.Array  # int32
    offsets: jax.Array  # float32, subtracted from the scores: log(m q) of a sample
    used: jax.Array  # bool: False for what is to be left out, such as repetitions


Choose = Callable[..., tuple[Candidates, Any]]


def layer(
    name: str,
    choose: Choose,
    init: Callable[[jax.Array, jax.Array], Any] | None = None,
) -> OutputLayer:
    """The layer whose candidates are choose(h, W, b, state, key) -> (them, state)."""

    def losses(
        h: jax.Array, w: jax.Array, b: jax.Array, state: Any, targets: Targets, key: Any
    ) -> tuple[jax.Array, Any]:
        chosen, state = choose(*map(jax.lax.stop_gradient, (h, w, b)), state, key)
        ids = _all_ids(targets, chosen)
        rows = w.at[ids].get(mode="clip"), b.at[ids].get(mode="clip")
        return losses_of(h, *rows, targets, chosen), state

    def loss_and_grads(
        h: jax.Array,
        w: jax.Array,
        b: jax.Array,
        state: Any,
        targets: Targets,
        scale: jax.Array,
        key: Any,
    ) -> tuple:
        chosen, state = choose(h, w, b, state, key)
        ids = _all_ids(targets, chosen)
        rows = w.at[ids].get(mode="clip"), b.at[ids].get(mode="clip")
        values, pull = jax.vjp(
            lambda h, w, b: losses_of(h, w, b, targets, chosen), h, *rows
        )
        dh, dw, db = pull(scale)
        dw, db = (RowSparseGrad(ids, g, w.shape[0]) for g in (dw, db))
        return values, dh, dw, db, state

    return OutputLayer(name, losses, loss_and_grads, init)


def _all_ids(targets: Targets, chosen: Candidates) -> jax.Array:
    """[L + candidates] the labels whose rows a batch uses: targets, then candidates."""
    return jnp.concatenate([targets.columns, chosen.ids.reshape(-1)])


def losses_of(
    h: jax.Array,
    rows: jax.Array,
    biases: jax.Array,
    targets: Targets,
    chosen: Candidates,
) -> jax.Array:
    """losses [B] from the rows [L + candidates, H] and biases of `_all_ids`.

        loss = -sum_c t_c (z_c - log(sum_{c in Y} exp z_c
                                     + sum_{j not in Y} exp(z_j - offset_j)))

    with j over the candidates that are used. 0 without labels.
    """
    num_true, size = len(targets.rows), h.shape[0]
    of_true = h.at[targets.rows].get(mode="clip") * rows[:num_true]
    z_true = of_true.sum(-1) + biases[:num_true]
    z = _scores(h, rows[num_true:], biases[num_true:], chosen)
    used = jnp.broadcast_to(chosen.used, z.shape) & ~_hits(targets, chosen, size)
    z = jnp.where(used, z, -jnp.inf)
    member = jnp.where(_is_first(targets, size), z_true, -jnp.inf)
    highest = jnp.full(size, -1e30).at[targets.rows].max(member, mode="drop")
    highest = jax.lax.stop_gradient(jnp.maximum(highest, z.max(-1)))
    total = jnp.exp(z - highest[:, None]).sum(-1)
    total += targets.of_rows(
        jnp.exp(member - highest.at[targets.rows].get(mode="clip")), size
    )
    # a row with neither labels nor candidates has no loss, but log 0 would be a NaN
    normalizer = highest + jnp.log(jnp.where(total > 0, total, 1.0))
    z_true = z_true - normalizer.at[targets.rows].get(mode="clip")
    return -targets.of_rows(targets.shares * z_true, size)


def _scores(
    h: jax.Array, rows: jax.Array, biases: jax.Array, chosen: Candidates
) -> jax.Array:
    """[B, m] scores of the candidates, without their offsets."""
    if chosen.ids.ndim == 1:
        z = jnp.matmul(h, rows.T, preferred_element_type=jnp.float32)
        return z + biases[None] - chosen.offsets[None]
    rows = rows.reshape(*chosen.ids.shape, -1)
    z = jnp.einsum("bh,bmh->bm", h, rows, preferred_element_type=jnp.float32)
    return z + biases.reshape(chosen.ids.shape) - chosen.offsets


def _hits(targets: Targets, chosen: Candidates, size: int) -> jax.Array:
    """[B, m] is the candidate a true label of the example?"""
    ids = jnp.broadcast_to(chosen.ids, (size, chosen.ids.shape[-1]))
    same = ids.at[targets.rows].get(mode="clip") == targets.columns[:, None]
    return jnp.zeros(ids.shape, bool).at[targets.rows].max(same, mode="drop")


def _is_first(targets: Targets, size: int) -> jax.Array:
    """[L] is an entry true, and not a repetition of the one before it?"""
    rows, columns, _ = targets
    repeated = (rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1])
    return (rows < size) & ~jnp.concatenate([jnp.zeros(1, bool), repeated])
