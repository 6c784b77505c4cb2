"""Checks of a task's shapes by abstract evaluation: nothing is computed or compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError

from hetjax import sparse
from hetjax.data.batching import Batch, make_batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.tasks.inputs import Forward
from hetjax.tasks.model import Model
from hetjax.tasks.types import Mean, Task


def check_classes(data: Dataset) -> None:
    """Raise a ValueError unless the targets are class ids or sets of labels."""
    y = data.train.y
    if data.num_classes:
        return
    if hasattr(y, "shape") and y.dtype.kind not in "iu":
        raise ValueError(
            f"y of {data.name} are {y.dtype}, which are regression targets: use "
            "hetjax.regression(model, data); class ids are integers"
        )
    found = "several arrays"
    if hasattr(y, "shape"):
        found = f"{list(y.shape)} of {y.dtype}"
    raise ValueError(
        f"y of {data.name} is {found}, not class ids [N] or sets of labels [N, C] of "
        "zeros and ones: for tokens use hetjax.next_token, for other targets "
        "hetjax.task with a custom loss"
    )


def check_outputs(
    model: Model, run: Forward, data: Dataset, fits: Callable[..., bool], wanted: str
) -> None:
    """Raise a ValueError unless fits(shape) of the outputs for two examples.

    `wanted` says which outputs fit.
    """
    outputs = outputs_of_two(model, run, data)
    shape = getattr(outputs, "shape", None)
    if shape is None or not fits(shape):
        raise ValueError(
            f"the model returns {_describe(outputs)} for a batch of 2 examples: return "
            f"{wanted}"
        )


def outputs_of_two(model: Model, run: Forward, data: Dataset) -> Any:
    """Return shapes and dtypes of the model's outputs for a batch of two examples.

    The model is traced, not compiled. If this fails, raise a ValueError with its input.
    """
    batch = batch_of(data.train, 2)
    try:
        # without a wrapper, so that JAX traces it only once for all callers
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        return jax.eval_shape(run.eval_outputs, *shapes, batch)
    except (TypeError, ValueError, FlaxError) as error:
        why = _first_line(error)
        if data.sparse:
            raise ValueError(
                f"the model fails on the sparse inputs of {data.name} ({why}): "
                "multiply them by hetjax.sparse.matmul(x, w), with w marked as "
                "hetjax.sparse.RowParam, or use hetjax.models.sparse_mlp"
            ) from error
        x = jax.tree.map(_describe, batch.x)
        raise ValueError(
            f"the model fails on a batch of 2 examples of {data.name}, x {x}: {why}"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def check_task(task: Task, data: Dataset, batch_size: int) -> None:
    """Raise a ValueError unless losses and metrics are one number per example.

    The trainer takes the mean over a batch, without its padding; a mean taken by the
    task would include it.
    """
    params, model_state = trainable_shapes(task)
    size = max(2, batch_size)  # with one example, [1] and [B] are the same shape
    train, test = batch_of(data.train, size), batch_of(data.test, size)
    try:
        losses = _losses(task, params, model_state, train)
    except TypeError as error:  # of JAX, whose message says nothing of tasks and data
        x, why = (
            jax.tree.map(_describe, train.x),
            _first_line(error).rstrip("."),
        )
        raise ValueError(
            f"the task's loss fails on a batch of {data.name}, x {x}: {why}; was the "
            "task made for other data?"
        ) from error
    _check_losses(losses, len(train.weight))
    values = jax.eval_shape(task.metrics, params, model_state, test)
    _check_metrics(values, task, len(test.weight))


def model_shapes(task: Task) -> tuple[Any, Any]:
    """Return the shapes of the task's (params, model_state), from its init.

    Raise a ValueError unless init returns such a pair.
    """
    found = jax.eval_shape(task.init, jax.random.key(0))
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(
            f"the task's init returns {_describe(found)}: return a pair (params, "
            "model_state), with () as model_state if there is none"
        )
    return found


def trainable_shapes(task: Task) -> tuple[Any, Any]:
    """Return `model_shapes`; a ValueError for dtypes that no merge can average."""
    params, model_state = model_shapes(task)
    _check_dtypes("parameter", params)
    _check_dtypes("model state", model_state, integers=True)
    return params, model_state


def model_like(task: Task, params: Any) -> tuple[Any, Any]:
    """Return the given (params, model_state), cast to the dtypes of the task.

    Without model state in the task, the parameters alone are enough. Raise a ValueError
    if structure or shapes differ from the task's.
    """
    like = model_shapes(task)
    structure = jax.tree.structure(like)
    pair = jax.tree.structure(params) == structure
    if not pair and jax.tree.leaves(like[1]):
        raise ValueError(
            "params: the model has state besides its parameters: pass a pair (params, "
            "model_state), like that of task.init(key)"
        )
    model = params if pair else (params, like[1])
    shapes = [x.shape for x in jax.tree.leaves(like)]
    same = jax.tree.structure(model) == structure
    if not same or [jnp.shape(x) for x in jax.tree.leaves(model)] != shapes:
        raise ValueError(
            "params: not the parameters of this task: pass a tree like that of "
            "task.init(key)[0], or a pair with the model state"
        )
    return jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), model, like)


def _check_dtypes(what: str, trees: Any, *, integers: bool = False) -> None:
    """Raise a ValueError for complex numbers and, unless allowed, `integers`."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
        dtype, name = leaf.dtype, sparse.path_name(path)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            raise ValueError(
                f"the {what} {name!r} is {dtype}: complex numbers are not supported; "
                "store their real and imaginary parts as two arrays, and combine them "
                "in the model"
            )
        if not integers and not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"the {what} {name!r} is {dtype}, which has no gradient: make it "
                "floating-point, or part of the model state"
            )


