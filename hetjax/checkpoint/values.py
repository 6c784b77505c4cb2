"""Encode values of a run as JSON and arrays, and decode them, exactly.

A value that JSON does not have becomes an object with one key, which states its kind:

    {"tuple": [...]}   {"dict": [[key, value], ...]}   {"float": "inf"}   ...
    {"array": 3}: the third array   {"module:Class": ...}: the fields of a named tuple
    or dataclass, or the name of a member of an enum

No constructor of a class is called: its objects are filled field by field.
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


def _generator(state: dict[str, Any]) -> np.random.Generator:
    generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
    generator.bit_generator.state = state
    return generator


def _key(parts: list[Any]) -> Any:
    import jax

    return jax.random.wrap_key_data(parts[1], impl=parts[0])


def _strong(value: np.ndarray) -> Any:
    import jax.numpy as jnp

    return jnp.array(value)


def _weak(value: np.ndarray) -> Any:
    """A JAX array whose dtype yields to others, as that of a Python number does."""
    import jax.numpy as jnp

    return jnp.full(value.shape, value.dtype.type(0).item()).at[...].set(value)


# a kind, its type, the same value made of simpler ones, and back
_KINDS: tuple[tuple[str, type, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    ("float", float, repr, float),  # if it is not finite
    ("tuple", tuple, list, tuple),
    ("set", set, list, set),
    ("frozenset", frozenset, list, frozenset),
    ("counter", Counter, dict, Counter),
    ("deque", deque, lambda v: [v.maxlen, list(v)], lambda v: deque(v[1], v[0])),
    ("numbers", array, lambda v: [v.typecode, np.array(v)], lambda v: array(*v)),
    ("generator", np.random.Generator, lambda v: v.bit_generator.state, _generator),
)
_SIMPLER = {kind: (name, simpler) for name, kind, simpler, _ in _KINDS}
_MAKE = {name: make for name, _, _, make in _KINDS}
_MAKE |= {"dict": dict, "leaves": Leaves, "key": _key}
_ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda v: v,
    "scalar": lambda v: v[()],
    "jax": _strong,
    "weak": _weak,
}


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
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float and math.isfinite(value):
            return value
        if kind is list:
            return [self.encode(v, f"{where}[{i}]") for i, v in enumerate(value)]
        if kind is dict:
            keys = (self.encode(k, where) for k in value)
            items = (self.encode(v, f"{where}[{k!r}]") for k, v in value.items())
            return {"dict": list(map(list, zip(keys, items, strict=True)))}
        if kind is Leaves:
            return {"leaves": [self._array(v, where, as_numpy=True) for v in value]}
        if kind is np.random.Generator:
            self._check_unshared(value, where)
        if kind in _SIMPLER:
            name, simpler = _SIMPLER[kind]
            return {name: self.encode(simpler(value), where)}
        if isinstance(value, enum.Enum):
            # a union of flags has no name
            found = value.value if isinstance(value, enum.Flag) else value.name
            return {_name_of(kind, where): found}
        if _has_fields(kind):
            _check_attributes(value, where)
            fields = [self.encode(getattr(value, n), f"{where}.{n}") for n in _of(kind)]
            return {_name_of(kind, where): fields}
        is_numpy = kind in (np.ndarray, np.memmap) or isinstance(value, np.generic)
        if is_numpy or _is_jax(value):
            return self._array(value, where)
        raise ValueError(
            f"{where} is a {kind.__qualname__}, which cannot be saved in a checkpoint: "
            "use numbers, strings, None, tuples, lists, dictionaries, sets, named "
            "tuples, dataclasses, enums, NumPy and JAX arrays, NumPy generators"
        )

    def _array(self, value: Any, where: str, *, as_numpy: bool = False) -> Any:
        """Return the number of an array, by its kind."""
        is_scalar = isinstance(value, np.generic)
        kind = "scalar" if is_scalar else "array"
        if _is_jax(value):
            import jax

            if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
                parts = [str(jax.random.key_impl(value)), jax.random.key_data(value)]
                return {"key": self.encode(parts, where)}
            kind = "weak" if value.weak_type else "jax"
        # dtypes that are not NumPy's own, such as bfloat16, have the kind V
        if value.dtype.kind not in "biufcV" or value.dtype.fields:
            raise ValueError(
                f"{where} is an array of {value.dtype}, which cannot be saved in a "
                "checkpoint: use numbers"
            )
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.arrays)
            self.arrays.append(value)
        return {"array" if as_numpy else kind: self._numbers[id(value)]}

    def _check_unshared(self, value: np.random.Generator, where: str) -> None:
        _, before = self._generators.setdefault(id(value), (value, where))
        if before != where:
            raise ValueError(
                f"{where} and {before} share one generator, which cannot be saved in "
                "a checkpoint: use a generator for each"
            )


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
    if kind in _ARRAYS:
        return _ARRAYS[kind](arrays[inner])
    value = decode(inner, arrays)
    return _MAKE[kind](value) if kind in _MAKE else _filled(_class_of(kind), value)


def _is_jax(value: Any) -> bool:
    """Whether this is a JAX array; does not import JAX."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _has_fields(kind: Any) -> bool:
    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named_tuple or dataclasses.is_dataclass(kind)


def _of(kind: Any) -> Sequence[str]:
    """The names of the fields of a named tuple or dataclass."""
    return getattr(kind, "_fields", None) or [f.name for f in dataclasses.fields(kind)]


def _check_attributes(value: Any, where: str) -> None:
    kind = type(value)
    for name in set(getattr(value, "__dict__", ())).difference(_of(kind)):
        cached = isinstance(getattr(kind, name, None), functools.cached_property)
        if not cached:
            raise ValueError(
                f"{where} has the attribute {name}, which is not a field and so "
                "cannot be saved in a checkpoint: make it a field"
            )


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


def _class_of(name: str) -> type:
    found = resolve(name)
    if isinstance(found, type) and (issubclass(found, enum.Enum) or _has_fields(found)):
        return found
    raise ValueError(f"{name!r} is not a named tuple, dataclass or enum")


def _filled(kind: Any, value: Any) -> Any:
    """A member of an enum, or an object with these values of its fields."""
    if issubclass(kind, enum.Enum):
        return kind(value) if issubclass(kind, enum.Flag) else kind[value]
    names = _of(kind)
    if len(names) != len(value):
        raise ValueError(
            f"{kind.__qualname__} has the fields {', '.join(names)}, not {len(value)}"
        )
    if issubclass(kind, tuple):
        return tuple.__new__(kind, value)
    made = object.__new__(kind)
    for name, each in zip(names, value, strict=True):
        object.__setattr__(made, name, each)  # it may be frozen
    return made
