"""Encode values of a run as JSON and arrays, and decode them: exact, by explicit rules.

JSON has no tuples, sets or infinity. So every value that is not a string, a number or a
list becomes an object with one key, which states its kind:

    {"tuple": [...]}   {"set": [...]}   {"dict": [[key, value], ...]}   {"deque": ...}
    {"float": "inf"}   {"array": 3}: the third array   {"generator": state}
    {"module:Class": [field, ...]}: a named tuple or dataclass
    {"module:Class": name}: a member of an enum

Classes are looked up by name, and only named tuples, dataclasses and enums are
accepted. Their objects are filled field by field: no constructor is called.
"""

import dataclasses
import enum
import functools
import math
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetjax.checkpointable import Leaves
from hetjax.recipes import resolve

_KNOWN = (
    "numbers, strings, None, tuples, lists, dictionaries, sets, named tuples, "
    "dataclasses, enums, NumPy and JAX arrays, NumPy generators"
)


class Encoder:
    """Encodes values; `arrays` are the arrays in them, in the order of their numbers.

    An array that occurs twice has one number. A generator that occurs twice is an
    error: it would be decoded as two, which draw the same numbers.
    """

    def __init__(self):
        """Start without arrays."""
        self.arrays: list[Any] = []
        self._numbers: dict[int, int] = {}  # by the id of an array in `arrays`
        self._generators: dict[int, tuple[Any, str]] = {}  # each, and its name

    def encode(self, value: Any, where: str) -> Any:
        """Return a value as JSON data; `where` is its name, for errors.

        Errors: a ValueError that names a part that cannot be encoded.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if type(value) in _CONTAINERS:
            return _CONTAINERS[type(value)](self, value, where)
        if isinstance(value, enum.Enum):
            # a union of flags has no name
            found = value.value if isinstance(value, enum.Flag) else value.name
            return {_name_of(type(value), where): found}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {_name_of(type(value), where): self._fields(value, where)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {_name_of(type(value), where): self._fields(value, where)}
        if type(value) in (np.ndarray, np.memmap) or isinstance(value, np.generic):
            return self._array(value, where)
        if _is_jax(value):
            return self._array(value, where)
        raise ValueError(
            f"{where} is a {type(value).__qualname__}, which cannot be saved in a "
            f"checkpoint: use {_KNOWN}"
        )

    def _fields(self, value: Any, where: str) -> list[Any]:
        names = _fields_of(type(value))
        for name in vars(value) if hasattr(value, "__dict__") else ():
            cached = getattr(type(value), name, None)
            if name not in names and not isinstance(cached, functools.cached_property):
                raise ValueError(
                    f"{where} has the attribute {name}, which is not a field and so "
                    "cannot be saved in a checkpoint: make it a field"
                )
        return [self.encode(getattr(value, n), f"{where}.{n}") for n in names]

    def _items(self, values: Any, where: str) -> list[Any]:
        return [self.encode(v, f"{where}[{i}]") for i, v in enumerate(values)]

    def _pairs(self, value: dict, where: str) -> list[Any]:
        return [
            [self.encode(k, where), self.encode(v, f"{where}[{k!r}]")]
            for k, v in value.items()
        ]

    def _generator(self, value: np.random.Generator, where: str) -> dict[str, Any]:
        _, before = self._generators.setdefault(id(value), (value, where))
        if before != where:
            raise ValueError(
                f"{where} and {before} share one generator, which cannot be saved in "
                "a checkpoint: use a generator for each"
            )
        return {"generator": self._pairs(dict(value.bit_generator.state), where)}

    def _leaves(self, values: Leaves, where: str) -> dict[str, Any]:
        found = [self._array(v, f"{where}[{i}]") for i, v in enumerate(values)]
        same = {"jax": "array", "weak": "array"}
        return {
            "leaves": [{same.get(k, k): v for k, v in one.items()} for one in found]
        }

    def _array(self, value: Any, where: str) -> dict[str, Any]:
        if _is_jax(value):
            import jax

            if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
                impl = str(jax.random.key_impl(value))
                return {"key": [impl, self._array(jax.random.key_data(value), where)]}
        # dtypes that are not NumPy's own, such as bfloat16, have the kind V
        if value.dtype.kind not in "biufcV" or value.dtype.fields:
            raise ValueError(
                f"{where} is an array of {value.dtype}, which cannot be saved in a "
                "checkpoint: use numbers"
            )
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.arrays)
            self.arrays.append(value)
        kind = "array"
        if _is_jax(value):
            kind = "weak" if value.weak_type else "jax"
        elif isinstance(value, np.generic):
            kind = "scalar"
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
    np.random.Generator: Encoder._generator,
    Leaves: Encoder._leaves,
}


def decode(data: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Return the value that `Encoder.encode` has encoded.

    Errors: a ValueError for JSON data that `encode` does not write, and for a class
    that no longer exists or has other fields.
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
    found = _class_of(kind)
    if issubclass(found, enum.Flag):
        return found(inner)
    if issubclass(found, enum.Enum):
        return found[inner]
    return _make(found, [decode(v, arrays) for v in inner])


def _pairs(inner: Any, arrays: Sequence[np.ndarray]) -> dict:
    return {decode(k, arrays): decode(v, arrays) for k, v in inner}


def _generator(inner: Any, arrays: Sequence[np.ndarray]) -> np.random.Generator:
    state = _pairs(inner, arrays)
    generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
    generator.bit_generator.state = state
    return generator


def _is_jax(value: Any) -> bool:
    """Whether this is a JAX array; does not import JAX."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _jax_array(array: np.ndarray) -> Any:
    import jax.numpy as jnp

    return jnp.array(array)


