"""A checksum of what a strategy or task is made of, the same in every process.

Functions are described by their names, the values that they enclose and their defaults;
tuples, dataclasses and arrays by what they hold; any other object by its class alone.
Two strategies with different settings differ, even if they have no names for them.
"""

import dataclasses
import functools
import hashlib
import inspect
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

_DEEP = 40  # levels; what lies deeper is described by its class
_OWN = "hetjax."


def checksum(value: Any) -> str:
    """Return 16 hexadecimal digits that describe a value."""
    found = hashlib.sha256()
    _describe(value, found, [])
    return found.hexdigest()[:16]


def _describe(value: Any, into: Any, above: list[int]) -> None:
    if isinstance(value, types.MethodType):
        value = (value.__func__, value.__self__)
    kind = type(value)
    into.update(f"<{kind.__module__}:{kind.__qualname__}>".encode())
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        into.update(repr(value).encode())
        return
    if id(value) in above or len(above) > _DEEP:  # it encloses itself
        return
    above = [*above, id(value)]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        into.update(f"{value.dtype}{value.shape}".encode())
        if not jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            into.update(np.ascontiguousarray(value).tobytes())
        return
    for part in _parts(value):
        _describe(part, into, above)


def _parts(value: Any) -> list[Any]:
    """What an object is made of, in an order that does not depend on the process."""
    if isinstance(value, types.FunctionType):
        return _parts_of_function(value)
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
        return [getattr(value, "__module__", ""), getattr(value, "__qualname__", "")]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if hasattr(value, "__wrapped__"):  # of a cache or jit
        return [inspect.unwrap(value)]
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(map(checksum, value))
    if isinstance(value, Mapping):
        return sorted((checksum(k), checksum(v)) for k, v in value.items())
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value)]
        return [getattr(value, name, None) for name in fields]
    return []


def _parts_of_function(function: types.FunctionType) -> list[Any]:
    code, cells = function.__code__, []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # not set yet
            cells.append(None)
    parts = [function.__module__, function.__qualname__, cells]
    parts += [function.__defaults__, function.__kwdefaults__]
    if not function.__module__.startswith(_OWN):  # one's own may change between runs
        parts += [code.co_code, code.co_names, _constants(code)]
    return parts


def _constants(code: types.CodeType) -> list[Any]:
    """The constants in a function's code, and in the functions inside it."""
    is_code = types.CodeType
    return [_constants(c) if isinstance(c, is_code) else c for c in code.co_consts]
