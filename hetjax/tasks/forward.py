"""A model's outputs in training and in evaluation, with what is done to its inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.data.batching import Batch
from hetjax.data.dataset import Dataset
from hetjax.tasks import augment as images
from hetjax.tasks.model import Model
from hetjax.tree import ModelState, Params

_AUGMENT = 0x41554721  # folded into a step's key: flax folds in small numbers itself


class Forward(NamedTuple):
    """trained(params, model_state, batch, key) -> (outputs, model_state), and
    evaluated(params, model_state, batch) -> outputs.
    """

    trained: Callable[..., tuple[Any, ModelState]]
    evaluated: Callable[[Params, ModelState, Batch], Any]


def forward(
    model: Model,
    data: Dataset,
    augment: images.Transform | None = None,
    normalize: images.Transform | tuple[Any, Any] | None = None,
    *,
    tokens: bool = False,
) -> Forward:
    """The model on a batch's inputs: `augment` in training, then `normalize`.

    Inputs that are `tokens` stay integers, even bytes.
    """
    changes = augment is not None or normalize is not None
    if changes and (data.sparse or not hasattr(data.train.x, "shape")):
        raise ValueError(
            f"{data.name}: augment and normalize need dense inputs, one array"
        )
    augmented, normalized = augment or _unchanged, _transform(normalize)

    def trained(
        params: Params, model_state: ModelState, batch: Batch, key: jax.Array
    ) -> tuple[Any, ModelState]:
        x = batch.x if tokens else as_floats(batch.x, changes)
        x = augmented(jax.random.fold_in(key, _AUGMENT), x)
        return model.apply(params, model_state, normalized(key, x), key, True)

    def evaluated(params: Params, model_state: ModelState, batch: Batch) -> Any:
        key = jax.random.key(0)  # nothing is drawn
        x = normalized(key, batch.x if tokens else as_floats(batch.x, changes))
        return model.apply(params, model_state, x, key, False)[0]

    return Forward(trained, evaluated)


def as_floats(x: Any, integers: bool = False) -> Any:
    """x in float32 if it is one array of bytes or flags, such as pixels.

    Longer `integers` are tokens, unless this says otherwise; of a tree, nothing is
    changed.
    """
    if not isinstance(x, jax.Array | np.ndarray):
        return x
    short = jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize == 1
    whole = integers and jnp.issubdtype(x.dtype, jnp.integer)
    return x.astype(jnp.float32) if x.dtype == bool or short or whole else x


def _unchanged(key: jax.Array, x: Any) -> Any:
    del key
    return x


def _transform(
    normalize: images.Transform | tuple[Any, Any] | None,
) -> images.Transform:
    """The function that the argument `normalize` specifies."""
    if normalize is None:
        return _unchanged
    if callable(normalize):
        return normalize
    if not isinstance(normalize, tuple | list) or len(normalize) != 2:
        raise ValueError("normalize must be a pair (mean, std) or a function (key, x)")
    return images.normalize(*normalize)
