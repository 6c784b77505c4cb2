"""Statistics of a run's main metric over its evaluations: end, collapse, held target.

The best evaluation alone is not enough: a run may have collapsed since.
"""

import math
from collections.abc import Sequence

import numpy as np

from hetjax.metric_mode import best_of, score

TENTH = 10  # the end of a curve is the last tenth of its evaluations
SLACK = 0.03  # of a target: a held value may be worse by this
LOST = 0.1  # of a run's gain: a run that lost more has collapsed
NOISE = 0.01  # of the best value: a run that lost less has not


def final(values: Sequence[float]) -> float:
    """Return the mean over the last tenth of the values, at least one; else NaN."""
    last = values[-max(1, len(values) // TENTH) :]
    return float(np.mean(last)) if last else math.nan


def has_collapsed(values: Sequence[float], mode: str) -> bool:
    """See `History.collapsed`; runs that end with NaN have stopped with a reason."""
    best, end = best_of(values, mode), final(values)
    if not (math.isfinite(best) and end == end):
        return False
    lost = score(best, mode) - score(end, mode)
    gained = score(best, mode) - score(values[0], mode)
    share = gained if gained > 0 else abs(best)  # also where the first one is NaN
    return lost > max(LOST * share, NOISE * abs(best))


def held_from(values: Sequence[float], target: float, mode: str) -> int | None:
    """Return the index of the first value that reaches the target and holds it.

    See `History.seconds_to`; None if there is no such value.
    """
    scores = np.array([score(v, mode) for v in values], float)
    scores[np.isnan(scores)] = -math.inf
    least = score(target, mode)
    reached = np.flatnonzero(scores >= least)
    if not len(reached):
        return None
    distance = abs(target - values[0])
    least -= SLACK * (min(abs(target), distance) if distance == distance else 0.0)
    if not score(final(values), mode) >= least:
        return None
    width, begin = max(3, len(scores) // TENTH), 0
    if len(scores) >= width:
        windows = np.lib.stride_tricks.sliding_window_view(scores, width)
        fallen = np.flatnonzero(np.median(windows, axis=1) < least)
        begin = fallen[-1] + 1 if len(fallen) else 0
    for k in reached[reached >= begin]:
        if len(scores) - k >= width or np.median(scores[k:]) >= least:
            return int(k)
    return None
