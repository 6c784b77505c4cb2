"""Strategies for a grid of arguments, to be compared."""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hetjax.made_of import are_same
from hetjax.strategies.types import PARTS, Strategy, plain_setting


def sweep(
    base: Strategy | Callable[..., Strategy],
    grid: Mapping[str, Sequence[Any] | Mapping[str, Any]],
) -> dict[str, Strategy]:
    """Return a strategy for every combination of the arguments' values, by name.

        sweep(hj.sma(batch_size=64, learning_rate=0.1), {"local_steps": [1, 8]})
        -> {"sma, local_steps=1": Strategy(...), "sma, local_steps=8": Strategy(...)}

    `base` is a strategy made by one of hetjax's factories, which supplies the other
    arguments, or a function that returns a strategy. An argument's values may be
    named: {"learning_rate": {"cosine": schedule, "0.1": 0.1}}. The first
    argument varies slowest. The sweeps of several strategies can be joined, since names
    begin with that of the strategy: {**sweep(a, grid), **sweep(b, grid)}.
    `Comparison.pivot` shows the results as a table, pivot("strategy", "learning_rate")
    those of several strategies.

    Errors: a ValueError for a name that is not an argument, for an empty list of
    values, for two strategies of the same name, and for two with the same parts: an
    argument then has no effect, or only affects a part of `base` that was replaced with
    `_replace`.
    """
    make = base.factory if isinstance(base, Strategy) else base
    if make is None:
        raise ValueError(
            f"base is {getattr(base, 'name', '')!r}, which was not made by a factory "
            "of hetjax: pass a function that makes it from the arguments of grid"
        )
    named = {name: _named_values(name, values) for name, values in grid.items()}
    if not named:
        raise ValueError("grid is empty: pass arguments and their values")
    _check_arguments(make, named)
    strategies: dict[str, Strategy] = {}
    for labels in itertools.product(*named.values()):
        chosen = dict(zip(named, labels, strict=True))
        values = {name: named[name][label] for name, label in chosen.items()}
        name = ", ".join(f"{argument}={label}" for argument, label in chosen.items())
        try:
            strategy = make(**values)
        except (TypeError, ValueError) as error:
            place = "" if str(error).startswith(f"{name}:") else f"{name}: "
            raise ValueError(f"{place}{error}") from error
        if not isinstance(strategy, Strategy):
            raise ValueError(f"{name}: base returned {strategy!r}, not a Strategy")
        recorded = _recorded(strategy.settings, chosen, values)
        strategies[f"{strategy.name}, {name}"] = strategy._replace(settings=recorded)
    if isinstance(base, Strategy):
        _check_effect(strategies)
    return strategies


def _check_effect(strategies: dict[str, Strategy]) -> None:
    """Raise a ValueError for two strategies of the same parts."""
    parts = {n: [getattr(s, part) for part in PARTS] for n, s in strategies.items()}
    for one, other in itertools.combinations(strategies, 2):
        if are_same(tuple(parts[one]), tuple(parts[other])):
            raise ValueError(
                f"{one!r} and {other!r} are made of the same parts: the argument only "
                "changes a part that was replaced (`_replace`), or has no effect; "
                "leave it out"
            )


def _named_values(argument: str, values: Any) -> dict[str, Any]:
    """The values of an argument by name; names are unique."""
    if isinstance(values, Mapping):
        named = {str(label): value for label, value in values.items()}
    elif isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise ValueError(f"grid[{argument!r}] is {values!r}: pass a list of values")
    else:
        values = [v.item() if isinstance(v, np.generic) else v for v in values]
        labels = [str(plain_setting(value)) for value in values]
        named = dict(zip(labels, values, strict=True))
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ValueError(
                f"two values of {argument} have the name {twice!r}: leave one out, or "
                f"pass names: {{{argument!r}: {{'a': ..., 'b': ...}}}}"
            )
    if not named:
        raise ValueError(f"grid[{argument!r}] is empty: pass at least one value")
    return named


def _check_arguments(make: Callable[..., Strategy], given: Mapping[str, Any]) -> None:
    """Raise a ValueError for names that `make` does not take, or that are missing."""
    parameters = inspect.signature(make).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    known = {p.name: p for p in parameters if p.kind not in positional}
    wrong = [name for name in given if name not in known]
    if wrong:
        raise ValueError(
            f"grid has {', '.join(map(repr, wrong))}, but the arguments are "
            f"{', '.join(known)}"
        )
    missing = [n for n, p in known.items() if p.default is p.empty and n not in given]
    if missing:
        raise ValueError(
            f"the strategies also need {', '.join(missing)}: add it to grid, or pass a "
            "strategy as base"
        )


def _recorded(
    settings: dict[str, Any], labels: dict[str, str], values: dict[str, Any]
) -> dict[str, Any]:
    """A strategy's settings, in which functions have their names in the grid.

    A factory's own record wins: it may say more, such as a preset's choice.
    """
    own = {n: settings.get(n, plain_setting(v)) for n, v in values.items()}
    named = {n: labels[n] for n, v in values.items() if not _is_plain(v)}
    return {**settings, **own, **named}


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a string, None, or a tuple or list of these."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
