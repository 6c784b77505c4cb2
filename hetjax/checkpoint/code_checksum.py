"""The parts of a user's own functions and classes, whose code may change."""

import dis
import functools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_INSTALLED = ("site-packages", "dist-packages")


def enclosed_by(function: types.FunctionType) -> Iterator[Any]:
    """Yield a function's defaults and the values in its closure."""
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield None


def globals_of(function: types.FunctionType) -> Iterator[Any]:
    """Yield the globals that a user's function names; none for a library's."""
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
