"""Softmax over an example's true labels and some candidates, on rows of W.

Sampled softmax and SLIDE choose the candidates. Here are their common loss and its
gradient, which has only the rows of W and b that a batch uses (`sparse.RowSparseGrad`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax.output.layers import OutputLayer, settings_text
from hetjax.output.softmax import Targets, product
from hetjax.sparse import RowSparseGrad


class Candidates(NamedTuple):
    """Labels besides the true ones: [m] for the whole batch, or [B, m] per example.

    The layer ignores an example's true labels among them.
    """

    ids: jax.Array  # int32
    offsets: jax.Array  # float32, subtracted from the scores: log(m q) of a sample


Choose = Callable[..., tuple[Candidates, Any]]

AT_ONCE = 2**21  # maximum size of the rows gathered at a time [floats]: 8 MB
_LOWEST = -1e30  # below every score; finite, so that differences are not NaN


def layer(
    name: str,
    choose: Choose,
    init: Callable[[jax.Array, jax.Array], Any] | None = None,
    **settings: Any,
) -> OutputLayer:
    """Return the layer with choose(h, W, b, state, key) -> (candidates, state).

    The `settings` are shown in results.
    """

    def losses(h, w, b, state, targets, key):
        chosen, state = choose(*map(jax.lax.stop_gradient, (h, w, b)), state, key)
        return _scored(h, w, b, targets, chosen).losses, state

    def loss_and_grads(h, w, b, state, targets, scale, key):
        chosen, state = choose(h, w, b, state, key)
        scored = _scored(h, w, b, targets, chosen)
        dh, dw, db = _grads(h, targets, chosen, scored, scale, len(w))
        return scored.losses, dh, dw, db, state

    return OutputLayer(
        name, losses, loss_and_grads, init, settings_text(name, **settings)
    )


class _Scored(NamedTuple):
    """Losses and probabilities, with the rows of W that the gradient needs."""

    losses: jax.Array  # [B]
    p_true: jax.Array  # [L] probability of each true label, for its example
    p: jax.Array  # [B, m] probability of each candidate
    rows_true: jax.Array  # [L, H] rows of W
    mean: jax.Array  # [B, H] the candidates' rows of W, weighted with p


def _scored(
    h: jax.Array, w: jax.Array, b: jax.Array, targets: Targets, chosen: Candidates
) -> _Scored:
    """Return the softmax over each example's true labels and candidates.

        loss = -sum_c t_c (z_c - log(sum_{c in Y} exp z_c
                                     + sum_{j not in Y} exp(z_j - offset_j)))

    with j over the candidates; 0 for an example without labels.
    """
    size = h.shape[0]
    rows_true = w.at[targets.columns].get(mode="clip")
    z_true = jnp.sum(h.at[targets.rows].get(mode="clip") * rows_true, -1)
    z_true += b.at[targets.columns].get(mode="clip")
    member = jnp.where(_is_first(targets, size), z_true, -jnp.inf)
    highest = jnp.full(size, _LOWEST).at[targets.rows].max(member, mode="drop")
    highest, e, rows_sum = _weighted(h, w, b, targets, chosen, highest)
    e_true = jnp.exp(member - highest.at[targets.rows].get(mode="clip"))
    total = e.sum(-1) + targets.sum_per_example(e_true, size)
    normalizer = (highest + jnp.log(total)).at[targets.rows].get(mode="clip")
    losses = -targets.sum_per_example(targets.shares * (z_true - normalizer), size)
    p_true = e_true / total.at[targets.rows].get(mode="clip")
    p, mean = (x / total[:, None] for x in (e, rows_sum))
    return _Scored(losses, p_true, p, rows_true, mean)


def _weighted(
    h: jax.Array,
    w: jax.Array,
    b: jax.Array,
    targets: Targets,
    chosen: Candidates,
    highest: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (highest [B], e [B, m], sum_j e_j W_j [B, H]) for the candidates j.

    With z [B, m] their scores: `highest` is the maximum of the argument `highest` and
    of z, for each example, and e = exp(z - highest), 0 for true labels.
    """

    def of_example(
        h: jax.Array, hit: jax.Array, highest: jax.Array, ids: Any, offsets: Any
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        rows = w.at[ids].get(mode="clip")
        z = product(rows, h) + (b.at[ids].get(mode="clip") - offsets)
        z = jnp.where(hit, -jnp.inf, z)
        highest = jax.lax.stop_gradient(jnp.maximum(highest, z.max()))
        e = jnp.exp(z - highest)
        return highest, e, product(e, rows)

    examples = h, _hits(targets, chosen, h.shape[0]), highest
    if chosen.ids.ndim == 1:  # shared by the batch
        return jax.vmap(of_example, (0, 0, 0, None, None))(*examples, *chosen)
    # rows are used while they are in the cache, without an array [B, m, H]
    together = max(1, AT_ONCE // (chosen.ids.shape[1] * h.shape[1]))
    return jax.lax.map(
        lambda example: of_example(*example),
        (*examples, *chosen),
        batch_size=min(together, h.shape[0]),
    )


def _grads(
    h: jax.Array,
    targets: Targets,
    chosen: Candidates,
    scored: _Scored,
    scale: jax.Array,
    num_labels: int,
) -> tuple[jax.Array, RowSparseGrad, RowSparseGrad]:
    """Return (dh, dW, db) of sum_b scale_b loss_b: dz = scale (T p - t), T = sum t.

    Computed manually: autodiff would hold several arrays of the size of all rows.
    """
    size = h.shape[0]
    total = scale * targets.sum_per_example(targets.shares, size)
    of_entries = total.at[targets.rows].get(mode="clip") * scored.p_true
    of_entries -= scale.at[targets.rows].get(mode="clip") * targets.shares
    of_entries = jnp.where(targets.rows < size, of_entries, 0.0)
    d = total[:, None] * scored.p
    dh = targets.sum_per_example(of_entries[:, None] * scored.rows_true, size)
    dh += total[:, None] * scored.mean
    ids = jnp.concatenate([targets.columns, chosen.ids.reshape(-1)])
    if chosen.ids.ndim == 1:  # shared by the batch
        dw_true = of_entries[:, None] * h.at[targets.rows].get(mode="clip")
        dw = product(d.T, h)
        dw, db = jnp.concatenate([dw_true, dw]), jnp.concatenate([of_entries, d.sum(0)])
    else:
        examples = jnp.repeat(jnp.arange(size), d.shape[1])
        examples = jnp.concatenate([targets.rows, examples])
        db = jnp.concatenate([of_entries, d.reshape(-1)])
        # XLA fuses this product into its addition to W, without an array for it
        dw = db[:, None] * h.at[examples].get(mode="clip")
    dw, db = (RowSparseGrad(ids, rows, num_labels) for rows in (dw, db))
    return dh, dw, db


def _hits(targets: Targets, chosen: Candidates, size: int) -> jax.Array:
    """Return [B, m], whether the candidate is a true label of the example."""
    ids = jnp.broadcast_to(chosen.ids, (size, chosen.ids.shape[-1]))
    same = ids.at[targets.rows].get(mode="clip") == targets.columns[:, None]
    return jnp.zeros(ids.shape, bool).at[targets.rows].max(same, mode="drop")


def _is_first(targets: Targets, size: int) -> jax.Array:
    """Return [L], whether an entry is neither padding nor equal to the previous one."""
    rows, columns, _ = targets
    repeated = (rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1])
    return (rows < size) & ~jnp.concatenate([jnp.zeros(1, bool), repeated])
