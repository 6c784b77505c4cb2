"""Kinds of values, and checks that arguments are of the kinds in a signature.

Python does not check annotations. Without these checks a NaN, a tuple or a string in
place of a number would fail later, in the middle of a run, with an error that does not
name the argument. A function says what it wants in its signature, and nowhere else:

    @checked
    def sma(*, batch_size: Count, momentum: Fraction = 0.0, rule: Literal["a", "b"]):

    sma(batch_size=0)    # ValueError: batch_size=0: pass a whole number of at least 1
"""

import collections.abc
import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from numbers import Real
from typing import Annotated, Any, Literal, TypeVar

import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LARGEST_WHOLE = 2**31 - 1  # of an int32, JAX's usual integer
_LARGEST = 3.4e38  # of a float32
_REJECTED = object()
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_WORDS = {
    int: "a whole number",
    float: "a finite number",
    bool: "True or False",
    str: "a string",
    type(None): "None",
}


@dataclass(frozen=True)
class Bounds:
    """The bounds of a number: from `low` to `high`, or `above` and `below` them."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None

    def hold(self, value: Any) -> bool:
        """Whether the number is within the bounds."""
        return not (
            (self.low is not None and value < self.low)
            or (self.high is not None and value > self.high)
            or (self.above is not None and value <= self.above)
            or (self.below is not None and value >= self.below)
        )

    def __repr__(self) -> str:
        if self.low is not None and self.high is not None:
            high = f"2**{bits} - 1" if (bits := _bits(self.high)) else self.high
            return f"from {self.low} to {high}"
        if self.low is not None and self.below is not None:
            return f"from {self.low} to below {self.below}"
        words = {
            "of at least": self.low,
            "above": self.above,
            "of at most": self.high,
            "below": self.below,
        }
        return " and ".join(f"{w} {x}" for w, x in words.items() if x is not None)


def _bits(number: float) -> int:
    """The bits of the largest unsigned integer, if this is one of 32 bits or more."""
    bits = int(number).bit_length()
    return bits if bits >= 32 and number == 2**bits - 1 else 0


Count = Annotated[int, Bounds(low=1)]
Whole = Annotated[int, Bounds(low=0)]
Seed = Annotated[int, Bounds(low=0, high=2**32 - 1)]  # of JAX
HostSeed = Annotated[int, Bounds(low=0, high=2**128 - 1)]  # of NumPy
Positive = Annotated[float, Bounds(above=0)]
NotNegative = Annotated[float, Bounds(low=0)]
Fraction = Annotated[float, Bounds(low=0, below=1)]  # such as a momentum
Share = Annotated[float, Bounds(low=0, high=1)]
PositiveShare = Annotated[float, Bounds(above=0, high=1)]


def checked(function: _Function) -> _Function:
    """Let a function or dataclass reject arguments that its annotations exclude.

    An argument annotated as `int` must be a whole number below 2**31 (4.0 is one, and
    is passed on as 4), a `float` finite in float32; `Annotated[..., Bounds(...)]`, such
    as `Count`, says between which bounds, and `Literal` which choices there are. None,
    strings, lists, functions and instances of hetjax's own classes must be among an
    argument's types; a class may give an `_example` for the message. Other objects,
    such as arrays, and the bounds of numbers that JAX traces are not checked. A string
    in `Annotated` describes the type in messages. Errors: a ValueError that names the
    argument and what it may be.
    """
    if not isinstance(function, type):
        return _checked(function, function)
    function.__init__ = _checked(function.__init__, function)  # of a dataclass
    return function  # pyright: ignore[reportReturnType]


def _checked(function: Any, annotated: Any) -> Any:
    """The function, whose arguments are checked against these annotations."""
    parameters = inspect.signature(function).parameters.values()
    names = tuple(p.name for p in parameters if p.kind in _BY_PLACE)
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")

    @functools.cache
    def hints() -> dict[str, Any]:
        return typing.get_type_hints(annotated, include_extras=True)

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        if not rest and len(args) > len(names):
            return function(*args, **kwargs)  # Python's error is the clearest
        each = itertools.chain(names, itertools.repeat(rest))
        given = zip(each, args, strict=False)
        args = tuple(fitting(n, v, hints()) for n, v in given)
        kwargs = {n: fitting(n, v, hints()) for n, v in kwargs.items()}
        return function(*args, **kwargs)

    return made


def as_kind(name: str, value: Any, kind: Any) -> Any:
    """Return the argument as this kind of value; raise a ValueError if it is not."""
    return fitting(name, value, {name: kind})


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
    if isinstance(value, Real):
        wanted += _limit(options, value)
    verb = "choose" if wanted.startswith("one of") else "pass"
    raise ValueError(f"{name}={shown(value)}: {verb} {wanted}")


def shown(value: Any) -> str:
    """The value for a message: its repr, or its type where that is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "\n"
    long = len(text) > 80 or "\n" in text
    return f"<a {type(value).__name__}>" if long else text


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, such as the two of `int | None`."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return (hint,)
    return tuple(o for arg in typing.get_args(hint) for o in _options(arg))


def _elements(option: Any) -> tuple[Any, ...]:
    """The types of a sequence's elements; () if the type is not a sequence."""
    listed = typing.get_origin(option) in (Sequence, tuple)
    return _options(typing.get_args(option)[0]) if listed else ()


def _length(option: Any) -> int | None:
    """The length of a `tuple[int, int]`; None if any length will do."""
    args = typing.get_args(option)
    fixed = typing.get_origin(option) is tuple and Ellipsis not in args
    return len(args) if fixed else None


