"""Selection and checks of the output layer of a classification task."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from hetjax import output
from hetjax.data.dataset import Dataset
from hetjax.output import Head, softmax
from hetjax.output.head import without_layer_state
from hetjax.output.layers import MakeLayer, OutputLayer
from hetjax.tasks.model import Model, param_shapes
from hetjax.tasks.task_checks import batch_of
from hetjax.tasks.types import Task
from hetjax.tree import Params

# Above this number of labels the chunked softmax is faster, for steps and for
# evaluations (experiments/benchmarks/sparse_step.py).
MANY_LABELS = 20_000
_LARGE = 100.0  # factor that makes scores larger than any bound in a model
_NOISE = 0.1  # perturbs parameters whose initial value has no effect, such as zeros
_TOLERANCE = {32: 5e-3, 16: 0.05}  # by bits per number; TensorFloat-32 counts as 32
_MAKE: dict[str, Callable[[], MakeLayer]] = {
    "chunked": output.chunked,
    "sampled": output.sampled,
    "slide": output.slide,
}


def make_head(
    model: Model, data: Dataset, chosen: Any, features: Callable[..., tuple]
) -> Head | None:
    """Return the head for classification(output=chosen); None is the full softmax.

    Raise a ValueError that says what is missing if the output layer is unknown.
    """
    if chosen == "auto":
        many = bool(model.output_params) and data.num_classes > MANY_LABELS
        chosen = "chunked" if many else "full"
    if chosen == "full":
        return None
    named = isinstance(chosen, str) and chosen in _MAKE
    make: Any = _MAKE[chosen]() if named else chosen
    # neither a factory that was not called, nor the strategy named `slide`
    makes = callable(make) and make not in _MAKE.values()
    layer = make(label_counts(data)) if makes else None
    if not isinstance(layer, OutputLayer):
        raise ValueError(
            f"output={chosen!r}: choose one of {output.LAYERS}, or pass the result of "
            "hetjax.output.chunked(), sampled() or slide()"
        )
    kernel, bias = _paths(model, data, layer.name)
    head = Head(features, kernel, bias, layer)
    _check(model, data, head)
    return head


def with_head(
    task: Task,
    head: Head,
    evaluated: Callable[..., jax.Array],
    num: int,
    measures: Callable[..., dict[str, jax.Array]],
) -> Task:
    """Return the task with the loss of a head's layer, and metrics without all logits.

    evaluated(params, model_state, batch) -> the model's outputs; measures(best `num`
    labels [B, num], y) -> metrics.
    """

    def init(key):
        params, state = task.init(key)
        return params, head.init(params, state, head.layer_key(key))

    def loss(params, model_state, batch, key):
        state, layer_state = head.split(model_state)
        h, state = head.features(head.without(params), state, batch, key)
        targets, weights = softmax.targets_of(batch.y), head.weights(params)
        losses, layer_state = head.layer.losses(
            h, *weights, layer_state, targets, head.layer_key(key)
        )
        return losses, head.joined(state, layer_state)

    def metrics(params, model_state, batch):
        state, _ = head.split(model_state)
        h = evaluated(head.without(params), state, batch)
        weights, targets = head.weights(params), softmax.targets_of(batch.y)
        losses, top = softmax.losses_and_top(h, *weights, targets, num)
        return {"loss": losses} | measures(top, batch.y)

    def restore(params, model_state):
        return task.restore(params, without_layer_state(model_state))

    return task._replace(
        init=init,
        loss=loss,
        metrics=metrics,
        restore=restore,
        head=head._replace(loss=loss),
    )


def label_counts(data: Dataset) -> np.ndarray:
    """Return [C] int64, the number of training examples of each label."""
    y = data.train.y
    found = y.indices if sp.issparse(y) else np.ravel(y)
    return np.bincount(found, minlength=data.num_classes)


def _paths(model: Model, data: Dataset, name: str) -> tuple[str, str | None]:
    """Return the paths of W and of b (None without a bias)."""
    known = param_shapes(model)
    shapes = {path: known[path] for path in model.output_params}
    if not shapes:
        raise ValueError(
            f"output={name!r} needs to know the model's output layer: mark its weights "
            "as hetjax.output.OutputParam in a flax.nnx model, or name them in "
            'output_params, such as ("kernel", "bias")'
        )
    kernels = [k for k, shape in shapes.items() if len(shape) == 2]
    biases = [k for k, shape in shapes.items() if len(shape) == 1]
    listed = ", ".join(f"{k} {list(shape)}" for k, shape in shapes.items())
    if len(kernels) != 1 or len(biases) > 1 or len(kernels + biases) != len(shapes):
        raise ValueError(
            f"output_params are {listed}: name a matrix [labels, hidden units] and, if "
            "the layer has a bias, a vector [labels]"
        )
    if any(shape[0] != data.num_classes for shape in shapes.values()):
        raise ValueError(
            f"output_params are {listed}, but the data have {data.num_classes} labels: "
            "the first axis of each must be the labels, as in z = h @ kernel.T + bias"
        )
    return kernels[0], biases[0] if biases else None


def _close(z: jax.Array, expected: jax.Array) -> bool:
    """Whether the scores are equal up to rounding."""
    if z.shape != expected.shape:
        return False
    # a model may compute in 16 bits and return 32
    short = any((z.astype(d) == z).all() for d in (jnp.bfloat16, jnp.float16))
    tolerance = _TOLERANCE[16 if short else 32]
    return bool(
        jnp.allclose(z, expected, tolerance, tolerance * jnp.abs(expected).max())
    )


def _check(model: Model, data: Dataset, head: Head) -> None:
    """Raise a ValueError unless the model's outputs are h W^T + b, for three labels.

    This is tested with small and large scores of both signs, in training and evaluation
    mode, since a function applied after the layer, such as a bound, may act only there.
    """
    x = batch_of(data.train, 2).x
    key = jax.random.key(0)

    def outputs(key: jax.Array, x: Any) -> list[tuple[jax.Array, jax.Array]]:
        params, state = model.init(key)
        params = _perturbed(params, key)  # XLA leaves out the large W
        kernel, bias = head.weights(params)
        found = []
        for training, factor in itertools.product((False, True), (1.0, _LARGE)):
            w = factor * jax.random.normal(key, (3, kernel.shape[1]), kernel.dtype)
            b = factor * jnp.arange(-1, 2) * (head.bias is not None)
            w, b = w.astype(kernel.dtype), b.astype(bias.dtype)
            views = head.without(params), head.replaced(params, w, b)
            h, z = (model.apply(view, state, x, key, training)[0] for view in views)
            found.append((z, softmax.scores(h, w, b)))
        return found

    try:
        close = all(_close(*pair) for pair in jax.jit(outputs)(key, x))
    except Exception as error:
        raise ValueError(
            f"output={head.layer.name!r} runs the model with another number of labels "
            f"in its output layer ({head.kernel}), which failed: its outputs must be "
            "h @ kernel.T + bias, with shapes taken from the weights (flax.linen "
            "modules check the shapes of their weights: use flax.nnx, or functions)"
        ) from error
    if not close:
        raise ValueError(
            f"the model's outputs are not h @ kernel.T + bias with the output_params "
            f"{head.kernel} and {head.bias}: use these only in the last layer, and "
            "return its outputs unchanged"
        )


def _perturbed(params: Params, key: jax.Array) -> Params:
    """Return the parameters with a little noise added to each."""
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    moved = [
        leaf + _NOISE * jax.random.normal(k, leaf.shape, leaf.dtype)
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(treedef, moved)
