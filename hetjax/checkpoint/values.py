"""Values of a run as JSON and arrays, and back: exact, and by explicit rules.

JSON has no tuples, sets or infinity, so whatever is not a string, a number or a list
becomes an object with one key, which says what it is:

    {"tuple": [...]}   {"set": [...]}   {"dict": [[key, value], ...]}   {"deque": ...}
    {"float": "inf"}   {"array": 3}: the third array   {"generator": state}
    {"module:Class": [field, ...]}: a named tuple, dataclass or member of an enum

Classes are looked up by their names. Nothing is called but their constructors, and only
of named tuples, dataclasses and enums.
"""

import dataclasses
import enum
import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.recipes import named

_KNOWN = (
    "numbers, strings, None, tuples, lists, dictionaries, sets, named tuples, "
    "dataclasses, enums, NumPy and JAX arrays, NumPy generators"
)


class Encoder:
    """Encodes values; `arrays` are those that were found, in the order of numbers.

    An array that is found again has the same number.
    """

    def __init__(self):
        """Start without arrays."""
        self.arrays: list[Any] = []
        self._numbers: dict[int, int] = {}  # by the id of an array, which lives here

    def encode(self, value: Any, where: str) -> Any:
        """Return JSON data of a value; `where` is its name, for errors.

        A ValueError names a part that cannot be encoded.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if type(value) in _CONTAINERS:
            return _CONTAINERS[type(value)](self, value, where)
        if isinstance(value, enum.Enum):
            return {_name_of(type(value), where): [value.value]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {_name_of(type(value), where): self._fields(value, where)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {_name_of(type(value), where): self._fields(value, where)}
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(value, where)
        raise ValueError(
            f"{where} is a {type(value).__qualname__}, which cannot be saved in a "
            f"checkpoint: use {_KNOWN}"
        )

    def _fields(self, value: Any, where: str) -> list[Any]:
        names = getattr(value, "_fields", None)
        names = names or [f.name for f in dataclasses.fields(value)]
        return [self.encode(getattr(value, n), f"{where}.{n}") for n in names]

    def _items(self, values: Any, where: str) -> list[Any]:
        return [self.encode(v, f"{where}[{i}]") for i, v in enumerate(values)]

    def _pairs(self, value: dict, where: str) -> list[Any]:
        return [
            [self.encode(k, where), self.encode(v, f"{where}[{k!r}]")]
            for k, v in value.items()
        ]

    def _array(self, value: Any, where: str) -> dict[str, Any]:
        if isinstance(value, jax.Array) and jnp.issubdtype(
            value.dtype, jax.dtypes.prng_key
        ):
            impl = str(jax.random.key_impl(value))
            return {"key": [impl, self._array(jax.random.key_data(value), where)]}
        if value.dtype.kind in "OSU":
            raise ValueError(
                f"{where} is an array of {value.dtype}, which cannot be saved in a "
                "checkpoint: use numbers"
            )
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.arrays)
            self.arrays.append(value)
        kind = "scalar" if isinstance(value, np.generic) else "array"
        return {kind: self._numbers[id(value)]}


_CONTAINERS: dict[type, Callable[[Encoder, Any, str], Any]] = {
    list: Encoder._items,
    tuple: lambda e, v, where: {"tuple": e._items(v, where)},
    dict: lambda e, v, where: {"dict": e._pairs(v, where)},
    Counter: lambda e, v, where: {"counter": e._pairs(v, where)},
    set: lambda e, v, where: {"set": e._items(v, where)},
    frozenset: lambda e, v, where: {"frozenset": e._items(v, where)},
    deque: lambda e, v, where: {"deque": [v.maxlen, e._items(v, where)]},
    array: lambda e, v, where: {"numbers": [v.typecode, e._array(np.array(v), where)]},
    np.random.Generator: lambda e, v, where: {
        "generator": e._pairs(v.bit_generator.state, where)
    },
}


def decode(data: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Return the value that `Encoder.encode` was given; arrays are NumPy's.

    Errors: a ValueError for JSON data that `encode` does not write, or for a class that
    no longer exists or has other fields.
    """
    if isinstance(data, list):
        return [decode(v, arrays) for v in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError(f"an object with the keys {list(data)}, not with one key")
    ((kind, inner),) = data.items()
    if kind in _DECODERS:
        return _DECODERS[kind](inner, arrays)
    return _made(_class_of(kind), [decode(v, arrays) for v in inner])


def _pairs(inner: Any, arrays: Sequence[np.ndarray]) -> dict:
    return {decode(k, arrays): decode(v, arrays) for k, v in inner}


def _generator(inner: Any, arrays: Sequence[np.ndarray]) -> np.random.Generator:
    state = _pairs(inner, arrays)
    generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
    generator.bit_generator.state = state
    return generator


_DECODERS: dict[str, Callable[[Any, Sequence[np.ndarray]], Any]] = {
    "float": lambda v, arrays: float(v),
    "tuple": lambda v, arrays: tuple(decode(v, arrays)),
    "dict": _pairs,
    "counter": lambda v, arrays: Counter(_pairs(v, arrays)),
    "set": lambda v, arrays: set(decode(v, arrays)),
    "frozenset": lambda v, arrays: frozenset(decode(v, arrays)),
    "deque": lambda v, arrays: deque(decode(v[1], arrays), v[0]),
    "numbers": lambda v, arrays: array(v[0], decode(v[1], arrays)),
    "generator": _generator,
    "array": lambda v, arrays: arrays[v],
    "scalar": lambda v, arrays: arrays[v][()],
    "key": lambda v, arrays: jax.random.wrap_key_data(decode(v[1], arrays), impl=v[0]),
}


def _name_of(kind: type, where: str) -> str:
    """A class as "module:Class"; a ValueError unless it can be found by that name."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    if "<locals>" in name or _class_of(name) is not kind:
        raise ValueError(
            f"{where} is of the class {kind.__qualname__}, which cannot be saved in a "
            "checkpoint, since it cannot be found again by its name: define it at the "
            "top of a module"
        )
    return name


_found: dict[str, type] = {}


def _class_of(name: str) -> type:
    if name in _found:
        return _found[name]
    found = named(name)
    named_tuple = isinstance(found, type) and issubclass(found, tuple)
    is_enum = isinstance(found, type) and issubclass(found, enum.Enum)
    if not (named_tuple or is_enum or dataclasses.is_dataclass(found)):
        raise ValueError(f"{name!r} is no named tuple, dataclass or enum")
    if not name.startswith("__main__:"):  # in a notebook, a class may be defined again
        _found[name] = found
    return found


def _made(kind: Any, values: list[Any]) -> Any:
    """An object of a class from the values of its fields."""
    if issubclass(kind, enum.Enum):
        return kind(*values)
    names = getattr(kind, "_fields", None)
    names = names or [f.name for f in dataclasses.fields(kind)]
    if len(names) != len(values):
        raise ValueError(
            f"{kind.__qualname__} has the fields {', '.join(names)}, not {len(values)}"
        )
    return kind(**dict(zip(names, values, strict=True)))