def _bounds(option: Any) -> tuple[Any, Bounds | None]:
    """The type of an `Annotated` one, and its bounds."""
    kind, notes = _notes(option)
    return kind, next((x for x in notes if isinstance(x, Bounds)), None)


def _notes(option: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type of an `Annotated` one, and what is said of it."""
    if typing.get_origin(option) is not Annotated:
        return option, ()
    kind, *notes = typing.get_args(option)
    return kind, tuple(notes)


def _limit(options: Sequence[Any], value: Real) -> str:
    """What the message adds if a number is too large for its type, in JAX."""
    own = dict(_bounds(o) for o in options)
    largest = {k: b is None or b.high is None for k, b in own.items() if k in _WORDS}
    if largest.get(int) and value > _LARGEST_WHOLE:  # pyright: ignore
        return ", below 2**31"
    if largest.get(float) and abs(value) > _LARGEST:  # pyright: ignore
        return ", finite in float32"
    return ""


def _is_checked(option: Any) -> bool:
    kind, _ = _bounds(option)
    if elements := _elements(kind):
        return all(map(_is_checked, elements))
    plain = kind in _WORDS or typing.get_origin(kind) is Literal
    return plain or _is_own(kind) or _is_function(kind)


def _is_function(option: Any) -> bool:
    return typing.get_origin(option) is collections.abc.Callable


def _is_own(option: Any) -> bool:
    """Whether it is a class of hetjax; protocols say nothing about instances."""
    own = isinstance(option, type) and option.__module__.startswith("hetjax.")
    return own and not getattr(option, "_is_protocol", False)


def _as_any(options: Sequence[Any], value: Any) -> Any:
    """The value as the first of these types that it fits; _REJECTED without any."""
    found = (_as(option, value) for option in options)
    return next((v for v in found if v is not _REJECTED), _REJECTED)


def _as(option: Any, value: Any) -> Any:
    """The value as this type; _REJECTED if it does not fit."""
    kind, bounds = _bounds(option)
    if kind is Any:
        return value
    if elements := _elements(kind):
        length = _length(kind)
        if not _is_list(value) or (length and len(value[: length + 1]) != length):
            return _REJECTED
        if isinstance(value, range) and value[2:]:  # it may be endlessly long
            ends = _as(option, (value[0], value[-1]))
            return ends if ends is _REJECTED else value
        found = tuple(_as_any(elements, v) for v in value)
        return _REJECTED if any(v is _REJECTED for v in found) else found
    if kind in (int, float):
        return _as_number(kind, value, bounds)
    if typing.get_origin(kind) is Literal:
        plain = isinstance(value, Real | str | None)
        return value if plain and value in typing.get_args(kind) else _REJECTED
    if _is_function(kind):
        return value if callable(value) else _REJECTED
    if kind in (bool, str, type(None)) or _is_own(kind):
        if isinstance(value, kind):
            return value
        truth = kind is bool and isinstance(value, Real | np.bool_)
        return bool(value) if truth and value in (0, 1) else _REJECTED
    return _REJECTED


def _as_number(kind: type, value: Any, bounds: Bounds | None) -> Any:
    """The number as this type, within these bounds; _REJECTED if it does not fit."""
    if getattr(value, "ndim", None) == 0:  # a single number of NumPy or JAX
        try:
            value = value.item()
        except TypeError:  # a JAX tracer
            return value if kind is float else _REJECTED
        except (AttributeError, NotImplementedError):  # a shape; a random key
            return _REJECTED
    largest = _LARGEST if kind is float else _LARGEST_WHOLE
    if bounds is not None and bounds.high is not None:
        largest = max(largest, bounds.high)
    number: Any = value
    if not isinstance(value, Real) or isinstance(value, bool):
        return _REJECTED
    if not -largest <= number <= largest:  # NaN is not
        return _REJECTED
    if bounds is not None and not bounds.hold(number):
        return _REJECTED
    if kind is int:
        return int(number) if number == int(number) else _REJECTED
    small = isinstance(value, int) and abs(number) <= _LARGEST_WHOLE
    return value if small or isinstance(value, float) else float(number)


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
    kind, notes = _notes(option)
    bounds = _bounds(option)[1]
    if kind in _WORDS:
        number = _WORDS[kind] if bounds is None else _WORDS[kind].replace("finite ", "")
        return number if bounds is None else f"{number} {bounds}"
    if typing.get_origin(kind) is Literal:
        first, *others = typing.get_args(kind)
        return (
            f"one of {', '.join(map(str, (first, *others)))}" if others else repr(first)
        )
    if elements := _elements(kind):
        number = f"{length} " if (length := _length(kind)) else ""
        text = "".join(f": {note}" for note in notes if isinstance(note, str))
        return f"a sequence of {number}{_plural(elements[0])}{text}"
    if _is_function(kind):
        return "a function"
    example = getattr(kind, "_example", "")
    return f"a {getattr(kind, '__name__', kind)}{example and f', such as {example}'}"


def _plural(option: Any) -> str:
    if option is Any:
        return "values"
    word = _words(option).removeprefix("a ")
    noun = next((noun for noun in ("number", "string") if noun in word), word)
    return word.replace(noun, f"{noun}s", 1)


def per_worker(name: str, value: float | Sequence[float], n: int) -> tuple[float, ...]:
    """Return a number for each of n workers; raise a ValueError if they do not fit."""
    value = as_kind(name, value, Positive | Sequence[Positive])
    values = tuple(value) if isinstance(value, Iterable) else (value,) * n
    if len(values) != n:
        raise ValueError(
            f"{name} has {len(values)} entries for {n} workers: pass one number for "
            "all, or one for each"
        )
    return values
