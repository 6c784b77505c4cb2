"""The direction of a metric: is it better if it is larger ("max"), or smaller ("min")?

Whatever compares values of a metric asks here. NaN is never better, and reaches
nothing.
"""

import math
from collections.abc import Iterable

MODES = ("max", "min")


def better(value: float, other: float, mode: str) -> bool:
    """Is the value better than the other one, or the other a NaN?"""
    if value != value:
        return False
    return other != other or (value > other if mode == "max" else value < other)


def best_of(values: Iterable[float], mode: str) -> float:
    """The best value; NaN if there is none."""
    best = math.nan
    for value in values:
        if better(value, best, mode):
            best = value
    return best


def reaches(value: float, target: float, mode: str) -> bool:
    """Is the value at least as good as the target?"""
    return value >= target if mode == "max" else value <= target


def score(value: float, mode: str) -> float:
    """A number that is larger for better values: the value, or its negative."""
    return value if mode == "max" else -value


def worst(mode: str) -> float:
    """What every value is better than."""
    return -math.inf if mode == "max" else math.inf
