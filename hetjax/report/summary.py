"""The summary of a comparison in numbers: medians over seeds."""

import math
from collections.abc import Iterable
from statistics import median
from typing import Any

from hetjax.engine.records.history import History


def row(name: str, runs: list[History], target: float) -> dict[str, Any]:
    """Return one strategy's row of the summary."""
    bests, finals = [h.best() for h in runs], [h.final() for h in runs]
    seconds = median_or_nan(h.seconds_to(target) for h in runs)
    unknown = any(map(math.isnan, bests))
    ends = [h.at_end[h.metric] for h in runs if h.at_end]
    return {
        "strategy": name,
        "best": median_or_nan(bests),
        "best_spread": [math.nan] * 2 if unknown else [min(bests), max(bests)],
        "final": median_or_nan(finals),
        "collapsed": [h.seed for h in runs if h.collapsed],
        "at_end": median_or_nan(ends) if ends else None,
        "seconds_to_target": seconds if math.isfinite(seconds) else None,
        "waiting_share": median_or_nan(h.waiting_share() for h in runs),
        "updates": median_or_nan(sum(w.updates for w in h.workers) for h in runs),
        "examples": median_or_nan(sum(w.examples for w in h.workers) for h in runs),
        "merges": median_or_nan(h.merges for h in runs),
        "mb_per_worker": median_or_nan(_mb_per_worker(h) for h in runs),
        "padding_share": median_or_nan(_padding_share(h) for h in runs),
        "compilations": sum(h.compilations for h in runs),
        "seeds": [h.seed for h in runs],
        "stopped": [h.stopped for h in runs if h.stopped],
    }


def _padding_share(history: History) -> float:
    """The share of padding among all examples that were computed."""
    padded = sum(w.padded for w in history.workers)
    return padded / max(1, padded + sum(w.examples for w in history.workers))


def _mb_per_worker(history: History) -> float:
    """MB from a worker and to it, mean over the workers."""
    moved = sum(w.bytes_received + w.bytes_sent for w in history.workers)
    return moved / 1e6 / max(1, len(history.workers))


def median_or_nan(values: Iterable[float]) -> float:
    """The median, where inf stands for "never"; nan if any value is nan."""
    values = list(values)
    return math.nan if any(map(math.isnan, values)) else median(values)
