"""What functions and classes are made of: enclosed settings, globals, members."""

import dataclasses
import functools
import sys
import types
import zlib
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.summaries import maker

_INSTALLED = ("site-packages", "dist-packages")
_LARGE = 1_000_000  # [bytes] of an array that is described by its type alone
_PLAIN = bool | int | float | complex | str | bytes | None


def made_of(value: Any) -> Any:
    """Describe a function, or a tuple of functions, as JSON data, for records.

    >>> from hetjax.schedule import rounds
    >>> made_of(rounds(batch_size=8).init)["plan"]
    {'factory': 'rounds', 'batch_size': 8, 'local_steps': 1}
    """
    return _made_of(value, maker, _described)


def are_same(one: Any, other: Any) -> bool:
    """Whether parts have the same functions, which enclose equal settings."""
    first, second = (_made_of(v, _code_of, _identity) for v in (one, other))
    return first == second


def _code_of(function: FunctionType) -> Any:
    return function.__code__


def _identity(value: Any) -> Any:
    return value if isinstance(value, Hashable) else id(value)


def _described(value: Any) -> str:
    """The type of a value that is not made of others; of an array also its content."""
    if not isinstance(value, np.ndarray | np.generic | jax.Array):
        return type(value).__name__
    text = f"{value.dtype}{list(value.shape)}"
    if value.nbytes > _LARGE or jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return text
    return f"{text} {zlib.crc32(np.asarray(value).tobytes()):08x}"


def _made_of(
    value: Any,
    name: Callable[[Any], Any],
    other: Callable[[Any], Any],
    above: tuple[Any, ...] = (),
) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, FunctionType):
        enclosed: dict[str, Any] = {}
        if not any(value is each for each in above):  # else it calls itself
            names = value.__code__.co_freevars
            enclosed = dict(zip(names, _cells(value), strict=True))
        if value.__defaults__:
            enclosed["defaults"] = value.__defaults__
        enclosed |= value.__kwdefaults__ or {}
        above = (*above, value)
        parts = {k: _made_of(v, name, other, above) for k, v in enclosed.items()}
        return {"factory": name(value), **parts}
    if isinstance(value, partial):
        parts = (value.func, value.args, tuple(value.keywords.items()))
        return _made_of(parts, name, other, above)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {k: _made_of(v, name, other, above) for k, v in fields.items()}
    if isinstance(value, types.MethodType):
        return _made_of((value.__func__, value.__self__), name, other, above)
    if isinstance(value, tuple | list):
        return [_made_of(v, name, other, above) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(str(_made_of(v, name, other, above)) for v in value)
    if isinstance(value, dict):
        return {str(k): _made_of(v, name, other, above) for k, v in value.items()}
    users = hasattr(value, "__dict__") and is_own(type(value).__module__)
    if users and not any(value is each for each in above):
        found = _made_of(vars(value), name, other, (*above, value))
        return {"class": type(value).__name__, **found}
    return other(value)


def enclosed_by(function: FunctionType) -> Iterator[Any]:
    """Yield a function's defaults and the values in its closure."""
    yield from (function.__defaults__, function.__kwdefaults__)
    yield from _cells(function)


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield None


def globals_of(function: FunctionType) -> Iterator[Any]:
    """Yield the globals that a user's function names; none for a library's."""
    if not is_own(function.__module__):
        return
    names = sorted(
        {name for code in _codes(function.__code__) for name in code.co_names}
    )
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType) and is_own(value.__name__):
            value = tuple(getattr(value, each, None) for each in names)
        yield name, value


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def parts_of_class(kind: type) -> Iterator[Any]:
    """Yield the name and members of a user's class; only the name of a library's."""
    yield from (kind.__module__, kind.__qualname__)
    if not is_own(kind.__module__):
        return
    yield kind.__bases__
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, staticmethod | classmethod):
            yield name, value.__func__
        elif isinstance(value, property):
            yield name, value.fget
        elif isinstance(value, functools.cached_property):
            yield name, value.func
        elif not name.startswith("__") or isinstance(value, FunctionType):
            yield name, value


@functools.cache
def is_own(module: str | None) -> bool:
    """Whether the user wrote this module: its code may change between two runs."""
    if module is None:  # of code that was compiled from a string
        return True
    top = module.partition(".")[0]
    if top == "hetjax" or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not set(Path(file).parts) & set(_INSTALLED)
