"""Tasks with a custom loss and custom metrics."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hetjax.arguments import checked
from hetjax.data.dataset import Dataset
from hetjax.metric_mode import Mode
from hetjax.recipes import by_name
from hetjax.tasks.inputs import as_floats
from hetjax.tasks.model import Model, as_model
from hetjax.tasks.types import Task

Function = Callable[..., Any]
"""f(outputs, y) -> [B], or f(model, x, y, key) -> [B], or f(..., key, train) -> [B]"""


@by_name
@checked
def task(
    model: Any,
    loss: Function,
    metrics: Mapping[str, Function] | None = None,
    *,
    mode: Mode | None = None,
    metric: str | None = None,
    data: Dataset | None = None,
    row_params: tuple[str, ...] = (),
    batch_coupled: bool = False,
) -> Task:
    """The task of minimizing a custom loss.

    `loss` is a function (outputs, y) -> losses [B] of the model's outputs for a batch,
    or (model, x, y, key) -> [B], which calls the model itself: `model` is then the
    user's module with the current parameters, in training mode during training steps.
    If the module's call has a flag, such as `deterministic`, the function takes a fifth
    argument `train`, true in training steps, and passes the flag on. x, y and the
    outputs may be any trees of arrays. If x is a single array of bytes or booleans, the
    model receives it as float32.

    `metrics` are such functions by name; the mean over all examples is reported. The
    main metric is `metric`, by default the first one, or the loss if there is none.
    `mode` says whether larger ("max") or smaller ("min") values are better. The metric
    "loss" is always included; it is minimized.

    `model` is anything that `classification` takes; a builder of modules is called as
    `model(rngs=...)`, and a flax.linen module needs `data` for an example.

    Batches are padded to few sizes, so that the loss of an example must not depend on
    the others of its batch; this is checked before a run starts. If the dependence is
    intended, as in contrastive losses with negatives from the batch,
    `batch_coupled=True` uses exact batches, with one program per batch size.

    Errors: a ValueError that says what to pass instead.

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

    def trained(params, model_state, batch, key):
        return losses(params, model_state, batch, key, True)

    def evaluated(params, model_state, batch):
        given = params, model_state, batch, jax.random.key(0), False
        return {name: f(*given)[0] for name, f in {"loss": losses, **values}.items()}

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
        raise ValueError(
            "metrics has the name 'loss', which is reserved for the loss: rename it"
        )
    if metric is not None and metric not in (*functions, "loss"):
        known = ", ".join((*functions, "loss"))
        raise ValueError(f"metric={metric!r}: choose one of {known}")
    if mode is None and functions and metric != "loss":
        main = metric or next(iter(functions))
        raise ValueError(
            f'mode is missing: pass mode="max" if larger values of {main!r} are '
            'better, mode="min" if smaller ones are'
        )
    if mode == "max" and (metric == "loss" or not functions):
        raise ValueError(
            'mode="max": the main metric is the loss, which is minimized: pass '
            'mode="min", or another metric'
        )


def _applied(model: Model, what: str, function: Function) -> Callable[..., Any]:
    """Return (params, model_state, batch, key, train) -> (values [B], model_state)."""
    number, call = _num_arguments(what, function), model.call
    if number > 2 and call is None:
        raise ValueError(
            f"{what} takes (model, x, y, key), but the model is a Model without "
            "`call`: pass a flax module, or hetjax.from_functions(init, apply)"
        )

    def applied(params, state, batch, key, train):
        x = as_floats(batch.x)
        if call is None or number == 2:
            outputs, state = model.apply(params, state, x, key, train)
            return function(outputs, batch.y), state
        rest = (x, batch.y, key, train)[: number - 1]
        return call(lambda m: function(m, *rest), params, state, key, train)

    return applied


def _num_arguments(what: str, function: Any) -> int:
    """Return 2, 4 or 5, the number of positional arguments of the function."""
    if not callable(function):
        raise ValueError(
            f"{what} is a {type(function).__name__}: pass a function (outputs, y) or "
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
        f"{what} takes ({names}): pass a function (outputs, y) or (model, x, y, key)"
    )
