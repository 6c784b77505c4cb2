"""Checks of arguments that no kind of value describes; errors name the argument."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from hetjax.arguments import Bounds, Seed, shown
from hetjax.schedule.learning_rates import START, LearningRate, check_learning_rate

MOST_EVALS = 1_000_000  # each uses the whole test split, and stays in the history
MOST_SEEDS = 10_000  # each is a run of every strategy, and all histories are kept

Seeds = Annotated[int, Bounds(low=1, high=MOST_SEEDS)] | Sequence[Seed]
NumEvals = Annotated[int, Bounds(low=1, high=MOST_EVALS)]
Resume = Literal["auto", "never", "must"]


def check_folder(name: str, path: str | Path | None) -> None:
    """Raise a ValueError if `path` is a file."""
    if path is not None and Path(path).exists() and not Path(path).is_dir():
        raise ValueError(f"{name}={str(path)!r}: this is a file; pass a folder")


def seeds_of(seeds: Seeds) -> tuple[int, ...]:
    """Return the seeds: 0, 1, ... for a number of seeds, or the given sequence."""
    several = seeds if isinstance(seeds, Sequence) else range(seeds)
    if not 1 <= len(several[: MOST_SEEDS + 1]) <= MOST_SEEDS:
        raise ValueError(f"seeds={shown(seeds)}: pass 1 to {MOST_SEEDS:,} of them")
    if len(set(several)) < len(several):
        raise ValueError(f"seeds={seeds}: pass every seed once")
    return tuple(several)


def check_rate(learning_rate: Any) -> None:
    """Raise a ValueError unless this is a learning rate or a learning-rate schedule.

    A schedule is called once, for its value at the start. It must be a finite number,
    at least 0 (a warm-up may begin with 0).
    """
    check_learning_rate(learning_rate)
    if isinstance(learning_rate, LearningRate):
        schedule, unit = learning_rate.schedule, learning_rate.over
    elif callable(learning_rate):
        schedule, unit = learning_rate, "examples"
    else:
        return
    start = getattr(START, unit)
    try:
        value: Any = schedule(start)
    except Exception as error:
        raise ValueError(
            f"learning_rate: the schedule fails at its start, for {unit}={start} "
            f"({type(error).__name__}: {error})"
        ) from error
    try:
        right = not np.ndim(value) and math.isfinite(value) and value >= 0
    except TypeError:  # not a number
        right = False
    if not right:
        raise ValueError(
            f"learning_rate: the schedule begins with {shown(value)}; it must return "
            "one finite number, at least 0"
        )
