"""The `Strategy` type: a policy, a local update, a merge and a sampler."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec

import numpy as np
import optax

from hetjax.local import LocalUpdate
from hetjax.merge.types import Merge
from hetjax.sampling import Sampler, uniform
from hetjax.schedule.learning_rates import LearningRateLike
from hetjax.schedule.types import Policy
from hetjax.summaries import html_of, maker, settings_text, two_lines

OWN = "own strategy"  # the name of one that has none


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
    name: str = OWN
    output: str = ""  # the output layer that the task must train with; "": any
    # makes it again, with other arguments if some are given; None: not by a factory
    factory: Callable[..., "Strategy"] | None = None

    _repr_html_ = html_of

    def __repr__(self) -> str:
        made = f"{self.name}({settings_text(self.settings)})"
        own = f"{self.name}, batch_size={self.batch_size}"
        parts = ["policy " + maker(self.policy.init), "local " + maker(self.local.step)]
        parts += ["merge " + " below ".join(maker(m.apply) for m in self.merges)]
        parts += ["sampler " + maker(self.sampler.init)]
        return two_lines(f"Strategy {made if self.settings else own}", parts)

    @property
    def merges(self) -> tuple[Merge, ...]:
        """The merge of every level, from the lowest up."""
        one = isinstance(self.merge, Merge)
        return (self.merge,) if one else tuple(self.merge)  # pyright: ignore


Arguments = ParamSpec("Arguments")


def factory(make: Callable[Arguments, Strategy]) -> Callable[Arguments, Strategy]:
    """Let a strategy remember its factory and the arguments, functions among them."""

    @functools.wraps(make)
    def made(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Strategy:
        again = functools.partial(made, *args, **kwargs)
        return make(*args, **kwargs)._replace(factory=again)

    return made


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """A factory's arguments (its `locals()`) as numbers and strings, for records."""
    return {k: plain_setting(v) for k, v in given.items()}


def plain_setting(value: Any) -> Any:
    """Numbers, strings and tuples of them unchanged; the name of anything else."""
    if isinstance(value, optax.GradientTransformation):
        return "an optax optimizer"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | int | float | str | type(None)):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(plain_setting, value))
    return getattr(value, "__qualname__", type(value).__name__)
