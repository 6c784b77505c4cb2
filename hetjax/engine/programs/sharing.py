"""Programs and parts of strategies that the runs of a process share.

Programs are an attribute of one of the task's own functions, so that they, and all
values that these functions enclose, are freed with the task. A part of a strategy that
equals an earlier one, such as a merge by the same factory with the same arguments, is
replaced by the earlier one, for which the task has programs.
"""

import functools
import hashlib
import types
import weakref
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np

from hetjax.engine.programs.task_programs import Programs
from hetjax.made_of import (
    enclosed_by,
    globals_of,
    is_own,
    parts_of_class,
)
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task

TASKS = 16  # with cached programs, at most; the least recently used are evicted
PROGRAMS = 1024  # of a task; each takes some of the kernel's limited memory maps

_ATTRIBUTE = "_hetjax_programs"  # of a function
_PLAIN = bool | int | float | complex | str | bytes
_TRUSTED = ("hetjax", "optax")  # whose globals are constant: comparing code suffices


def programs_of(task: Task) -> Programs:
    """Return the programs of a task: those of earlier runs, if they are cached."""
    cache = _cache_of(task)
    if cache is None:
        return Programs(task)
    key = key_of(task)
    if key in cache and cache[key].number > PROGRAMS:
        del cache[key]
    if key not in cache:
        cache[key] = Programs(task)
    _note_use(cache, cache[key])
    return cache[key]


def shared_parts(programs: Programs, strategy: Strategy) -> Strategy:
    """Return the strategy with equal parts replaced by those that have programs."""
    merges = tuple(programs.same(key_of(merge), merge) for merge in strategy.merges)
    merge = merges[0] if strategy.merge is strategy.merges[0] else merges
    update = programs.same(key_of(strategy.local), strategy.local)
    return Strategy(**{**strategy._asdict(), "merge": merge, "local": update})


def key_of(part: Any) -> Hashable:
    """Return a key that is equal for parts with the same programs.

    Functions of hetjax and optax are equal if they enclose equal values. A function,
    class or object of the user is only equal to itself, and only while its enclosed
    values, globals and attributes are equal: numbers, strings, NumPy arrays, containers
    of them, and other functions, classes and objects of the user. Any other object is
    only equal to itself.
    """
    return _key(part, {})


def _key(part: Any, seen: dict[int, tuple[int, Any]]) -> Hashable:
    """As `key_of`; `seen` has the objects so far by id, and keeps them alive."""

    def keys(parts: Iterable[Any]) -> Iterator[Hashable]:
        return (_key(each, seen) for each in parts)

    if part is None or isinstance(part, _PLAIN):
        return type(part), repr(part)  # 1 is not 1.0, and 0.0 is not -0.0
    if isinstance(part, np.generic):
        return type(part), part.tobytes()
    if isinstance(part, _Same):
        return part
    if id(part) in seen:  # such as a function that calls itself
        return "again", seen[id(part)][0]
    seen[id(part)] = len(seen), part
    if isinstance(part, tuple | list):
        return type(part), *keys(part)
    if isinstance(part, set | frozenset):
        return type(part), frozenset(keys(part))
    if isinstance(part, dict):
        return type(part), *keys(part.items())
    if isinstance(part, np.ndarray) and part.dtype != object:
        found = hashlib.sha256(np.ascontiguousarray(part).tobytes()).digest()
        return part.dtype.str, part.shape, found
    if isinstance(part, functools.partial):
        return functools.partial, *keys((part.func, part.args, part.keywords))
    if isinstance(part, types.MethodType):
        return types.MethodType, *keys((part.__func__, part.__self__))
    if isinstance(part, types.FunctionType):
        if _is_trusted(part):
            return part.__code__, *keys(map(_fixed, enclosed_by(part)))
        named = globals_of(part)
        own = {k: v for k, v in vars(part).items() if k != _ATTRIBUTE}
        return _Same(part), *keys((*enclosed_by(part), *named, own))
    if isinstance(part, type):
        return _Same(part), *keys(parts_of_class(part))
    if callable(wrapped := getattr(part, "__wrapped__", None)):  # such as by jax.jit
        return _Same(part), _key(wrapped, seen)
    if is_own(type(part).__module__) or isinstance(part, types.SimpleNamespace):
        return _Same(part), *keys((type(part), getattr(part, "__dict__", ())))
    return _Same(part)


def _is_trusted(function: types.FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] in _TRUSTED


def _fixed(enclosed: Any) -> Any:
    """Return a key for an enclosed value; lists and sets may be counters."""
    return _Same(enclosed) if isinstance(enclosed, list | set) else enclosed


class _Same:
    """A key that is equal for the same object, which it keeps alive."""

    def __init__(self, value: Any):
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


class _ProgramCache(dict[Hashable, Programs]):
    """Programs by the key of their task; a pickled one is empty."""

    def __reduce__(self) -> tuple:
        return _ProgramCache, ()


def _cache_of(task: Task) -> _ProgramCache | None:
    """Return the cache of a task; None if none of its callables is a function."""
    callables = (task.loss, task.init, task.metrics)
    functions = [f for f in callables if isinstance(f, types.FunctionType)]
    if not functions:
        return None
    # a function that encloses something is this task's own, and is freed with it
    owner = min(functions, key=lambda f: f.__closure__ is None)
    return owner.__dict__.setdefault(_ATTRIBUTE, _ProgramCache())


_recent: list[
    tuple[weakref.ref[_ProgramCache], weakref.ref[Programs]]
] = []  # the most recently used is last


def _note_use(cache: _ProgramCache, programs: Programs) -> None:
    """Note the use of programs; evict the least recently used if there are many."""
    others = [entry for entry in _recent if entry[1]() not in (None, programs)]
    entries = [*others, (weakref.ref(cache), weakref.ref(programs))]
    for their_cache, old in entries[:-TASKS]:
        where, evicted = their_cache(), old()
        for key in [k for k, v in (where or {}).items() if v is evicted]:
            del where[key]  # pyright: ignore[reportOptionalSubscript]
    _recent[:] = entries[-TASKS:]
