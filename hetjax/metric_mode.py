"""The mode of a metric: larger values are better ("max"), or smaller ones ("min").

All comparisons of metric values are made here. NaN is never better, and reaches no
target.
"""

import math
from collections.abc import Iterable
from typing import Literal, get_args

Mode = Literal["max", "min"]
MODES = get_args(Mode)


def better(value: float, other: float, mode: str) -> bool:
    """Whether the value is better than the other, or only the other is NaN."""
    if value != value:
        return False
    return other != other or (value > other if mode == "max" else value < other)


def best_of(values: Iterable[float], mode: str) -> float:
    """Return the best value; NaN if there is none."""
    best = math.nan
    for value in values:
        if better(value, best, mode):
            best = value
    return best


def reaches(value: float, target: float, mode: str) -> bool:
    """Whether the value is at least as good as the target."""
    return value >= target if mode == "max" else value <= target


def score(value: float, mode: str) -> float:
    """Return a number that is larger for better values: the value or its negative."""
    return value if mode == "max" else -value


def worst(mode: str) -> float:
    """Return the value than which every other one is better."""
    return -math.inf if mode == "max" else math.inf
