"""What functions are made of: their factories, and the settings that they enclose."""

import dataclasses
import inspect
from collections.abc import Callable, Hashable
from functools import partial
from types import FunctionType
from typing import Any

from hetjax.summaries import maker

_PLAIN = bool | int | float | complex | str | bytes | None


def made_of(value: Any) -> Any:
    """Describe a function, or a tuple of functions, as JSON data, for records.

    >>> from hetjax.schedule import rounds
    >>> made_of(rounds(batch_size=8).init)["plan"]
    {'factory': 'rounds', 'batch_size': 8, 'local_steps': 1}
    """
    return _made_of(value, maker, lambda other: type(other).__name__)


def are_same(one: Any, other: Any) -> bool:
    """Whether parts have the same functions, which enclose equal settings."""
    first, second = (_made_of(v, _code_of, _identity) for v in (one, other))
    return first == second


def _code_of(function: FunctionType) -> Any:
    return function.__code__


def _identity(value: Any) -> Any:
    return value if isinstance(value, Hashable) else id(value)


def _made_of(
    value: Any,
    name: Callable[[Any], Any],
    other: Callable[[Any], Any],
    above: tuple[Any, ...] = (),
) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, FunctionType):
        itself = value in above  # it calls itself
        enclosed = {} if itself else inspect.getclosurevars(value).nonlocals
        above = (*above, value)
        parts = {k: _made_of(v, name, other, above) for k, v in enclosed.items()}
        return {"factory": name(value), **parts}
    if isinstance(value, partial):
        parts = (value.func, value.args, tuple(value.keywords.items()))
        return _made_of(parts, name, other, above)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {k: _made_of(v, name, other, above) for k, v in fields.items()}
    if isinstance(value, tuple):
        return [_made_of(v, name, other, above) for v in value]
    return other(value)
