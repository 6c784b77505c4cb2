"""The `Task` interface and its gradient: everything that the loop needs of a model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import sparse
from hetjax.data.batching import Batch
from hetjax.tree import ModelState, Params


class Task(NamedTuple):
    """Pure functions of a learning problem; B is the size of a padded batch.

    init(key) -> (params, model_state)
    loss(params, model_state, batch, key) -> (losses [B], model_state)     training
    metrics(params, model_state, batch) -> {name: [B] values}    with "loss" among them
    restore(params, model_state) -> the user's own model, ready to predict
    """

    init: Callable[[jax.Array], tuple[Params, ModelState]]
    loss: Callable[[Params, ModelState, Batch, jax.Array], tuple[jax.Array, ModelState]]
    metrics: Callable[[Params, ModelState, Batch], dict[str, jax.Array]]
    metric: str  # the main one: larger is better
    restore: Callable[[Params, ModelState], Any] = lambda params, model_state: params
    row_params: tuple[str, ...] = ()  # paths of weights that meet sparse inputs


def make_grad_fn(
    task: Task, key: jax.Array
) -> Callable[[Params, ModelState, Batch], tuple]:
    """grad_fn(params, model_state, batch) -> (losses [B], model_state, grads).

    grads are of sum_i weight_i loss_i / n, with n true examples in the batch; for the
    task's row weights under a sparse input they are `sparse.RowSparseGrad`s.
    """

    def grad_fn(params: Params, model_state: ModelState, batch: Batch) -> tuple:
        view, x = sparse.row_view(params, batch.x, task.row_params)
        seen = batch._replace(x=x)

        def objective(view: Params) -> tuple[jax.Array, tuple]:
            losses, state = task.loss(view, model_state, seen, key)
            return jnp.sum(losses * batch.weight) / batch.count, (losses, state)

        grads, (losses, state) = jax.grad(objective, has_aux=True)(view)
        grads = sparse.row_sparse_grads(grads, params, batch.x, task.row_params)
        return losses, state, grads

    return grad_fn
