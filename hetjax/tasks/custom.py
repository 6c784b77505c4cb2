"""Tasks with a loss and metrics of one's own."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hetjax.data.batching import Batch
from hetjax.data.dataset import Dataset
from hetjax.metric_mode import MODES
from hetjax.recipes import by_name
from hetjax.tasks.inputs import as_floats
from hetjax.tasks.model import Model, as_model
from hetjax.tasks.types import Task
from hetjax.tree import ModelState, Params

Function = Callable[..., Any]
"""f(outputs, y) -> [B], or f(model, x, y, key) -> [B], or (..., key, train)"""


@by_name
def task(
    model: Any,
    loss: Function,
    metrics: Mapping[str, Function] | None = None,
    *,
    mode: str | None = None,
    metric: str | None = None,
    data: Dataset | None = None,
    row_params: tuple[str, ...] = (),
    batch_coupled: bool = False,
) -> Task:
    """The task of making a loss of one's own small.

    `loss` is a function (outputs, y) -> losses [B] of the model's outputs for a batch,
    or (model, x, y, key) -> [B], which calls the model itself: `model` is then the
    user's own module with the parameters of the moment, in training mode in a training
    step. If the module's call has a flag of its own, such as `deterministic`, the
    function takes a fifth argument `train`, true in training steps, and gives it.
    x, y and the outputs may be any trees of arrays. Bytes and flags in an x that is one
    array reach the model as float32.

    `metrics` are such functions by name; the mean over all examples is reported. The
    main one is `metric`, by default the first, and the loss if there is none. `mode`
    says whether it is better if it is larger ("max") or smaller ("min"), as the loss;
    "loss" is always there.

    `model` is anything that `classification` takes; one that builds a module is called
    as `model(rngs=...)`, and a flax.linen module needs the `data` for an example.

    Batches are padded to few sizes, so that the loss of an example must not depend on
    the others of its batch; a run checks that before it begins. Where it is meant, as
    in contrastive losses with negatives of the batch, `batch_coupled=True` takes exact
    batches, with a program for every batch size.

    Errors: a ValueError that says what to give.

    >>> import hetjax as hj, jax.numpy as jnp, optax
    >>> def huber(outputs, y):
    ...     return optax.huber_loss(outputs, y).mean(axis=-1)
    >>> model = hj.from_functions(lambda key: jnp.zeros((3, 2)), lambda w, x: x @ w)
    >>> hj.task(model, huber).metric
    'loss'
    """
    functions = dict(metrics or {})
    _check_names(functions, metric, mode)
    main = metric or next(iter(functions), "loss")
    m = as_model(model, data, row_params, sizes=())
    losses = _applied(m, "loss", loss)
    values = {k: _applied(m, f"metrics[{k!r}]", f) for k, f in functions.items()}

    def trained(
        params: Params, model_state: ModelState, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, ModelState]:
        return losses(params, model_state, batch, key, True)

    def evaluated(
        params: Params, model_state: ModelState, batch: Batch
    ) -> dict[str, jax.Array]:
        key = jax.random.key(0)
        every = {"loss": losses, **values}
        return {
            name: f(params, model_state, batch, key, False)[0]
            for name, f in every.items()
        }

    return Task(
        m.init,
        trained,
        evaluated,
        main,
        m.restore,
        m.row_params,
        mode=mode or "min",
        batch_coupled=batch_coupled,
    )


def _check_names(
    functions: dict[str, Function], metric: str | None, mode: str | None
) -> None:
    if "loss" in functions:
        raise ValueError("metrics has the name 'loss', which the loss itself has")
    if metric is not None and metric not in (*functions, "loss"):
        known = ", ".join((*functions, "loss"))
        raise ValueError(f"metric={metric!r}: choose one of {known}")
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode={mode!r}: choose one of {MODES}")
    if mode is None and functions and metric != "loss":
        main = metric or next(iter(functions))
        raise ValueError(
            f'mode is missing: is {main!r} better if it is larger, mode="max", or '
            'smaller, mode="min"?'
        )
    if mode == "max" and (metric == "loss" or not functions):
        raise ValueError('mode="max": the main metric is the loss, which is made small')


def _applied(model: Model, what: str, function: Function) -> Callable[..., Any]:
    """(params, model_state, batch, key, train) -> (values [B], model_state)."""
    number = _num_arguments(what, function)
    if number == 2:

        def of_outputs(
            params: Params, state: ModelState, batch: Batch, key: Any, train: bool
        ) -> tuple[Any, ModelState]:
            x = as_floats(batch.x)
            outputs, state = model.apply(params, state, x, key, train)
            return function(outputs, batch.y), state

        return of_outputs
    call = model.call
    if call is None:
        raise ValueError(
            f"{what} takes (model, x, y, key), but the model was made as a Model "
            "without `call`: give a flax module, or hetjax.from_functions(init, apply)"
        )

    def of_model(
        params: Params, state: ModelState, batch: Batch, key: Any, train: bool
    ) -> tuple[Any, ModelState]:
        x = as_floats(batch.x)
        rest = (x, batch.y, key, train)[: number - 1]
        return call(lambda m: function(m, *rest), params, state, key, train)

    return of_model


def _num_arguments(what: str, function: Any) -> int:
    """2, 4 or 5: the arguments that the function takes by position."""
    if not callable(function):
        raise ValueError(
            f"{what} is a {type(function).__name__}: give a function (outputs, y) or "
            "(model, x, y, key)"
        )
    kinds = inspect.Parameter
    parameters = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    needed = sum(p.default is kinds.empty for p in parameters)
    if len(parameters) >= 5 and parameters[4].name == "train":
        return 5
    if needed in (3, 4) and len(parameters) >= 4:
        return 4
    if needed <= 2 <= len(parameters):
        return 2
    names = ", ".join(p.name for p in parameters)
    raise ValueError(
        f"{what} takes ({names}): give a function (outputs, y) or (model, x, y, key)"
    )