def _weak(array: np.ndarray) -> Any:
    """A weakly typed JAX array, whose dtype yields to others, as a Python number's."""
    import jax.numpy as jnp

    return jnp.full(array.shape, array.dtype.type(0).item()).at[...].set(array)


def _jax_key(inner: Any, arrays: Sequence[np.ndarray]) -> Any:
    import jax

    return jax.random.wrap_key_data(decode(inner[1], arrays), impl=inner[0])


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
    "leaves": lambda v, arrays: Leaves(decode(v, arrays)),
    "jax": lambda v, arrays: _jax_array(arrays[v]),
    "weak": lambda v, arrays: _weak(arrays[v]),
    "scalar": lambda v, arrays: arrays[v][()],
    "key": _jax_key,
}


def _name_of(kind: type, where: str) -> str:
    """A class as "module:Class". Errors: ValueError if it cannot be found by name."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    if "<locals>" in name or _class_of(name) is not kind:
        raise ValueError(
            f"{where} is of the class {kind.__qualname__}, which cannot be saved in a "
            "checkpoint, since it cannot be found by its name: define it at the top "
            "level of a module"
        )
    return name


_found: dict[str, type] = {}


def _class_of(name: str) -> type:
    if name in _found:
        return _found[name]
    found = resolve(name)
    named_tuple = isinstance(found, type) and issubclass(found, tuple)
    is_enum = isinstance(found, type) and issubclass(found, enum.Enum)
    if not (named_tuple or is_enum or dataclasses.is_dataclass(found)):
        raise ValueError(f"{name!r} is not a named tuple, dataclass or enum")
    if not name.startswith("__main__:"):  # a notebook may define a class again
        _found[name] = found
    return found


def _fields_of(kind: Any) -> Sequence[str]:
    """The names of the fields of a named tuple or dataclass."""
    return getattr(kind, "_fields", None) or [f.name for f in dataclasses.fields(kind)]


def _make(kind: Any, values: list[Any]) -> Any:
    """Make an object of a class from the values of its fields."""
    names = _fields_of(kind)
    if len(names) != len(values):
        raise ValueError(
            f"{kind.__qualname__} has the fields {', '.join(names)}, not {len(values)}"
        )
    if issubclass(kind, tuple):
        return tuple.__new__(kind, values)
    made = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)  # it may be frozen
    return made
