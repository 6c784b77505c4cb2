"""Accuracy and P@k from the labels with the largest scores."""

import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO

from hetjax.data.dataset import Dataset

TOP = (1, 3, 5)  # the k of P@k


def num_top(data: Dataset) -> int:
    """How many of the best labels the metrics of a data set need."""
    if not data.multilabel:
        return 1
    return max(k for k in TOP if k <= data.num_classes)


def best(logits: jax.Array, num: int) -> jax.Array:
    """[B, num] labels with the largest logits [B, C], best first."""
    if num == 1:  # faster than a top_k
        return jnp.argmax(logits, axis=-1)[:, None]
    return jax.lax.top_k(logits, num)[1]


def accuracy(top: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    """Is the best label [B, 1] the class id [B]?"""
    return {"accuracy": (top[:, 0] == y).astype(jnp.float32)}


def precisions(top: jax.Array, y: BCOO) -> dict[str, jax.Array]:
    """P@k of the best labels [B, k], best first: hits among the first k over k."""
    rows, columns = y.indices[:, 0], y.indices[:, 1]
    match = top.at[rows].get(mode="clip") == columns[:, None]
    hits = jax.ops.segment_sum(  # [B, k]: is the j-th guess a true label?
        (match & (y.data > 0)[:, None]).astype(jnp.float32),
        rows,
        num_segments=top.shape[0],
    )
    ks = [k for k in TOP if k <= top.shape[1]]
    return {f"p@{k}": hits[:, :k].sum(-1) / k for k in ks}
