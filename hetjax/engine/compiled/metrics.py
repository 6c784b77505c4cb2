"""Metrics of a model on a whole split: its batches, and the means over them."""

from collections.abc import Callable

import jax
import numpy as np

from hetjax.data.batching import Batch, Bucket, make_batch, make_buckets
from hetjax.data.dataset import Split
from hetjax.tree import ModelState, Params

EVAL_EXAMPLES = 1024  # examples of an evaluation batch, at most
EVAL_LOGITS = 2**26  # logits of an evaluation batch, at most


def evaluation_batches(split: Split, num_logits: int) -> list[Batch]:
    """Return a split as batches of one shape, on the device.

    `num_logits` are those of an example that are in memory at once.
    """
    size = min(EVAL_EXAMPLES, max(1, EVAL_LOGITS // num_logits), len(split))
    pieces = [
        np.arange(i, min(i + size, len(split))) for i in range(0, len(split), size)
    ]
    buckets = [_exact_bucket(split, rows, size) for rows in pieces]
    common = tuple(max(column) for column in zip(*buckets, strict=True))
    bucket = buckets[0]._replace(nonzeros=common[1], labels=common[2])
    return [jax.device_put(make_batch(split, rows, (bucket,))) for rows in pieces]


def _exact_bucket(split: Split, rows: np.ndarray, size: int) -> Bucket:
    """Return the smallest bucket of `size` examples that holds these rows."""
    piece = split.take(rows)
    return make_buckets(piece, len(rows))[-1]._replace(size=size)


def mean_metrics(
    evaluate: Callable, model: tuple[Params, ModelState], batches: list[Batch], n: int
) -> dict[str, float]:
    """Mean metrics over all n examples; the loss over examples with labels."""
    sums = [evaluate(*model, batch) for batch in batches]
    total = {k: float(sum(np.asarray(s[k], np.float64) for s in sums)) for k in sums[0]}
    weight = total.pop("weight")
    loss = total.pop("loss")
    mean_loss = loss / weight if weight else float("nan")  # no example has a label
    return {"loss": mean_loss} | {k: v / n for k, v in total.items()}
