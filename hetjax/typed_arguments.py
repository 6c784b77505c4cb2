"""Checks that arguments have the types in a function's signature.

Python does not check annotations. Without these checks, a NaN, a tuple or a string in
place of a number would fail later, in the middle of a run, with an error that does not
name the argument.
"""

import collections.abc
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LARGEST_WHOLE = 2**31 - 1  # of an int32, JAX's usual integer
_LARGEST = 3.4e38  # of a float32
_REJECTED = object()
_WORDS = {
    int: "a whole number",
    float: "a finite number",
    bool: "True or False",
    str: "a string",
    type(None): "None",
}


def checked(function: _Function) -> _Function:
    """Let a function reject numbers, strings and lists that its annotations exclude.

    An argument annotated as `int` must be a whole number below 2**31 (4.0 is one, and
    is passed on as 4), a `float` finite in float32; None, strings and lists must be
    among an argument's types. Objects of other types, such as functions, are not
    checked. Errors: a ValueError that names the argument and the types it may have.
    """
    signature = inspect.signature(function)
    names = tuple(signature.parameters)

    @functools.cache
    def hints() -> dict[str, Any]:
        return typing.get_type_hints(function)

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        given = (fitting(n, v, hints()) for n, v in zip(names, args, strict=False))
        args = (*given, *args[len(names) :])
        kwargs = {n: fitting(n, v, hints()) for n, v in kwargs.items()}
        return function(*args, **kwargs)

    return made  # pyright: ignore[reportReturnType]


def fitting(name: str, value: Any, hints: dict[str, Any]) -> Any:
    """Return the argument as one of its types; raise a ValueError if it fits none."""
    options = _options(hints.get(name))
    if all(option is type(None) or not _is_checked(option) for option in options):
        return value
    found = _as_any(options, value)
    if found is not _REJECTED:
        return found
    if not _is_plain(value) and not all(map(_is_checked, options)):
        return value  # it may have one of the other types
    wanted = " or ".join(dict.fromkeys(map(_words, options)))
    if isinstance(value, int) and int in options:
        wanted = wanted.replace(_WORDS[int], f"{_WORDS[int]} below 2**31", 1)
    raise ValueError(f"{name}={value!r}: pass {wanted}")


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, such as the two of `int | None`."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _elements(option: Any) -> tuple[Any, ...]:
    """The types of a sequence's elements; () if the type is not a sequence."""
    listed = typing.get_origin(option) in (Sequence, tuple)
    return _options(typing.get_args(option)[0]) if listed else ()


def _is_checked(option: Any) -> bool:
    elements = _elements(option)
    return any(map(_is_checked, elements)) if elements else option in _WORDS


def _as_any(options: Sequence[Any], value: Any) -> Any:
    """The value as the first of these types that it fits; _REJECTED without any."""
    found = (_as(option, value) for option in options)
    return next((v for v in found if v is not _REJECTED), _REJECTED)


def _as(option: Any, value: Any) -> Any:
    """The value as this type; _REJECTED if it does not fit."""
    elements = _elements(option)
    if option in (int, float) and _is_array_or_scalar(value):
        try:
            value = value.item()
        except TypeError:  # a JAX tracer
            return value if option is float else _REJECTED
    if option is int and isinstance(value, Real) and _is_within(_LARGEST_WHOLE, value):
        whole = int(value)  # pyright: ignore[reportArgumentType]
        return whole if value == whole else _REJECTED
    if option is float and isinstance(value, Real) and _is_within(_LARGEST, value):
        small = isinstance(value, int) and _is_within(_LARGEST_WHOLE, value)
        return value if small or isinstance(value, float) else float(value)
    if option in (bool, str, type(None)) and isinstance(value, option):
        return value
    if option is bool and isinstance(value, Real | np.bool_) and value in (0, 1):
        return bool(value)
    if elements and _is_list(value):
        each: Any = value
        found = tuple(_as_any(elements, v) for v in each)
        return _REJECTED if any(v is _REJECTED for v in found) else found
    return _REJECTED


def _is_within(limit: float, value: Any) -> bool:
    return -limit <= value <= limit


def _is_array_or_scalar(value: Any) -> bool:
    """Whether this is a single number of NumPy or JAX."""
    return getattr(value, "ndim", None) == 0


def _is_list(value: Any) -> bool:
    """Whether this is a list, a tuple or an array; not a string or a named tuple."""
    listed = isinstance(value, Sequence) or getattr(value, "ndim", 0) == 1
    return (
        listed and not isinstance(value, str | bytes) and not hasattr(value, "_fields")
    )


def _is_plain(value: Any) -> bool:
    """Whether this is a number, a string, None or a list."""
    return value is None or isinstance(value, Real | str | bytes) or _is_list(value)


def _words(option: Any) -> str:
    if option in _WORDS:
        return _WORDS[option]
    elements = _elements(option)
    if elements:
        return (
            "a sequence of numbers"
            if elements[0] is float
            else ("a sequence of whole numbers")
        )
    function = typing.get_origin(option) is collections.abc.Callable
    return "a function" if function else f"a {getattr(option, '__name__', option)}"


def per_worker(name: str, value: float | Sequence[float], n: int) -> tuple[float, ...]:
    """Return a number for each of n workers; raise a ValueError if they do not fit."""
    values = tuple(value) if isinstance(value, Iterable) else (value,) * n
    if len(values) != n:
        raise ValueError(
            f"{name} has {len(values)} entries for {n} workers: pass one number for "
            "all, or one for each"
        )
    if not all(isinstance(v, Real) and 0 < v < math.inf for v in values):  # no NaN
        raise ValueError(
            f"{name}={value!r}: every entry must be positive, and a finite number"
        )
    return values
