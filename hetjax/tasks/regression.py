"""Regression tasks: predicting numbers by least squares."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.arguments import checked
from hetjax.data.dataset import Dataset
from hetjax.recipes import by_name
from hetjax.tasks import augment as images
from hetjax.tasks.inputs import forward, make_inputs
from hetjax.tasks.model import as_model
from hetjax.tasks.task_checks import check_outputs
from hetjax.tasks.types import Task


@by_name
@checked
def regression(
    model: Any,
    data: Dataset,
    *,
    augment: images.Transform | None = None,
    normalize: images.Transform | tuple[Any, Any] | None = None,
    row_params: tuple[str, ...] = (),
) -> Task:
    """The task of predicting numbers y [N] or [N, k] by least squares.

        loss_i = mean_k (f(x_i)_k - y_ik)^2

    `model` is anything that `classification` takes; a builder of modules is called as
    `model(num_features, k, rngs=...)`, with k = 1 for y [N]. It maps inputs to [B, k],
    or to [B] for y [N]. The other arguments are those of `classification`.

    Metrics: "rmse", the root of the mean loss (the main metric: smaller is better),
    "mae", the mean absolute error, and "loss". Errors: a ValueError for targets that
    are classes, or outputs of another shape.
    """
    width = _width(data)
    inputs = make_inputs(data, augment, normalize)
    sizes = inputs.num_features, width
    m = as_model(model, data, row_params, sizes=sizes, transform=inputs.for_evaluation)
    run = forward(m, inputs)
    y = data.train.y
    single = y.ndim == 1
    check_outputs(
        m,
        run,
        data,
        lambda shape: shape == (2, *y.shape[1:]) or (single and shape == (2, 1)),
        f"{'[B] or [B, 1]' if single else f'[B, {width}]'}, as y of {data.name} is "
        f"{list(y.shape)}",
    )

    def errors(outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return [B, k], f(x) - y in float32."""
        size = y.shape[0]
        difference = jnp.asarray(outputs, jnp.float32).reshape(size, -1)
        return difference - jnp.asarray(y, jnp.float32).reshape(size, -1)

    def loss(params, model_state, batch, key):
        outputs, state = run.train_outputs(params, model_state, batch, key)
        return jnp.mean(errors(outputs, batch.y) ** 2, axis=1), state

    def metrics(params, model_state, batch):
        e = errors(run.eval_outputs(params, model_state, batch), batch.y)
        return {"loss": jnp.mean(e**2, axis=1), "mae": jnp.mean(jnp.abs(e), axis=1)}

    return Task(
        m.init,
        loss,
        metrics,
        "rmse",
        m.restore,
        m.row_params,
        mode="min",
        finish=_finish,
    )


def _finish(means: dict[str, Any]) -> dict[str, Any]:
    loss = means["loss"]
    root = jnp.sqrt(loss) if isinstance(loss, jax.Array) else float(np.sqrt(loss))
    return {"rmse": root} | means


def _width(data: Dataset) -> int:
    """Return k, the number of values predicted per example; 1 for y [N]."""
    y = data.train.y
    if data.num_classes:
        raise ValueError(
            f"y of {data.name} are classes: use hetjax.classification, or, if they are "
            'numbers, from_arrays(..., targets="values")'
        )
    if not hasattr(y, "shape") or len(y.shape) > 2:
        found = list(y.shape) if hasattr(y, "shape") else "several arrays"
        raise ValueError(
            f"y of {data.name} is {found}: regression needs [N] or [N, k]; for other "
            "targets use hetjax.task with a custom loss"
        )
    return 1 if len(y.shape) == 1 else int(y.shape[1])
