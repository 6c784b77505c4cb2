"""Classification tasks: softmax cross-entropy with one label, several, or none."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO

from hetjax.data.batching import Batch
from hetjax.data.dataset import Dataset
from hetjax.task.model import as_model
from hetjax.task.types import Task

TOP = (1, 3, 5)  # the k of P@k


def classification(
    model: Any, data: Dataset, *, row_params: tuple[str, ...] = ()
) -> Task:
    """The task of predicting a data set's labels with a model.

    `model` is a `flax.nnx` module or a callable that builds one (called as
    `model(num_features, num_classes, rngs=...)`, so that every seed starts elsewhere;
    a module class will do), a `flax.linen` module, or a `Model` of plain functions.
    It maps inputs [B, ...] to logits [B, C]. `row_params` names weights ("kernel",
    "first/kernel") that meet the input only through `hetjax.sparse.matmul`; nnx models
    mark them with `hetjax.sparse.RowParam` instead. A linen module must take such a
    weight's shape from `x.shape[-1]`: in training it sees the batch's rows alone.

    Loss: -sum_c t_c log softmax(z)_c, t = 1/|labels| on each true label. Metrics:
    "accuracy" where every example has one class, else "p@1", "p@3", "p@5": hits among
    the k largest logits over k.
    """
    m = as_model(model, data, row_params)

    def loss(
        params: Any, model_state: Any, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Any]:
        logits, state = m.apply(params, model_state, batch.x, key, True)
        return cross_entropy(logits, batch.y), state

    measures = _precisions(data.num_classes) if data.multilabel else _accuracy

    def metrics(params: Any, model_state: Any, batch: Batch) -> dict[str, jax.Array]:
        logits, _ = m.apply(params, model_state, batch.x, jax.random.key(0), False)
        return {"loss": cross_entropy(logits, batch.y)} | measures(logits, batch.y)

    name = "p@1" if data.multilabel else "accuracy"
    return Task(m.init, loss, metrics, name, m.restore, m.row_params)


def cross_entropy(logits: jax.Array, y: Any) -> jax.Array:
    """[B] softmax cross-entropy of logits [B, C] with class ids [B] or BCOO targets.

    -sum_c t_c (z_c - logsumexp(z)); 0 for a row without labels.
    """
    logits = jnp.asarray(logits, jnp.float32)
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    if not isinstance(y, BCOO):
        return normalizer - jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
    rows, columns = y.indices[:, 0], y.indices[:, 1]
    z = logits.at[rows, columns].get(mode="clip") - normalizer.at[rows].get(mode="clip")
    return -jax.ops.segment_sum(
        y.data * z, rows, num_segments=logits.shape[0], indices_are_sorted=True
    )


def _accuracy(logits: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    return {"accuracy": (jnp.argmax(logits, axis=-1) == y).astype(jnp.float32)}


def _precisions(num_classes: int) -> Callable[[jax.Array, BCOO], dict[str, jax.Array]]:
    ks = [k for k in TOP if k <= num_classes]

    def precisions(logits: jax.Array, y: BCOO) -> dict[str, jax.Array]:
        rows, columns = y.indices[:, 0], y.indices[:, 1]
        _, top = jax.lax.top_k(logits, ks[-1])
        match = top.at[rows].get(mode="clip") == columns[:, None]
        hits = jax.ops.segment_sum(  # [B, k]: is the j-th guess a true label?
            (match & (y.data > 0)[:, None]).astype(jnp.float32),
            rows,
            num_segments=logits.shape[0],
        )
        return {f"p@{k}": hits[:, :k].sum(-1) / k for k in ks}

    return precisions
