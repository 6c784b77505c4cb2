"""Values survive JSON: exactly, whatever they are made of; or an error says where."""

import dataclasses
import enum
import functools
import json
import math
from array import array
from collections import Counter, deque
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hetjax.checkpoint.values import Encoder, decode
from hetjax.machine import PUSH_FETCH, Arrival, LocalRound, MergeOp, Roster


class Color(enum.Enum):
    RED = "red"
    MIXED = (1, 2)


@dataclasses.dataclass(frozen=True)
class Made:
    """Made by rules that need not hold for what is taken up again."""

    given: int
    derived: int = dataclasses.field(init=False)

    def __post_init__(self):
        if self.given != 3:
            raise ValueError("it is made once")
        object.__setattr__(self, "derived", 2 * self.given)

    @functools.cached_property
    def later(self):
        return self.derived + 1


class Sum(NamedTuple("Sum", [("a", int), ("b", int)])):
    """A named tuple that is made from something else."""

    def __new__(cls, total):
        return tuple.__new__(cls, (total - 1, 1))


@dataclasses.dataclass
class Counted:
    n: int
    inner: Any = ()


class Pair(NamedTuple):
    left: Any
    right: Any


def again(value):
    encoder = Encoder()
    text = json.dumps(encoder.encode(value, "it"), allow_nan=False)
    return decode(json.loads(text), [np.array(x) for x in encoder.arrays])


def same(a, b):
    """Equal in type and in value; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, np.generic):
        return a.tobytes() == b.tobytes()
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Counted):
        return same((a.n, a.inner), (b.n, b.inner))
    if isinstance(a, set | frozenset):
        return a == b
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return a == b and repr(a) == repr(b)  # 0.0 is not -0.0


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
numbers = arrays.arrays(
    arrays.boolean_dtypes() | arrays.integer_dtypes() | arrays.floating_dtypes(),
    arrays.array_shapes(min_dims=0, min_side=0),
)
values = st.recursive(
    plain | numbers | st.frozensets(st.integers()) | st.sets(st.text()),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.dictionaries(keys, inner)
        | st.tuples(inner, inner).map(lambda p: Pair(*p))
        | st.tuples(st.integers(), inner).map(lambda p: Counted(*p))
    ),
    max_leaves=20,
)


@settings(max_examples=60)
@given(values)
def test_values_come_back_with_types_and_bits(value):
    assert same(again(value), value)


@pytest.mark.parametrize(
    "value",
    [
        MergeOp.PUSH | MergeOp.CLEAR,
        PUSH_FETCH,
        MergeOp(0),
        Color.RED,
        Color.MIXED,
        Sum(5),
        Made(3),
        Roster(frozenset({3, 1}), frozenset(), frozenset({2})),
        Arrival(1, LocalRound(2, 8.5), 0.1, math.inf),
        Counter("hello"),
        deque([1, 2], maxlen=7),
        np.float32(0.1),
        2**200,
    ],
    ids=repr,
)
def test_kinds_of_values(value):
    assert again(value) == value
    assert type(again(value)) is type(value)


def test_a_deque_keeps_its_length():
    assert again(deque([1], maxlen=3)).maxlen == 3


def test_a_generator_continues():
    generator = np.random.default_rng((1, 2))
    generator.standard_normal(3)
    copy = again(generator)
    assert copy.standard_normal(5).tolist() == generator.standard_normal(5).tolist()


def test_numbers_of_an_array():
    assert again(array("d", [0.1, 2])) == array("d", [0.1, 2])
    assert again(array("d")) == array("d")


def test_a_cached_property_is_computed_again():
    made = Made(3)
    assert made.later == 7
    assert again(made).later == 7


def test_one_generator_in_two_places_is_an_error():
    generator = np.random.default_rng(0)
    encoder = Encoder()
    encoder.encode({"a": generator}, "run")
    encoder.encode({"b": np.random.default_rng(0)}, "run")
    with pytest.raises(ValueError, match="run.b.right and run.* share one"):
        encoder.encode(Pair(1, generator), "run.b")


def with_more():
    counted = Counted(1)
    counted.more = 2
    return counted


def nested():
    class Local(NamedTuple):
        x: int

    return Local(1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": (object(),)}, r"it\['a'\]\[0\] is a object, which cannot be saved"),
        (nested(), "define it at the top level of a module"),
        (np.array(["text"]), "an array of <U4"),
        (np.array([object()]), "an array of object"),
        (Pair(1, lambda: 0), "it.right is a function"),
        (Pair, "it is a type"),
        (np.ma.masked_array([1, 2], [True, False]), "it is a MaskedArray"),
        (np.array([(1, 2.0)], [("a", int), ("b", float)]), "an array of"),
        (np.array(["2026-11-23"], "datetime64[D]"), r"an array of datetime64\[D\]"),
        (with_more(), "it has the attribute more, which is not a field"),
    ],
)
def test_what_cannot_be_saved_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        Encoder().encode(value, "it")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"nothing.here:Class": []}, "cannot be found"),
        ({"os:system": ["true"]}, "not a named tuple"),
        ({"pathlib:Path": ["x"]}, "not a named tuple"),
        ({"hetjax.machine.roster:Roster": [1]}, "has the fields active"),
        ({"tuple": [], "dict": []}, "not with one key"),
    ],
)
def test_what_was_never_encoded_is_an_error(data, message):
    with pytest.raises(ValueError, match=message):
        decode(data, [])
