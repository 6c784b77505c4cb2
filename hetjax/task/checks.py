"""Checks of a task's shapes by abstract evaluation: nothing is computed or compiled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax import sparse
from hetjax.data.batching import Batch, make_batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.task.model import Model
from hetjax.task.types import Task


def _outputs(model: Model, x: Any, key: jax.Array) -> Any:
    return model.apply(*model.init(key), x, key, False)[0]


def check_logits(model: Model, data: Dataset) -> None:
    """Raises a ValueError unless the model maps inputs to logits [B, C]."""
    batch = batch_of(data.train, 2)
    try:
        outputs = jax.eval_shape(
            lambda x: _outputs(model, x, jax.random.key(0)),  # traced, not compiled
            batch.x,
        )
    except (TypeError, ValueError) as error:
        if not data.sparse:
            raise
        raise ValueError(
            f"the model fails on the sparse inputs of {data.name} ({error}): multiply "
            "them with hetjax.sparse.matmul(x, w), w marked as hetjax.sparse.RowParam, "
            "or use hetjax.models.sparse_mlp"
        ) from error
    shape = getattr(outputs, "shape", None)
    if shape is None:
        raise ValueError(
            f"the model returns a {type(outputs).__name__}: return an array of logits "
            f"[B, C], with C = {data.num_classes} classes"
        )
    if len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"the model returns outputs {list(shape)} for a batch of 2 examples: "
            f"return logits [B, C], with C = {data.num_classes} classes"
        )
    if shape[1] != data.num_classes:
        raise ValueError(
            f"the model gives {shape[1]} logits, the data have {data.num_classes} "
            "classes: give the model as many outputs as the data have classes"
        )


def check_task(task: Task, data: Dataset, batch_size: int) -> None:
    """Raises a ValueError unless losses and metrics are one number per example.

    The trainer takes the mean over a batch, which leaves out padding; a mean taken by
    the task would include it.
    """
    params, model_state = jax.eval_shape(task.init, jax.random.key(0))
    size = max(2, batch_size)  # with one example, [1] and [B] are the same shape
    train, test = batch_of(data.train, size), batch_of(data.test, size)
    _check_losses(_losses(task, params, model_state, train), len(train.weight))
    values = jax.eval_shape(task.metrics, params, model_state, test)
    _check_metrics(values, task.metric, len(test.weight))


def batch_of(split: Split, size: int) -> Batch:
    """A batch of this many examples, which repeat if the split has too few."""
    rows = np.arange(size) % len(split)
    return make_batch(split, rows, make_buckets(split, size))


def _losses(task: Task, params: Any, model_state: Any, batch: Batch) -> Any:
    """The losses that the task's loss returns when called as in a training step."""

    def outputs(params: Any, model_state: Any, batch: Batch, key: jax.Array) -> Any:
        view, x = sparse.row_view(params, batch.x, task.row_params)
        return task.loss(view, model_state, batch._replace(x=x), key)

    key = jax.random.key(0)
    result = jax.eval_shape(outputs, params, model_state, batch, key)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValueError(
            f"the task's loss returns {_shown(result)}: return a pair (losses [B], "
            "model_state)"
        )
    return result[0]


def _check_losses(losses: Any, size: int) -> None:
    if getattr(losses, "shape", None) != (size,):
        raise ValueError(
            f"the task's loss is {_shown(losses)} for a batch of {size} examples: "
            f"return one loss for each example, [{size}], not their mean"
        )
    if not jnp.issubdtype(losses.dtype, jnp.floating):
        raise ValueError(f"the task's losses are {losses.dtype}: return floats")


def _check_metrics(values: Any, metric: str, size: int) -> None:
    if not isinstance(values, dict):
        raise ValueError(
            f"the task's metrics are {_shown(values)}: return a dictionary of values "
            '[B], with "loss" among them'
        )
    for name in dict.fromkeys(("loss", metric)):
        if name not in values:
            known = ", ".join(map(str, values)) or "nothing"
            raise ValueError(
                f"the task's metrics have no {name!r} (they have {known}): return it"
            )
    for name, value in values.items():
        if getattr(value, "shape", None) != (size,):
            raise ValueError(
                f"the task's metric {name!r} is {_shown(value)} for a batch of {size} "
                f"examples: return one value for each example, [{size}], not their mean"
            )


def _shown(value: Any) -> str:
    """For messages: the shape and dtype of an array, or the type of anything else."""
    if not hasattr(value, "shape"):
        return f"a {type(value).__name__}"
    return f"{list(value.shape)} of {value.dtype}" if value.shape else "a scalar, []"
