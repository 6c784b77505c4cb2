"""The `Strategy` type: a policy, a local update, a merge and a sampler."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec

import numpy as np
import optax

from hetjax.arguments import checked
from hetjax.local import LocalUpdate
from hetjax.merge.types import Merge
from hetjax.sampling import Sampler, uniform
from hetjax.schedule.learning_rates import LearningRateLike
from hetjax.schedule.types import Policy
from hetjax.summaries import html_of, maker, settings_text, two_lines

PARTS = ("policy", "local", "merge", "batch_size", "learning_rate", "sampler")

DEFAULT_NAME = "custom strategy"  # the default name


class _StrategyFields(NamedTuple):
    policy: Policy
    local: LocalUpdate
    merge: Merge | tuple[Merge, ...]  # one per level of a tree, the root's last
    batch_size: int  # [examples] the largest that the policy ever dispatches
    # at `batch_size`; a function (such as an optax schedule) is over examples
    learning_rate: LearningRateLike
    sampler: Sampler = uniform()
    settings: dict[str, Any] = {}  # the factory's arguments, for records
    name: str = DEFAULT_NAME
    output: str = ""  # the output layer that the task must train with; "": any
    # makes it again, with other arguments if some are passed; None without a factory
    factory: Callable[..., "Strategy"] | None = None


class Strategy(_StrategyFields):
    """A training algorithm; a new algorithm is a new combination of these parts."""

    __slots__ = ()
    _example = "hetjax.sma(batch_size=32, learning_rate=0.1)"
    _repr_html_ = html_of

    def __repr__(self) -> str:
        made = f"{self.name}({settings_text(self.settings)})"
        own = f"{self.name}, batch_size={self.batch_size}"
        parts = (f"{kind} {name}" for kind, name in self.part_names.items())
        return two_lines(f"Strategy {made if self.settings else own}", parts)

    @property
    def part_names(self) -> dict[str, str]:
        """The names of the functions that made the policy, local update, ..."""
        return {
            "policy": maker(self.policy.init),
            "local": maker(self.local.step),
            "merge": " below ".join(maker(m.apply) for m in self.merges),
            "sampler": maker(self.sampler.init),
        }

    def _replace(self, **parts: Any) -> "Strategy":
        """Return the strategy with other parts, also in its records and its factory.

        `settings` record the name of a part, or its number. Errors: a ValueError for
        another batch size if the policy is not replaced as well, since it dispatches
        the present one.
        """
        other_size = parts.get("batch_size", self.batch_size) != self.batch_size
        if other_size and self.factory and "policy" not in parts:
            raise ValueError(
                f"the policy of {self.name} dispatches batches of {self.batch_size}: "
                "make the strategy again with another batch_size, or replace policy, "
                "too"
            )
        changed = {name: parts[name] for name in PARTS if name in parts}
        if changed and self.settings and "settings" not in parts:
            recorded = {name: _record_of(part) for name, part in changed.items()}
            parts["settings"] = {**self.settings, **recorded}
        if changed and self.factory and "factory" not in parts:
            parts["factory"] = _with_parts(self.factory, changed)
        return super()._replace(**parts)

    @property
    def recorded_settings(self) -> dict[str, Any]:
        """The settings, for records; of a strategy without any, its two numbers."""
        numbers = {"batch_size": self.batch_size, "learning_rate": self.learning_rate}
        return self.settings or settings(numbers)

    @property
    def merges(self) -> tuple[Merge, ...]:
        """The merge of every level, from the lowest up."""
        one = isinstance(self.merge, Merge)
        return (self.merge,) if one else tuple(self.merge)  # pyright: ignore


def _record_of(part: Any) -> Any:
    """A part's number, or the name of its factory."""
    if isinstance(part, Merge | LocalUpdate | Policy | Sampler):
        whole = {Merge: "apply", LocalUpdate: "step"}.get(type(part), "init")
        return maker(getattr(part, whole))
    if isinstance(part, tuple):  # merges of the levels of a tree
        return tuple(map(_record_of, part))
    return plain_setting(part)


def _with_parts(
    make: Callable[..., Strategy], parts: dict[str, Any]
) -> Callable[..., Strategy]:
    """A factory whose strategies have these parts, except those passed to it."""
    made = functools.partial(_make_with, make, tuple(parts.items()))
    return functools.update_wrapper(made, make, assigned=(), updated=())


def _make_with(
    make: Callable[..., Strategy], parts: Any, *args: Any, **kwargs: Any
) -> Strategy:
    if "batch_size" in kwargs and "policy" in dict(parts):
        raise ValueError(
            "batch_size is dispatched by the policy, which was replaced: pass a "
            "function that makes both"
        )
    here = {name: part for name, part in parts if name not in kwargs}
    return make(*args, **kwargs)._replace(**here)


Arguments = ParamSpec("Arguments")


def factory(make: Callable[Arguments, Strategy]) -> Callable[Arguments, Strategy]:
    """Let a factory check its arguments (`hetjax.arguments`) and name its strategies.

    A strategy records its arguments, unless the factory has recorded other settings in
    their place, and the factory that makes it again.
    """
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Strategy:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            wrong = [name for name in kwargs if name not in signature.parameters]
            raise TypeError(
                f"{make.__name__}: "
                + (f"there is no argument {wrong[0]}" if wrong else str(error))
                + f"; the arguments, by name, are {', '.join(signature.parameters)}"
            ) from None
        given.apply_defaults()
        strategy = make(*args, **kwargs)
        own = settings(given.arguments) | strategy.settings
        again = functools.partial(with_checks, *args, **kwargs)
        return strategy._replace(name=make.__name__, settings=own, factory=again)

    with_checks = checked(made)
    return with_checks


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as numbers and strings, for records."""
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
