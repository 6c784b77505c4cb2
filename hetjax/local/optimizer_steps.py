"""A worker's step of an optax optimizer: on all rows of weights, or on a batch's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hetjax import optimizers, sparse
from hetjax.replica import Replica
from hetjax.tree import OptState, Params, PyTree

Stepped = tuple[Replica, jax.Array]  # the replica, and the examples' losses


def optimizer_step(
    tx: optax.GradientTransformation,
    replica: Replica,
    batch: Any,
    learning_rate: jax.Array,
    grad_fn: Callable,
) -> Stepped:
    """A step on every row: w <- w + eta update(g)."""
    losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
    updates, opt = optimizers.update(
        tx,
        sparse.dense(grads),
        replica.opt_state,
        replica.params,
        _loss_args(losses, replica, batch, grad_fn),
    )
    params = _moved(replica.params, updates, learning_rate)
    return Replica(params, state, opt, replica.carry), losses


def sparse_step(
    tx: optax.GradientTransformation,
    replica: Replica,
    batch: Any,
    learning_rate: jax.Array,
    grad_fn: Callable,
) -> Stepped:
    """A step on only the unique rows of the batch.

    The optimizer gets only the value of the loss: a function of all parameters would
    not fit the rows.
    """
    losses, state, grads = grad_fn(replica.params, replica.model_state, batch)
    value = {"value": _mean(losses, batch)}
    grads = sparse.materialize(grads)
    grads = _map_gradients(sparse.unique, lambda g: g, grads)
    ids = _map_gradients(lambda g: g.ids, lambda g: _WHOLE, grads)
    rows = _map_gradients(lambda g: g.rows, lambda g: g, grads)
    view = jax.tree.map(_take, replica.params, ids)
    opt_view = optax.tree_utils.tree_map_params(tx, _take, replica.opt_state, ids)
    updates, opt_view = optimizers.update(tx, rows, opt_view, view, value)
    view = _moved(view, updates, learning_rate)
    params = jax.tree.map(_put, replica.params, view, ids)
    # non-params (step counters) are taken unchanged from the updated state
    opt = _put_state(tx, replica.opt_state, opt_view, ids)
    return Replica(params, state, opt, replica.carry), losses


def schedule_free_step(
    tx: optax.GradientTransformation,
    replica: Replica,
    batch: Any,
    learning_rate: jax.Array,
    grad_fn: Callable,
) -> Stepped:
    """optax.contrib.schedule_free, whose parameters are y, on a replica of its x.

        y = b1 x + (1 - b1) z;   g at y
        z <- z + eta update(g);   x <- (1 - c) x + c z

    `tx` computes z at eta = 1, and c from its sum of weights.
    """
    x, old = replica.params, replica.opt_state
    y = jax.tree.map(
        lambda x, z: (old.b1 * x + (1 - old.b1) * z).astype(x.dtype), x, old.z
    )
    losses, state, grads = grad_fn(y, replica.model_state, batch)
    extra_args = _loss_args(losses, replica, batch, grad_fn)
    _, new = optimizers.update(tx, sparse.dense(grads), old, y, extra_args)
    total = new.weight_sum
    c = jnp.where(total > 0, (total - old.weight_sum) / total, 0.0)
    z = jax.tree.map(
        lambda a, b: (a + learning_rate * (b - a)).astype(a.dtype), old.z, new.z
    )
    x = jax.tree.map(lambda x, z: (x + c * (z - x)).astype(x.dtype), x, z)
    return Replica(x, state, new._replace(z=z), replica.carry), losses


def _loss_args(
    losses: jax.Array, replica: Replica, batch: Any, grad_fn: Callable
) -> dict[str, Any]:
    """The batch's mean loss as extra arguments: as a value and as a function."""
    look = getattr(grad_fn, "unwatched", grad_fn)

    def value_fn(params):
        return _mean(look(params, replica.model_state, batch)[0], batch)

    return {"value": _mean(losses, batch), "value_fn": value_fn}


def _mean(losses: jax.Array, batch: Any) -> jax.Array:
    if not hasattr(batch, "weight"):  # a custom batch
        return jnp.mean(losses)
    return jnp.sum(losses * batch.weight) / batch.count


def _moved(params: Params, updates: PyTree, learning_rate: jax.Array) -> Params:
    return jax.tree.map(
        lambda w, d: (w + learning_rate * d).astype(w.dtype), params, updates
    )


_WHOLE = "whole"  # in place of row ids, for a leaf that is updated whole


def _map_gradients(of_rows: Callable, of_others: Callable, grads: PyTree) -> PyTree:
    """Applies one function to each `RowSparseGrad`, another to each other gradient."""
    return jax.tree.map(
        lambda g: of_rows(g) if sparse.is_row_sparse(g) else of_others(g),
        grads,
        is_leaf=sparse.is_row_sparse,
    )


def _take(leaf: jax.Array, ids: Any) -> jax.Array:
    return leaf if ids is _WHOLE else leaf.at[ids].get(mode="clip")


def _put(leaf: jax.Array, rows: jax.Array, ids: Any) -> jax.Array:
    return rows if ids is _WHOLE else leaf.at[ids].set(rows, mode="drop")


def _put_state(
    tx: optax.GradientTransformation, opt: OptState, opt_view: OptState, ids: PyTree
) -> OptState:
    """The full optimizer state, updated with the touched rows from `opt_view`."""
    places = optax.tree_utils.tree_map_params(
        tx, lambda _, i: i, opt, ids, transform_non_params=lambda _: _WHOLE
    )
    return jax.tree.map(_put, opt, opt_view, places)
