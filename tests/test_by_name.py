"""Recipes of what was made by name, through JSON: it is made again as it was."""

import json
import pathlib

import pytest

from hetjax import recipes
from hetjax.recipes import NoRecipe, by_name


class Made:
    def __init__(self, *given, **named):
        self.given, self.named = given, named


@by_name
def made(first, *rest, scale=1.0, other=None):
    return Made(first, *rest, scale=scale, other=other)


def again(thing, known=None):
    data = json.loads(json.dumps(recipes.recipe_of(thing)))
    return recipes.make(data, {} if known is None else known)


def test_plain_arguments_come_back_by_position_and_by_name():
    copy = again(made(1, "two", None, scale=0.5))
    assert copy.given == (1, "two", None)
    assert copy.named == {"scale": 0.5, "other": None}


def test_lists_are_tuples_and_paths_are_text():
    copy = again(made([1, [2]], pathlib.Path("a/b")))
    assert copy.given == ((1, (2,)), "a/b")


def test_functions_and_classes_at_the_top_of_a_module_are_named():
    copy = again(made(json.dumps, other=pathlib.Path))
    assert copy.given == (json.dumps,)
    assert copy.named["other"] is pathlib.Path


def test_what_was_made_by_name_may_be_an_argument_and_is_made_once():
    inner, known = made(3), {}
    outer = made(inner, inner)
    first, second = again(outer, known).given
    assert first is second
    assert first.given == (3,)
    assert again(outer, known) is again(outer, known)
    assert again(outer) is not again(outer)


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        (lambda: made(lambda x: x), "argument 1 of .*:made is a function with"),
        (lambda: made(1, other=Made()), "argument other of .*:made is a Made without"),
        (lambda: made(made(object())), "argument 1 of .*:made is a object with"),
        (lambda: Made(), "it is a Made that was not made by name"),
    ],
)
def test_what_has_no_recipe_says_why(thing, why):
    it = thing()  # kept: a recipe is forgotten with what it made
    with pytest.raises(NoRecipe, match=why):
        recipes.recipe_of(it)


@pytest.mark.parametrize("name", ["no.such.module:x", "json:nothing", "json"])
def test_a_name_that_is_gone_is_an_error(name):
    with pytest.raises(NoRecipe, match=f"{name} cannot be found"):
        recipes.make({"function": name, "args": [], "kwargs": {}}, {})


def test_a_recipe_is_forgotten_with_what_it_made():
    thing = made(1)
    key = id(thing)
    assert key in recipes._recipes
    del thing
    assert key not in recipes._recipes
