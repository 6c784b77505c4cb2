"""The `Strategy` type: a policy, a local update, a merge and a sampler."""

from typing import Any, NamedTuple

from hetjax.local import LocalUpdate
from hetjax.merge.types import Merge
from hetjax.sampling import Sampler, uniform
from hetjax.schedule.learning_rates import LearningRateLike
from hetjax.schedule.types import Policy


class Strategy(NamedTuple):
    """A training algorithm; a new algorithm is a new combination of these parts."""

    policy: Policy
    local: LocalUpdate
    merge: Merge | tuple[Merge, ...]  # one per level of a tree, the root's last
    batch_size: int  # [examples] the largest that the policy ever dispatches
    # at `batch_size`; a function (such as an optax schedule) is over examples
    learning_rate: LearningRateLike
    sampler: Sampler = uniform()
    settings: dict[str, Any] = {}  # the factory's arguments, for records
    name: str = "own strategy"
    output: str = ""  # the output layer that the task must train with; "": any

    @property
    def merges(self) -> tuple[Merge, ...]:
        """The merge of every level, from the lowest up."""
        one = isinstance(self.merge, Merge)
        return (self.merge,) if one else tuple(self.merge)  # pyright: ignore


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """A factory's arguments (its `locals()`) as numbers and strings, for records."""
    return {k: _plain(v) for k, v in given.items()}


def _plain(value: Any) -> Any:
    """Numbers, strings and tuples of them unchanged; the name of anything else."""
    if isinstance(value, bool | int | float | str | type(None)):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return getattr(value, "__qualname__", type(value).__name__)
