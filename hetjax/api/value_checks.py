"""Checks of arguments that no kind of value describes; errors name the argument."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from hetjax.arguments import Bounds, Seed, as_kind, shown
from hetjax.schedule.learning_rates import START, LearningRate, check_learning_rate

MOST_EVALS = 1_000_000  # each uses the whole test split, and stays in the history
MOST_SEEDS = 10_000  # each is a run of every strategy, and all histories are kept

NumEvals = Annotated[int, Bounds(low=1, high=MOST_EVALS)]
Resume = Literal["auto", "never", "must"]


def check_callback(name: str, callback: Any, *, several: bool = False) -> None:
    """Raise a ValueError unless it is None, callable, or (`several`) a list."""
    listed = several and isinstance(callback, list | tuple)
    for one in callback if listed else (callback,):
        if one is not None and not callable(one):
            raise ValueError(
                f"{name}={shown(callback)}: pass a function of one argument"
                f"{', or several' * several}"
            )


def check_folder(name: str, path: str | Path | None) -> None:
    """Raise a ValueError if `path` is a file."""
    if path is not None and Path(path).exists() and not Path(path).is_dir():
        raise ValueError(f"{name}={str(path)!r}: this is a file; pass a folder")


def seeds_of(seeds: Any) -> tuple[int, ...]:
    """Return the seeds: 0, 1, ... for a number of seeds, or the given sequence."""
    if isinstance(seeds, Iterable) and not isinstance(seeds, str | bytes | Mapping):
        few = tuple(itertools.islice(seeds, MOST_SEEDS + 1))
        found = tuple(as_kind("seeds", seed, Seed) for seed in few)
    else:
        most = Annotated[int, Bounds(low=1, high=MOST_SEEDS)]
        found = tuple(range(as_kind("seeds", seeds, most | Sequence[Seed])))
    if not 1 <= len(found) <= MOST_SEEDS:
        number = "none" if not found else f"more than {MOST_SEEDS:,}"
        raise ValueError(f"seeds: there are {number}: pass 1 to {MOST_SEEDS:,} of them")
    if len(set(found)) < len(found):
        raise ValueError(f"seeds={found}: pass every seed once")
    return found


def check_rate(learning_rate: Any) -> None:
    """Raise a ValueError unless this is a learning rate or a learning-rate schedule.

    A schedule is called once, for its value at the start. It must be a finite number,
    at least 0 (a warm-up may begin with 0).
    """
    check_learning_rate(learning_rate)
    if isinstance(learning_rate, LearningRate):
        schedule, unit = learning_rate
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
