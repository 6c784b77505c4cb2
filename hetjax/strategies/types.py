"""What a strategy is: one policy, one local rule, one merge, one sampler."""

from typing import Any, NamedTuple

from hetjax.local import LocalRule
from hetjax.merge.types import Merge
from hetjax.sampling import Sampler, uniform
from hetjax.schedule.rates import RateLike
from hetjax.schedule.types import Policy


class Strategy(NamedTuple):
    """A training algorithm. A new one is a new combination of parts."""

    policy: Policy
    local: LocalRule
    merge: Merge | tuple[Merge, ...]  # of a tree: by level, the root's is the last
    b_max: int  # the largest batch that the policy ever dispatches [examples]
    rate: RateLike  # at b_max; a function (an optax schedule) is over examples
    sampler: Sampler = uniform()
    settings: dict[str, Any] = {}  # what the factory was given, for the record
    name: str = "own strategy"

    @property
    def merges(self) -> tuple[Merge, ...]:
        """The merge of every level, from the workers' up."""
        one = isinstance(self.merge, Merge)
        return (self.merge,) if one else tuple(self.merge)  # pyright: ignore


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a factory as numbers and words (call it with `locals()`)."""
    return {k: _plain(v) for k, v in given.items()}


def _plain(value: Any) -> Any:
    """A number, a word, a tuple of such; of anything else its name."""
    if isinstance(value, bool | int | float | str | type(None)):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return getattr(value, "__qualname__", type(value).__name__)


def positive(**values: float | None) -> None:
    """A ValueError that names the first of these settings that is not positive."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value}: give a number above 0")


def not_negative(**values: float | None) -> None:
    """A ValueError that names the first of these settings that is below zero."""
    for name, value in values.items():
        if value is not None and not value >= 0:
            raise ValueError(f"{name}={value}: give a number of at least 0")


def fraction(**values: float) -> None:
    """A ValueError that names the first of these settings that is not in [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value}: give a number from 0 to below 1")
