"""Learning rates over examples, epochs, updates or seconds (host world)."""

from collections.abc import Callable
from typing import Any, NamedTuple

UNITS = ("examples", "epochs", "updates", "seconds")


class Progress(NamedTuple):
    """How far a run is: what its workers finished by now."""

    examples: int
    epochs: float  # examples over those of the training split
    updates: int
    seconds: float  # of the clock


START = Progress(0, 0.0, 0, 0.0)


class Rate(NamedTuple):
    """A schedule, such as optax's, and what it runs over: one of UNITS.

    >>> Rate(lambda epochs: 0.1 if epochs < 2 else 0.01, over="epochs").over
    'epochs'
    """

    schedule: Callable[[float], Any]
    over: str = "examples"


RateLike = float | Callable[[float], Any] | Rate


def rate_at(rate: RateLike, progress: Progress) -> float:
    """The value of a number, of a function of the examples, or of a `Rate`."""
    if isinstance(rate, Rate):
        return float(rate.schedule(getattr(progress, rate.over)))
    return float(rate(progress.examples)) if callable(rate) else float(rate)


def check_rate(rate: RateLike) -> None:
    """A ValueError for what can be no learning rate."""
    if isinstance(rate, Rate):
        if rate.over not in UNITS:
            raise ValueError(f"a Rate over {rate.over!r}: choose one of {UNITS}")
        if not callable(rate.schedule):
            raise ValueError(f"a Rate of {rate.schedule!r}: give a function")
    elif not callable(rate) and not 0 < rate < float("inf"):
        raise ValueError(f"rate={rate}: give a finite number above 0")
