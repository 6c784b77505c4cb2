"""The metric of the best constant prediction, a baseline for every model."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from hetjax.data.dataset import Dataset
from hetjax.summaries import maker
from hetjax.tasks.types import Task


def constant_metric(task: Task, data: Dataset) -> float | None:
    """Return the main metric, on the test split, of the training split's best constant.

    The constant is the most common class or label, the mean of the numbers, or the
    frequencies of the tokens. None for other tasks and metrics, and for targets that
    are not in memory.
    """
    known = {
        ("classification", "accuracy"): _accuracy,
        ("with_head", "accuracy"): _accuracy,
        ("classification", "p@1"): _precision,
        ("with_head", "p@1"): _precision,
        ("regression", "rmse"): _rmse,
        ("next_token", "perplexity"): _perplexity,
    }
    # the metrics function of a task with replaced metrics has another maker
    find = known.get((maker(task.metrics), task.metric))
    if find is None or not len(data.test):
        return None
    return find(data.train.y, data.test.y)


def _accuracy(train: Any, test: Any) -> float | None:
    if not _in_memory(train, test):
        return None
    return float(np.mean(test == np.bincount(train).argmax()))


def _precision(train: Any, test: Any) -> float | None:
    if not (sp.issparse(train) and sp.issparse(test)):
        return None
    labels = train.indices[train.data > 0]
    if not len(labels):
        return None
    commonest = np.bincount(labels).argmax()
    true = (test.indices == commonest) & (test.data > 0)
    return float(true.sum() / test.shape[0])


def _rmse(train: Any, test: Any) -> float | None:
    if not _in_memory(train, test):
        return None
    off = test - np.mean(train, axis=0, dtype=np.float64)
    return float(np.sqrt(np.mean(off**2)))


def _perplexity(train: Any, test: Any) -> float | None:
    """None also if the test split has tokens that the training split lacks."""
    found = []
    for y in (train, test):
        parts: dict[str, Any] = y if isinstance(y, dict) else {"targets": y}
        targets, mask = parts["targets"], parts.get("mask")
        if not _in_memory(targets) or not (mask is None or _in_memory(mask)):
            return None
        weight = np.ones(targets.shape) if mask is None else np.asarray(mask, float)
        used = weight > 0
        found.append(np.bincount(targets[used], weight[used]))
    size = max(map(len, found))
    counts, seen = (np.pad(f, (0, size - len(f))) for f in found)
    if not seen.any() or np.any((counts == 0) & (seen > 0)):
        return None
    used = seen > 0
    losses = -np.log(counts[used] / counts.sum())
    return float(np.exp(losses @ seen[used] / seen.sum()))


def _in_memory(*arrays: Any) -> bool:
    return all(isinstance(a, np.ndarray) and len(a) for a in arrays)
