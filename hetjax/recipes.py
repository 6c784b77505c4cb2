"""Recipes: the named factory and arguments of an object, to make it in another process.

Functions that are marked `by_name` record the arguments of every call. `recipe_of`
returns them as JSON data, if all are plain values, were made by name themselves, or are
functions and classes at the top level of a module.
"""

import functools
import importlib
import inspect
import itertools
import json
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_Made = TypeVar("_Made", bound=Callable[..., Any])
_recipes: dict[int, dict[str, Any]] = {}  # by the id of an object, while it lives


class NoRecipe(ValueError):
    """An object cannot be made again by name; the message says why."""


def by_name(function: _Made) -> _Made:
    """Let a factory record, for each object that it returns, the call's arguments."""
    signature = inspect.signature(function)
    star = [n for n, p in signature.parameters.items() if p.kind is p.VAR_POSITIONAL]

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        if star:  # arguments before *names can be passed by position alone
            arguments = {f"*{star[0]}": bound.args, **bound.kwargs}
        name = f"{function.__module__}:{function.__qualname__}"
        key = _key(result)
        if id(key) not in _recipes:
            weakref.finalize(key, _recipes.pop, id(key), None)
        _recipes[id(key)] = {"function": name, "arguments": _encoded(name, arguments)}
        return result

    return made  # pyright: ignore[reportReturnType]


def recipe_of(thing: Any) -> dict[str, Any]:
    """Return an object's recipe as JSON data. Errors: NoRecipe if it has none."""
    recipe = _recipes.get(id(_key(thing)))
    if recipe is None:
        raise NoRecipe(f"it is a {type(thing).__qualname__} that was not made by name")
    _raise_if_unknown(recipe)
    return recipe


def make(recipe: dict[str, Any], made: dict[str, Any]) -> Any:
    """Make an object again; `made` holds objects by recipe, so that each is made once.

    Errors: those of its factory; NoRecipe if a name no longer exists.
    """
    key = json.dumps(recipe, sort_keys=True)
    if key not in made:
        given = {k: _decoded(v, made) for k, v in recipe["arguments"].items()}
        several = [v for k, v in given.items() if k.startswith("*")]
        others = {k: v for k, v in given.items() if not k.startswith("*")}
        made[key] = resolve(recipe["function"])(*itertools.chain(*several), **others)
    return made[key]


def _key(thing: Any) -> Any:
    """A part of an object that lives as long as it, and allows weak references."""
    if not isinstance(thing, tuple):
        return thing
    # of a Task or a Model: a function that belongs to it alone
    return getattr(thing, "loss", getattr(thing, "apply", thing))


def _encoded(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _encoded(f"the argument {k} of {name}", v) for k, v in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, tuple | list):
        return [_encoded(name, v) for v in value]
    if id(_key(value)) in _recipes:
        return {"made": _recipes[id(_key(value))]}
    qualname = getattr(value, "__qualname__", "<locals>")
    module = getattr(value, "__module__", "__main__")
    if callable(value) and "<" not in qualname and module != "__main__":
        return {"name": f"{module}:{qualname}"}
    return {"unknown": f"{name} is a {type(value).__qualname__} without a name"}


def _raise_if_unknown(recipe: Any) -> None:
    if isinstance(recipe, dict):
        if "unknown" in recipe:
            raise NoRecipe(recipe["unknown"])
        for value in recipe.values():
            _raise_if_unknown(value)
    elif isinstance(recipe, list):
        for value in recipe:
            _raise_if_unknown(value)


def _decoded(value: Any, made: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(v, made) for v in value)
    if isinstance(value, dict):
        return make(value["made"], made) if "made" in value else resolve(value["name"])
    return value


def resolve(name: str) -> Any:
    """Return the object with the name "module:name". Errors: NoRecipe without one."""
    module, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise NoRecipe(f"{name} cannot be found: {error}") from error
    return found
