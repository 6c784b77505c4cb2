"""What a function is made of: settings in its closure, defaults and objects."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hetjax.made_of import are_same, made_of


class Scaled:
    """A callable object of a user, which may refer to itself."""

    def __init__(self, factor):
        self.factor, self.own = factor, self

    def __call__(self, x):
        return self.times(x)

    def times(self, x):
        return self.factor * x


def enclosing(value):
    return lambda x: (value, x)


def with_default(value):
    def made(x, *, y=value):
        return x, y

    return made


def rates(rate):
    labels = {"w": "a", "b": "b"}
    return optax.multi_transform({"a": optax.sgd(rate), "b": optax.sgd(1.0)}, labels)


MAKERS = {
    "number": enclosing,
    "keyword default": with_default,
    "list": lambda value: enclosing([1, value]),
    "dict": lambda value: enclosing({"a": {"b": value}}),
    "set": lambda value: enclosing({0, value}),
    "array": lambda value: enclosing(np.array([0, value])),
    "array of JAX": lambda value: enclosing(jnp.array([0, value])),
    "callable object": Scaled,
    "enclosed object": lambda value: enclosing(Scaled(value)),
    "bound method": lambda value: Scaled(value).times,
    "partial": lambda value: partial(max, value),
    "optimizer": rates,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_functions_are_told_apart_by_their_settings(make):
    assert made_of(make(1)) == made_of(make(1))
    assert made_of(make(1)) != made_of(make(2))
    assert not are_same(make(1), make(2))


def test_large_arrays_are_described_by_their_type():
    found = made_of(enclosing(np.zeros((1000, 1000))))
    assert found["value"] == "float64[1000, 1000]"
