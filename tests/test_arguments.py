"""Signatures say what arguments may be, and calls are held to it."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction as Ratio
from typing import Annotated, Literal

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetjax.arguments import (
    Bounds,
    Count,
    Fraction,
    Positive,
    Seed,
    Whole,
    as_kind,
    checked,
)
from hetjax.machine import Cost


@checked
def made(
    steps: Count = 1,
    momentum: Fraction = 0.0,
    *,
    rule: Literal["mean", "sum"] = "mean",
    speeds: Positive | Sequence[Positive] = 1.0,
    seed: Seed = 0,
    name: str | None = None,
    image: Annotated[tuple[Count, Count], "(height, width)"] = (8, 8),
):
    return dict(locals())


@checked
def chain(*functions: Callable[[int], int]):
    return functions


@checked
@dataclass(frozen=True)
class Part:
    size: Positive
    _: KW_ONLY
    count: Whole = 0
    cost: Cost | None = None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps=0: pass a whole number of at least 1"),
        ({"steps": 1.5}, "steps=1.5: pass a whole number of at least 1"),
        ({"steps": True}, "steps=True: pass a whole number of at least 1"),
        (
            {"steps": 2**31},
            r"steps=\d+: pass a whole number of at least 1, below 2\*\*31",
        ),
        ({"momentum": 1}, "momentum=1: pass a number from 0 to below 1"),
        ({"momentum": np.nan}, "momentum=nan: pass a number from 0 to below 1"),
        ({"momentum": "0"}, "momentum='0': pass a number from 0 to below 1"),
        ({"rule": "max"}, "rule='max': choose one of mean, sum"),
        ({"rule": ["mean"]}, r"rule=\['mean'\]: choose one of mean, sum"),
        ({"speeds": [1, 0]}, r"speeds=\[1, 0\]: pass a number above 0 or a sequence"),
        (
            {"seed": 2**32},
            r"seed=4294967296: pass a whole number from 0 to 2\*\*32 - 1$",
        ),
        ({"seed": 10**5000}, "seed=<a int>: pass a whole number from 0 to"),
        (
            {"seed": jax.random.key(0)},
            "seed=<a PRNGKeyArray>: pass a whole number from 0 to",
        ),
        (
            {"momentum": jax.random.key(0)},
            "momentum=<a PRNGKeyArray>: pass a number from 0",
        ),
        ({"momentum": jax.ShapeDtypeStruct((), float)}, "momentum=Shape.*: pass"),
        ({"speeds": np.inf}, "speeds=inf: .* above 0 .*finite in float32"),
        ({"speeds": 10**39}, "speeds=1.*: .* above 0 .*finite in float32"),
        ({"image": (8, 9, 3)}, r"image=\(8, 9, 3\): pass a seq.* 1: \(height, width\)"),
        ({"name": 3}, "name=3: pass a string or None"),
    ],
)
def test_an_error_names_the_argument_and_what_it_may_be(wrong, message):
    with pytest.raises(ValueError, match=message):
        made(**wrong)


def test_numbers_are_passed_on_as_the_types_that_were_annotated():
    found = made(np.int64(3), 0, speeds=[1, 2.5], seed=2**32 - 1, rule="sum")
    assert found["steps"] == 3
    assert type(made(4.0)["steps"]) is int
    assert found["speeds"] == (1, 2.5)
    assert found["seed"] == 2**32 - 1


def test_the_arguments_of_a_star_are_checked_and_too_many_are_a_type_error():
    assert chain(abs, abs) == (abs, abs)
    with pytest.raises(ValueError, match="functions=3: pass a function"):
        chain(abs, 3)
    with pytest.raises(TypeError, match="takes from 0 to 2 positional arguments"):
        made(1, 0.5, 3)


def test_a_range_is_not_listed():
    assert made(speeds=range(1, 10**12))["speeds"] == range(1, 10**12)
    with pytest.raises(ValueError, match="speeds=range"):
        made(speeds=range(10**12))


def test_numbers_that_jax_traces_are_passed_on():
    assert jax.jit(lambda m: made(momentum=m)["momentum"])(2.0) == 2


def test_fields_of_a_dataclass_are_checked_by_place_and_by_name():
    assert Part(1, count=2, cost=Cost(0.5, 0)).cost.fixed == 0.5
    for args, kwargs, message in [
        ((0,), {}, "size=0: pass a number above 0"),
        ((1,), {"count": -1}, "count=-1: pass a whole number of at least 0"),
        ((1,), {"cost": 3}, "cost=3: pass a Cost or None"),
    ]:
        with pytest.raises(ValueError, match=message):
            Part(*args, **kwargs)


@given(st.floats(allow_nan=False), st.fractions(0, 9), st.booleans(), st.booleans())
def test_bounds_hold_as_intervals_do(value, width, open_low, open_high):
    low, high = Ratio(1), 1 + width
    bounds = Bounds(
        **{"above" if open_low else "low": low, "below" if open_high else "high": high}
    )
    inside = (low < value or (value == low and not open_low)) and (
        value < high or (value == high and not open_high)
    )
    assert bounds.hold(value) == inside


def test_a_single_value_is_checked_by_its_kind():
    assert as_kind("epochs", 2, Positive | None) == 2
    assert as_kind("epochs", None, Positive | None) is None
    with pytest.raises(ValueError, match="epochs=0: pass a number above 0 or None"):
        as_kind("epochs", 0, Positive | None)
    assert as_kind("call", functools.partial, Positive | type) is functools.partial


@checked
def shaped(*parts: float, image: tuple[Count, Count, Count] = (8, 8, 3)):
    return parts, image


def test_a_tuple_has_the_length_in_its_annotation():
    assert shaped(1, image=[4, 5.0, 6]) == ((1,), (4, 5, 6))  # pyright: ignore
    with pytest.raises(ValueError, match="pass a sequence of 3 whole numbers of at"):
        shaped(image=(4, 5))  # pyright: ignore


def test_arguments_after_a_star_are_not_positional():
    assert shaped(1.5, 2.5, 3.5)[0] == (1.5, 2.5, 3.5)
