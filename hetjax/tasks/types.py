"""The `Task` interface and its gradient: all that the loop needs from a model."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import sparse
from hetjax.data.batching import Batch
from hetjax.output import Head, softmax
from hetjax.summaries import counted, html_of, maker, two_lines
from hetjax.tree import ModelState, Params


class Mean(NamedTuple):
    """A metric that is not a mean over examples: sum of `total` / sum of `count`.

    Both are [B]. An example is the loss per token of sequences of different lengths.
    """

    total: Any
    count: Any


class Task(NamedTuple):
    """Pure functions of a learning problem; B is the size of a padded batch.

    init(key) -> (params, model_state)
    loss(params, model_state, batch, key) -> (losses [B], model_state), in training
    metrics(params, model_state, batch) -> {name: [B] values, or a Mean}; must include
        "loss"
    restore(params, model_state) -> the user's model, ready to predict
    finish({name: mean}) -> the reported metrics, such as the root of a mean; in
        `make_run`, means may be JAX tracers
    """

    init: Callable[[jax.Array], tuple[Params, ModelState]]
    loss: Callable[[Params, ModelState, Batch, jax.Array], tuple[jax.Array, ModelState]]
    metrics: Callable[[Params, ModelState, Batch], dict[str, Any]]
    metric: str  # the main metric
    restore: Callable[[Params, ModelState], Any] = lambda params, model_state: params
    row_params: tuple[str, ...] = ()  # paths of weights that meet sparse inputs
    head: Head | None = None  # an output layer whose gradients are not left to autodiff
    mode: str = "max"  # whether the main metric is to be large ("max") or small ("min")
    finish: Callable[[dict[str, float]], dict[str, float]] = lambda means: means
    # whether an example's loss depends on the others of its batch, which is not padded
    batch_coupled: bool = False
    # whether the training loss mixes examples; rows of padding may then be partners
    mixes: bool = False

    _example = "hetjax.classification(...)"
    _repr_html_ = html_of

    def __repr__(self) -> str:
        params, _ = jax.eval_shape(self.init, jax.random.key(0))
        leaves = jax.tree.leaves(params)
        number = sum(math.prod(leaf.shape) for leaf in leaves)
        dtypes = ", ".join(sorted({str(leaf.dtype) for leaf in leaves}))
        better = "larger" if self.mode == "max" else "smaller"
        return two_lines(
            f"Task {maker(self.loss)}: {self.metric}, {better} is better",
            (
                f"{number:,} parameters in {counted(len(leaves), 'array')} of {dtypes}",
                f"output layer {self.output}" * bool(self.output),
                f"row weights {', '.join(self.row_params)}" * bool(self.row_params),
            ),
        )

    @property
    def output(self) -> str:
        """The head's layer with its settings, for results; "" without a head."""
        return self.head.layer.text if self.head else ""


def make_grad_fn(
    task: Task, key: jax.Array
) -> Callable[[Params, ModelState, Batch], tuple]:
    """Return grad_fn(params, model_state, batch) -> (losses [B], model_state, grads).

    grads are those of sum_i weight_i loss_i / n, with n true examples in the batch. For
    the task's row weights and a sparse input they are `sparse.RowSparseGrad`s; for the
    weights of the output layer they are those of `OutputLayer.loss_and_grads`.
    """
    # a task whose loss was changed by `_replace` is differentiated by autodiff
    if task.head is not None and task.loss is task.head.loss:
        return _head_grad_fn(task, task.head, key)

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


def _head_grad_fn(task: Task, head: Head, key: jax.Array) -> Callable:
    """Like `make_grad_fn`, with the gradient of the output layer computed by itself."""

    def grad_fn(params: Params, model_state: ModelState, batch: Batch) -> tuple:
        view, x = sparse.row_view(head.without(params), batch.x, task.row_params)
        seen = batch._replace(x=x)
        inner, layer_state = head.split(model_state)
        h, pull, inner = jax.vjp(
            lambda view: head.features(view, inner, seen, key), view, has_aux=True
        )
        targets = softmax.targets_of(batch.y)
        scale = jnp.asarray(batch.weight / batch.count)
        losses, dh, dw, db, layer_state = head.layer.loss_and_grads(
            h, *head.weights(params), layer_state, targets, scale, head.layer_key(key)
        )
        (grads,) = pull(dh.astype(h.dtype))
        grads = sparse.row_sparse_grads(grads, params, batch.x, task.row_params)
        grads = head.replaced(grads, dw, db)
        return losses, head.joined(inner, layer_state), grads

    return grad_fn
