"""A checksum of a strategy's or task's parts, the same in every process.

Functions are described by their names, closures and defaults; tuples, dataclasses and
arrays by their contents. The user's own code, which may change between two runs, is
described as well: functions with the globals that they name, classes with their
methods, objects with their attributes. Objects of libraries are described only by their
classes, and by the arrays that JAX finds in them. Globals that a function assigns, and
global lists, dictionaries and sets, are not described: they may be counters and caches.
"""

import argparse
import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

_DEEP = 60  # levels; deeper values are described by their classes
_INSTALLED = ("site-packages", "dist-packages")
_MUTABLE = list | dict | set
_PLAIN = bool | int | float | complex | str | bytes


def checksum(value: Any) -> str:
    """Return 16 hexadecimal digits that describe a value."""
    return _Describer().digest(value, ()).hex()[:16]


class _Describer:
    """Describes values, each once."""

    def __init__(self):
        # by id; holds the value, so that no other one gets its id
        self._known: dict[int, tuple[Any, bytes]] = {}

    def digest(self, value: Any, above: tuple[int, ...]) -> bytes:
        """Return the checksum of a value inside those whose ids are `above`."""
        if isinstance(value, types.MethodType):
            value = (value.__func__, value.__self__)
        kind = type(value)
        found = hashlib.sha256(f"<{kind.__module__}:{kind.__qualname__}>".encode())
        if value is None or isinstance(value, _PLAIN):
            found.update(repr(value).encode())
            return found.digest()
        if id(value) in above or len(above) > _DEEP:  # it encloses itself
            return found.digest()
        if id(value) in self._known:
            return self._known[id(value)][1]
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            _describe_array(value, found)
        inside = (*above, id(value))
        for part in self._parts(value, inside):
            found.update(self.digest(part, inside))
        self._known[id(value)] = value, found.digest()
        return found.digest()

    def _parts(self, value: Any, inside: tuple[int, ...]) -> Iterator[Any]:
        """Yield the parts of an object, in the same order in all processes."""
        if isinstance(value, types.FunctionType):
            yield from _parts_of_function(value)
        elif isinstance(value, type):
            yield from parts_of_class(value)
        elif isinstance(value, types.ModuleType | types.BuiltinFunctionType):
            yield value.__name__
        elif isinstance(value, enum.Enum):
            yield value.value
        elif isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, types.SimpleNamespace | argparse.Namespace):
            yield vars(value)
        elif hasattr(value, "__wrapped__"):  # of a cache or jit
            yield inspect.unwrap(value)
            for name in ("fwd", "bwd", "jvp"):  # custom derivatives
                yield getattr(value, name, None)
        elif isinstance(value, tuple | list):
            yield from value
        elif isinstance(value, set | frozenset):
            yield from sorted(self.digest(v, inside) for v in value)
        elif isinstance(value, Mapping):
            pairs = value.items()
            yield from sorted(
                self.digest(k, inside) + self.digest(v, inside) for k, v in pairs
            )
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                yield getattr(value, field.name, None)
        elif is_own(type(value).__module__) and hasattr(value, "__dict__"):
            yield vars(value)
        else:
            yield from _leaves(value)
        if is_own(type(value).__module__):
            yield type(value)


def _leaves(value: Any) -> list[Any]:
    """The leaves that JAX finds in an object, such as a module or a sparse matrix."""
    leaves = jax.tree.leaves(value)
    return [] if len(leaves) == 1 and leaves[0] is value else leaves


def _describe_array(value: Any, found: Any) -> None:
    found.update(f"{value.dtype}{value.shape}".encode())
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    found.update(np.ascontiguousarray(value).tobytes())


def _parts_of_function(function: types.FunctionType) -> Iterator[Any]:
    yield from (function.__module__, function.__qualname__)
    yield from enclosed_by(function)
    if not is_own(function.__module__):
        return
    for code in _codes(function.__code__):
        yield from (code.co_code, code.co_names)
        yield [c for c in code.co_consts if not isinstance(c, types.CodeType)]
    yield from globals_of(function)


def enclosed_by(function: types.FunctionType) -> Iterator[Any]:
    """Yield a function's defaults and the values in its closure."""
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield None


def globals_of(
    function: types.FunctionType, *, containers: bool = False
) -> Iterator[Any]:
    """Yield the globals that a user's function names; none for a library's.

    Lists, dictionaries and sets are included only with `containers`.
    """
    if not is_own(function.__module__):
        return
    names: set[str] = set()  # also of attributes
    loaded, stored = set[str](), set[str]()
    for code in _codes(function.__code__):
        names.update(code.co_names)
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                loaded.add(instruction.argval)
            elif instruction.opname == "STORE_GLOBAL":
                stored.add(instruction.argval)
    for name in sorted(loaded - stored):
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType) and is_own(value.__name__):
            value = tuple(getattr(value, each, None) for each in sorted(names))
        yield from ((name, value),) if containers else _settings(name, value)


def _settings(name: str, value: Any) -> Iterator[Any]:
    """A global that a function names, without parts that may change during a run."""
    if isinstance(value, tuple):
        value = tuple(v for v in value if not isinstance(v, _MUTABLE))
    if not isinstance(value, _MUTABLE):
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
        elif not name.startswith("__") or isinstance(value, types.FunctionType):
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
