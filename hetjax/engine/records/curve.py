"""What the evaluations of a run say of its main metric: its end, and lasting success.

The best evaluation alone says little: a run may have collapsed since.
"""

import math
from collections.abc import Sequence

import numpy as np

from hetjax.metric_mode import best_of, score

TENTH = 10  # the end of a curve is the last tenth of its evaluations
SLACK = 0.03  # of a target: what is held may be worse by this
LOST = 0.1  # of what a run gained: one that lost more has collapsed
NOISE = 0.01  # of the best value: what loses less has not


def final(values: Sequence[float]) -> float:
    """The mean over the last tenth of the values, at least one; NaN without any."""
    last = values[-max(1, len(values) // TENTH) :]
    return float(np.mean(last)) if last else math.nan


def has_collapsed(values: Sequence[float], mode: str) -> bool:
    """Whether the end is far below the best value.

    It has lost more than a tenth of what the best value gained over the first one, and
    more than 1 % of the best value. NaN at the end is no collapse: such runs stop, and
    say so.
    """
    best, end = best_of(values, mode), final(values)
    if not (math.isfinite(best) and end == end):
        return False
    lost = score(best, mode) - score(end, mode)
    gained = score(best, mode) - score(values[0], mode)
    share = gained if gained > 0 else abs(best)  # also where the first one is NaN
    return lost > max(LOST * share, NOISE * abs(best))


def held_from(values: Sequence[float], target: float, mode: str) -> int | None:
    """The index of the first value that reaches the target, and from which it is held.

    From there on, the median of any w consecutive values (of what is left, if fewer) is
    no more than 3 % below the target: 3 % of the target, or of its distance from the
    first value, whichever is less. w is a tenth of all values, and at least three, so
    that a single value of any size decides nothing. The end, `final`, is no
    more than that below it, either. None if there is no such value.
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
