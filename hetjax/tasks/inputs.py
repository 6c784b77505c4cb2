"""A batch's inputs before the model, and the model's outputs for them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.data.batching import Batch, make_batch, make_buckets
from hetjax.data.dataset import Dataset
from hetjax.tasks import augment as images
from hetjax.tasks.model import Model
from hetjax.tree import ModelState, Params

_AUGMENT = 0x41554721  # folded into a step's key: flax itself folds in small integers
_MIX = 0x4D495821
_FACTORIES = [getattr(images, name) for name in images.__all__]  # of transforms


class Inputs(NamedTuple):
    """Functions of the inputs x of a batch, and what the model gets from them.

    for_training(x, key) -> x; for_evaluation(x) -> x
    mixed(x, key) -> (x, partner, share), where x is what `for_training` returns
    """

    for_training: Callable[[Any, jax.Array], Any]
    for_evaluation: Callable[[Any], Any]
    mixed: Callable[[Any, jax.Array], tuple[Any, jax.Array, jax.Array]]
    num_features: Any  # of an example of the model's inputs; a tree if x is a tree


def make_inputs(
    data: Dataset,
    augment: images.Transform | None = None,
    normalize: images.Transform | tuple[Any, Any] | None = None,
    mix: images.Mix | None = None,
    *,
    tokens: bool = False,
) -> Inputs:
    """Return the inputs' transforms: `augment`, then `normalize`, then `mix`.

    `augment` and `mix` are applied only in training. `tokens` stay integers, even
    bytes. Errors: a ValueError for inputs that are not one dense array, or if shapes
    differ between training and evaluation.
    """
    changes = any(part is not None for part in (augment, normalize, mix))
    if changes and (data.sparse or not hasattr(data.train.x, "shape")):
        raise ValueError(
            f"{data.name}: augment and normalize need dense inputs, one array"
            + ", and so does mix" * (mix is not None)
        )
    for name, part, example in (
        ("augment", augment, "augment.flip()"),
        ("mix", mix, "augment.mixup(0.2)"),
    ):
        if part is not None and (not callable(part) or part in _FACTORIES):
            raise ValueError(f"{name}={part!r}: pass a function, such as {example}")
    augmented, normalized = augment or _unchanged, _transform(normalize)

    def trained(x, key):
        x = x if tokens else as_floats(x, changes)
        x = augmented(jax.random.fold_in(key, _AUGMENT), x)
        return normalized(key, x)

    def evaluated(x):
        x = x if tokens else as_floats(x, changes)
        return normalized(jax.random.key(0), x)  # nothing is drawn

    def mixed(x: Any, key: jax.Array) -> Any:
        assert mix is not None
        return mix(jax.random.fold_in(key, _MIX), x)

    features = data.num_features
    if changes:
        x = _check_shapes(data, trained, evaluated)
        features = int(np.prod(x.shape[1:]))
        if mix is not None:
            _check_mix(mixed, x)
    return Inputs(trained, evaluated, mixed, features)


class Forward(NamedTuple):
    """trained(params, model_state, batch, key) -> (outputs, model_state), and
    evaluated(params, model_state, batch) -> outputs.
    """

    train_outputs: Callable[..., tuple[Any, ModelState]]
    eval_outputs: Callable[[Params, ModelState, Batch], Any]


def forward(model: Model, inputs: Inputs) -> Forward:
    """The model on a batch's inputs, which are not mixed."""

    def trained(params, model_state, batch, key):
        x = inputs.for_training(batch.x, key)
        return model.apply(params, model_state, x, key, True)

    def evaluated(params, model_state, batch):
        x, key = inputs.for_evaluation(batch.x), jax.random.key(0)  # nothing is drawn
        return model.apply(params, model_state, x, key, False)[0]

    return Forward(trained, evaluated)


def as_floats(x: Any, integers: bool = False) -> Any:
    """Return x in float32 if it is one array of bytes or booleans, such as pixels.

    Longer integers are tokens and unchanged, unless `integers` is true; a tree is
    returned unchanged.
    """
    if not isinstance(x, jax.Array | np.ndarray):
        return x
    short = jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize == 1
    whole = integers and jnp.issubdtype(x.dtype, jnp.integer)
    return x.astype(jnp.float32) if x.dtype == bool or short or whole else x


def _check_shapes(
    data: Dataset, trained: Callable[..., Any], evaluated: Callable[..., Any]
) -> jax.ShapeDtypeStruct:
    """Return the shape of two examples of the model's inputs, without computing them.

    Raise a ValueError if the shapes differ between training and evaluation.
    """
    two = make_batch(
        data.train, np.arange(2) % len(data.train), make_buckets(data.train, 2)
    )
    key = jax.random.key(0)
    found = jax.eval_shape(lambda x: (trained(x, key), evaluated(x)), two.x)
    shapes = [getattr(x, "shape", ()) for x in found]
    if any(shape[:1] != (2,) for shape in shapes):
        raise ValueError(
            f"{data.name}: augment and normalize must preserve the first axis, that of "
            f"the examples; 2 examples become {list(shapes[0])} in training and "
            f"{list(shapes[1])} in evaluation"
        )
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{data.name}: an example is {list(shapes[0][1:])} in training, after "
            f"augment and normalize, but {list(shapes[1][1:])} in evaluation, after "
            "normalize alone: pass normalize=augment.chain(augment.center_crop(...), "
            "...), or resize, so that both have the same shape"
        )
    return found[1]


def _check_mix(mixed: Callable[..., Any], x: jax.ShapeDtypeStruct) -> None:
    """Raise a ValueError unless `mixed` returns (x, partner [B] int, share [B])."""
    shape, count = x.shape, x.shape[0]
    found: Any = jax.eval_shape(lambda x: mixed(x, jax.random.key(0)), x)
    parts: Any = found if isinstance(found, tuple) else (found,)
    shapes = [getattr(part, "shape", None) for part in parts]
    fits = shapes == [shape, (count,), (count,)]
    if not fits or not jnp.issubdtype(parts[1].dtype, jnp.integer):
        raise ValueError(
            f"mix returns arrays of the shapes {shapes} for x {list(shape)}: return "
            f"(x {list(shape)}, partner [{count}] of integers, share [{count}])"
        )


def _unchanged(key: jax.Array, x: Any) -> Any:
    del key
    return x


def _transform(
    normalize: images.Transform | tuple[Any, Any] | None,
) -> images.Transform:
    """Return the function that the argument `normalize` specifies."""
    if normalize is None:
        return _unchanged
    if callable(normalize):
        return normalize
    if not isinstance(normalize, tuple | list) or len(normalize) != 2:
        raise ValueError("normalize must be a pair (mean, std) or a function (key, x)")
    return images.normalize(*normalize)
