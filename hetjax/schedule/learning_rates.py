"""Learning rates over examples, epochs, updates or seconds (host world)."""

from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

UNITS = ("examples", "epochs", "updates", "seconds")


class Progress(NamedTuple):
    """The progress of a run: the work that its workers have finished."""

    examples: int
    epochs: float  # examples over the size of the training split
    updates: int
    seconds: float  # of the clock


START = Progress(0, 0.0, 0, 0.0)


class LearningRate(NamedTuple):
    """A schedule, such as an optax schedule, over a measure of a run.

    `over` is "examples" (the default), "epochs", "updates" or "seconds".

    >>> LearningRate(lambda epochs: 0.1 if epochs < 2 else 0.01, over="epochs").over
    'epochs'
    """

    schedule: Callable[[float], Any]
    over: str = "examples"


LearningRateLike = float | Callable[[float], Any] | LearningRate


def learning_rate_at(learning_rate: LearningRateLike, progress: Progress) -> float:
    """Return the learning rate at this point of a run.

    Errors: ValueError if a schedule returns anything but one number.
    """
    if not callable(learning_rate) and not isinstance(learning_rate, LearningRate):
        return float(learning_rate)
    if not isinstance(learning_rate, LearningRate):
        learning_rate = LearningRate(learning_rate)
    at = getattr(progress, learning_rate.over)
    value = learning_rate.schedule(at)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"learning_rate: the schedule returned {value!r} at {at:g} "
            f"{learning_rate.over}: return one number"
        ) from None


def check_learning_rate(learning_rate: LearningRateLike) -> None:
    """Raises a ValueError for anything that is not a learning rate."""
    if isinstance(learning_rate, LearningRate):
        if learning_rate.over not in UNITS:
            raise ValueError(
                f"LearningRate(over={learning_rate.over!r}): choose one of {UNITS}"
            )
        if not callable(learning_rate.schedule):
            raise ValueError(
                f"LearningRate(schedule={learning_rate.schedule!r}): pass a function"
            )
    elif not callable(learning_rate) and not (
        isinstance(learning_rate, Real) and 0 < learning_rate <= 3.4e38
    ):
        raise ValueError(
            f"learning_rate={learning_rate!r}: pass a finite number above 0, or a "
            "function of the number of examples"
        )