def batch_of(split: Split, size: int) -> Batch:
    """Return a batch of `size` examples, which repeat if the split has too few."""
    rows = np.arange(size) % len(split)
    return make_batch(split, rows, make_buckets(split, size))


def _losses(task: Task, params: Any, model_state: Any, batch: Batch) -> Any:
    """Return the shape of the losses of a training step.

    Raise a ValueError if the task's loss does not return a pair, or if it changes the
    structure of the model state.
    """

    def outputs(params: Any, model_state: Any, batch: Batch, key: jax.Array) -> Any:
        view, x = sparse.row_view(params, batch.x, task.row_params)
        return task.loss(view, model_state, batch._replace(x=x), key)

    key = jax.random.key(0)
    result = jax.eval_shape(outputs, params, model_state, batch, key)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValueError(
            f"the task's loss returns {_describe(result)}: return a pair (losses [B], "
            "model_state)"
        )
    _check_state(model_state, result[1])
    return result[0]


def _check_state(before: Any, after: Any) -> None:
    found, wanted = (
        {
            sparse.path_name(path): f"{list(leaf.shape)} of {leaf.dtype}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        }
        for state in (after, before)
    )
    for name in dict.fromkeys((*wanted, *found)):
        old, new = (side.get(name, "missing") for side in (wanted, found))
        if old != new:
            raise ValueError(
                f"the task's model state {name!r} is {old} before a training step and "
                f"{new} after it: create all state in `init`, and preserve its shapes "
                "and dtypes in every step"
            )


def _check_losses(losses: Any, size: int) -> None:
    shape = getattr(losses, "shape", None)
    if shape is not None and len(shape) > 1:
        raise ValueError(
            f"the task's loss is {_describe(losses)} for a batch of {size} examples: "
            f"return one loss per example, [{size}]; outputs [B, 1] broadcast with y "
            "[B] to [B, B]: use outputs[:, 0]"
        )
    if shape != (size,):
        raise ValueError(
            f"the task's loss is {_describe(losses)} for a batch of {size} examples: "
            f"return one loss per example, [{size}], not their mean"
        )
    if not jnp.issubdtype(losses.dtype, jnp.floating):
        raise ValueError(f"the task's losses are {losses.dtype}: return floats")


def _check_metrics(values: Any, task: Task, size: int) -> None:
    if not isinstance(values, dict):
        raise ValueError(
            f"the task's metrics are {_describe(values)}: return a dictionary of "
            'values [B] by name, including "loss"'
        )
    reported = task.finish(dict.fromkeys(values, 1.0)) if "loss" in values else values
    for name in dict.fromkeys(("loss", task.metric)):
        if name not in reported:
            known = ", ".join(map(str, reported)) or "nothing"
            raise ValueError(
                f"the task's metrics have no {name!r} (they have {known}): return it"
            )
    parts = [
        (name, part)
        for name, value in values.items()
        for part in (value if isinstance(value, Mean) else (value,))
    ]
    for name, value in parts:
        if getattr(value, "shape", None) != (size,):
            raise ValueError(
                f"the task's metric {name!r} is {_describe(value)} for a batch of "
                f"{size} examples: return one value per example, [{size}], not their "
                "mean"
            )


def _describe(value: Any) -> str:
    """Return for messages the shape and dtype of an array, or the type of a value."""
    if not hasattr(value, "shape"):
        return f"a {type(value).__name__}"
    return f"{list(value.shape)} of {value.dtype}" if value.shape else "a scalar, []"
