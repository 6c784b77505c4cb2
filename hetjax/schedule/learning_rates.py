"""Learning rates over examples, epochs, updates or seconds (host world)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hetjax.arguments import Positive, as_kind, checked


class Progress(NamedTuple):
    """The progress of a run: the work that its workers have finished."""

    examples: int
    epochs: float  # examples over the size of the training split
    updates: int
    seconds: float  # of the clock


START = Progress(0, 0.0, 0, 0.0)


@checked
@dataclass(frozen=True)
class LearningRate:
    """A schedule, such as an optax schedule, over a measure of a run.

    >>> LearningRate(lambda epochs: 0.1 if epochs < 2 else 0.01, over="epochs").over
    'epochs'
    """

    schedule: Callable[[float], Any]
    over: Literal["examples", "epochs", "updates", "seconds"] = "examples"


LearningRateLike = Positive | Callable[[float], Any] | LearningRate
"""A number, a function of the number of examples, or a `LearningRate`."""


def learning_rate_at(learning_rate: LearningRateLike, progress: Progress) -> float:
    """Return the learning rate at this point of a run.

    Errors: ValueError if a schedule returns anything but one number.
    """
    if isinstance(learning_rate, LearningRate):
        schedule, over = learning_rate.schedule, learning_rate.over
    elif callable(learning_rate):
        schedule, over = learning_rate, "examples"
    else:
        return float(learning_rate)
    at = getattr(progress, over)
    value = schedule(at)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"learning_rate: the schedule returned {value!r} at {at:g} {over}: return "
            "one number"
        ) from None


def check_learning_rate(learning_rate: LearningRateLike) -> None:
    """Raises a ValueError for anything that is not a learning rate."""
    as_kind("learning_rate", learning_rate, LearningRateLike)
