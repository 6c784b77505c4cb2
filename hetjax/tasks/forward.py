"""A model's outputs in training and in evaluation, with what is done to its inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from hetjax.data.batching import Batch
from hetjax.tasks.inputs import Inputs
from hetjax.tasks.model import Model
from hetjax.tree import ModelState, Params


class Forward(NamedTuple):
    """trained(params, model_state, batch, key) -> (outputs, model_state), and
    evaluated(params, model_state, batch) -> outputs.
    """

    trained: Callable[..., tuple[Any, ModelState]]
    evaluated: Callable[[Params, ModelState, Batch], Any]


def forward(model: Model, inputs: Inputs) -> Forward:
    """The model on a batch's inputs, which are not mixed."""

    def trained(
        params: Params, model_state: ModelState, batch: Batch, key: jax.Array
    ) -> tuple[Any, ModelState]:
        x = inputs.trained(batch.x, key)
        return model.apply(params, model_state, x, key, True)

    def evaluated(params: Params, model_state: ModelState, batch: Batch) -> Any:
        x, key = inputs.evaluated(batch.x), jax.random.key(0)  # nothing is drawn
        return model.apply(params, model_state, x, key, False)[0]

    return Forward(trained, evaluated)
