"""Recipes: the named factory and arguments of an object, to make it in another process.

Functions that are marked `by_name` record every call. `recipe_of` returns it as JSON
data, if all arguments are plain values, were made by name themselves, or are functions
and classes at the top level of a module.
"""

import functools
import importlib
import inspect
import json
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_Made = TypeVar("_Made", bound=Callable[..., Any])
# by the id of an object, while it lives: its recipe, or why it has none
_recipes: dict[int, dict[str, Any] | str] = {}


class NoRecipe(ValueError):
    """An object cannot be made again by name; the message says why."""


def by_name(function: _Made) -> _Made:
    """Let a factory record the arguments with which each object was made."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        key = _key(result)
        if id(key) not in _recipes:
            weakref.finalize(key, _recipes.pop, id(key), None)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            recipe = recipe_of_call(function, bound.args, bound.kwargs)
            _recipes[id(key)] = recipe
        except NoRecipe as error:  # its traceback would keep the object alive
            _recipes[id(key)] = str(error)
        return result

    return made  # pyright: ignore[reportReturnType]


def recipe_of(thing: Any) -> dict[str, Any]:
    """Return an object's recipe as JSON data. Errors: NoRecipe if it has none."""
    recipe = _recipes.get(id(_key(thing)))
    if recipe is None:
        raise NoRecipe(f"it is a {type(thing).__qualname__} that was not made by name")
    if isinstance(recipe, str):
        raise NoRecipe(recipe)
    return recipe


def recipe_of_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the recipe of what a function returns. Errors: NoRecipe if it has none."""
    name = _name_of(function)
    given = [_encoded(f"argument {i} of {name}", v) for i, v in enumerate(args, 1)]
    named = {k: _encoded(f"the argument {k} of {name}", v) for k, v in kwargs.items()}
    return {"function": name, "args": given, "kwargs": named}


def make(recipe: dict[str, Any], made: dict[str, Any]) -> Any:
    """Make an object again; `made` holds objects by recipe, so that each is made once.

    Errors: those of its factory; NoRecipe if a name no longer exists.
    """
    key = json.dumps(recipe, sort_keys=True)
    if key not in made:
        made[key] = _call(recipe, made)()
    return made[key]


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


def _key(thing: Any) -> Any:
    """A part of an object that lives as long as it, and allows weak references."""
    if not isinstance(thing, tuple):
        return thing
    # of a Task or a Model: a function that belongs to it alone
    return getattr(thing, "loss", getattr(thing, "apply", thing))


def _name_of(function: Any) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def _encoded(where: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list) or type(value) is tuple:
        return [_encoded(where, v) for v in value]
    if id(_key(value)) in _recipes:
        return {"made": recipe_of(value)}
    if isinstance(value, functools.partial):
        return {"partial": recipe_of_call(value.func, value.args, value.keywords)}
    named = callable(value) and hasattr(value, "__qualname__")
    if named and "<" not in value.__qualname__ and value.__module__ != "__main__":
        return {"name": _name_of(value)}
    raise NoRecipe(f"{where} is a {type(value).__qualname__} without a name")


def _decoded(value: Any, made: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(v, made) for v in value)
    if not isinstance(value, dict):
        return value
    if "partial" in value:
        return _call(value["partial"], made)
    return make(value["made"], made) if "made" in value else resolve(value["name"])


def _call(recipe: dict[str, Any], made: dict[str, Any]) -> functools.partial:
    """The call of a recipe's factory."""
    kwargs = {k: _decoded(v, made) for k, v in recipe["kwargs"].items()}
    args = _decoded(recipe["args"], made)
    return functools.partial(resolve(recipe["function"]), *args, **kwargs)
