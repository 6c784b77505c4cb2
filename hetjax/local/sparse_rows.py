"""Optimizer steps on row weights: on all rows, or only on those of a batch."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from hetjax import sparse
from hetjax.optimizer_needs import update
from hetjax.tree import OptState, Params, PyTree


def dense_update(
    tx: optax.GradientTransformation,
    grads: PyTree,
    opt: OptState,
    params: Params,
    learning_rate: jax.Array,
    extra_args: dict[str, Any],
) -> tuple[Params, OptState]:
    """(params, opt_state) after a step on every row: w <- w + eta update(g).

    `extra_args` have the loss, for optimizers that use it (`optimizer_needs.update`).
    """
    updates, opt = update(tx, sparse.dense(grads), opt, params, extra_args)
    return jax.tree.map(
        lambda w, d: (w + learning_rate * d).astype(w.dtype), params, updates
    ), opt


def sparse_update(
    tx: optax.GradientTransformation,
    grads: PyTree,
    opt: OptState,
    params: Params,
    learning_rate: jax.Array,
    extra_args: dict[str, Any],
) -> tuple[Params, OptState]:
    """(params, opt_state) after a step on only the unique rows of the batch.

    The optimizer gets only the value of the loss: a function of all parameters would
    not fit the rows.
    """
    grads = sparse.materialize(grads)
    grads = _map_gradients(sparse.unique, lambda g: g, grads)
    ids = _map_gradients(lambda g: g.ids, lambda g: _WHOLE, grads)
    rows = _map_gradients(lambda g: g.rows, lambda g: g, grads)
    view = jax.tree.map(_take, params, ids)
    opt_view = optax.tree_utils.tree_map_params(tx, _take, opt, ids)
    value = {"value": extra_args["value"]}
    updates, opt_view = update(tx, rows, opt_view, view, value)
    view = jax.tree.map(
        lambda w, d: (w + learning_rate * d).astype(w.dtype), view, updates
    )
    params = jax.tree.map(_put, params, view, ids)
    # non-params (step counters) are taken unchanged from the updated state
    return params, _put_state(tx, opt, opt_view, ids)


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
