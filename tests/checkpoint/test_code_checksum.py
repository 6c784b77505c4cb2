"""Checksums of code: equal in every process, and different where anything differs."""

import functools
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import checkpointed_runs
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.sparse import BCOO
from zoo import zoo

import hetjax as hj
from hetjax.checkpoint.code_checksum import checksum
from hetjax.machine.types import MergeOp

TESTS = Path(__file__).parents[1]
RATE = 0.1
_calls, _cache = 0, {}


class Rate:
    """A learning rate with settings of its own."""

    def __init__(self, base):
        self.base = base

    def __call__(self, seconds):
        return self.base / (1 + seconds)

    def slow(self, seconds):
        return self.base


class Net(nnx.Module):
    width = 3

    def __init__(self, num_features, num_classes, rngs):
        self.layer = nnx.Linear(num_features, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)


class Pair(NamedTuple):
    a: object
    b: object


def uses_a_global(seconds):
    return RATE * seconds


def calls_another(seconds):
    return uses_a_global(seconds) + 1


def counts(x):
    global _calls
    _calls += 1
    return x


def caches(x):
    return _cache.setdefault(x, x)


def uses_a_module(cuts):
    return checkpointed_runs.some(cuts, 3)


def with_inner(text):
    """A function whose inner function has this body."""
    found = {}
    source = (
        f"def outer(x):\n    def inner(y):\n        return {text}\n    return inner(x)"
    )
    exec(source, found)
    return found["outer"]


def with_derivative(text):
    """The identity, with a derivative of its own."""
    found = {}
    exec(f"def backward(residuals, g):\n    return ({text},)", found)
    same = jax.custom_vjp(identity)
    same.defvjp(lambda x: (x, None), found["backward"])
    return same


def identity(x):
    return x


def class_with(text):
    found = {"__name__": __name__}
    exec(f"class Own:\n    def __call__(self, x):\n        return {text}", found)
    return found["Own"]


DIFFERENT = {
    "properties of a merge": (
        hj.merge.average(),
        hj.merge.average()._replace(properties=hj.merge.MergeProperty(0)),
    ),
    "operations of a merge": (MergeOp.PUSH, MergeOp.PUSH | MergeOp.FETCH),
    "attributes of a callable object": (Rate(0.1), Rate(0.2)),
    "attributes of a method's object": (Rate(0.1).slow, Rate(0.2).slow),
    "methods of an object": (Rate(0.1).slow, Rate(0.1).__call__),
    "the body of __call__": (class_with("x")(), class_with("-x")()),
    "the code of an inner function": (with_inner("y + y"), with_inner("y - y")),
    "a constant of an inner function": (with_inner("y + 1"), with_inner("y + 2")),
    "an enclosed value": ((lambda r: lambda x: r)(1), (lambda r: lambda x: r)(2)),
    "defaults": (lambda x=1: x, lambda x=2: x),
    "a partial": (functools.partial(max, 1), functools.partial(max, 2)),
    "a named tuple": (Pair(1, 2), Pair(1, 3)),
    "a number and its text": (1, "1"),
    "a namespace": (SimpleNamespace(smooth=0.1), SimpleNamespace(smooth=0.2)),
    "arguments": (Namespace(steps=1), Namespace(steps=2)),
    "an own derivative": (with_derivative("g"), with_derivative("2 * g")),
    "an array": (np.zeros(3), np.array([0, 0, 1.0])),
    "a key": (jax.random.key(0), jax.random.key(1)),
    "a dictionary": ({"a": 1}, {"a": 2}),
    "parameters of a module": tuple(Net(2, 3, nnx.Rngs(seed)) for seed in (0, 1)),
    "a sparse matrix": tuple(BCOO.fromdense(jnp.array([0, x])) for x in (1, 2)),
    "a transformation": (optax.sgd(0.1), optax.sgd(0.2)),
    "a schedule": (
        optax.cosine_decay_schedule(1, 5),
        optax.cosine_decay_schedule(1, 6),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs_has_another_checksum(what):
    a, b = DIFFERENT[what]
    assert checksum(a) != checksum(b)
    assert checksum(a) == checksum(a)


@pytest.mark.parametrize("function", [uses_a_global, calls_another])
def test_a_changed_global_is_noticed(function, monkeypatch):
    before = checksum(function)
    monkeypatch.setitem(globals(), "RATE", 0.2)
    assert checksum(function) != before


def test_a_changed_class_is_noticed(monkeypatch):
    before = checksum(functools.partial(Net, num_features=3))
    monkeypatch.setattr(Net, "width", 4)
    changed = checksum(functools.partial(Net, num_features=3))
    monkeypatch.setattr(Net, "__call__", lambda self, x: -self.layer(x))
    assert len({before, changed, checksum(functools.partial(Net, num_features=3))}) == 3


def test_names_of_attributes_are_no_globals(monkeypatch):
    """In a notebook, `x` may be anything: a loss that says `batch.x` is the same."""

    def loss(batch):
        return batch.RATE + batch.weight

    before = checksum(loss)
    monkeypatch.setitem(globals(), "RATE", 7)
    assert checksum(loss) == before


def test_counters_and_caches_are_no_settings():
    before = checksum([counts, caches])
    counts(1)
    caches(1)
    assert checksum([counts, caches]) == before


def test_a_changed_module_of_ones_own_is_noticed(monkeypatch):
    before = checksum(uses_a_module)
    monkeypatch.setattr(checkpointed_runs, "some", lambda cuts, number: cuts)
    assert checksum(uses_a_module) != before


class Table:
    widths: ClassVar[list[int]] = [1, 2]

    @functools.cached_property
    def half(self):
        return self.widths[0] / 2

    @jax.jit
    def doubled(self, x):
        return 2 * x


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("widths", [1, 3]),
        ("half", functools.cached_property(lambda self: 3)),
        ("doubled", jax.jit(lambda self, x: 3 * x)),
    ],
)
def test_every_attribute_of_a_class_counts(monkeypatch, name, value):
    before = checksum(Table())
    monkeypatch.setattr(Table, name, value)
    assert checksum(Table()) != before


def test_what_encloses_itself_is_described():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    loop = [even, odd]
    loop.append(loop)
    assert checksum(loop) == checksum(loop)
    assert checksum(even) != checksum(odd)


def test_order_of_sets_and_dictionaries_does_not_count():
    assert checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1})
    assert checksum({"x", "y", "z"}) == checksum({"z", "y", "x"})


def everything():
    """Checksums of all that a run may be made of."""
    data = hj.data.digits()
    found = {name: checksum(strategy) for name, strategy in zoo(6).items()}
    models = {"mlp": hj.models.mlp(hidden=4), "own": Net}
    for name, model in models.items():
        found[name] = checksum(hj.classification(model, data))
    found["rate"] = checksum(hj.LearningRate(Rate(0.1), "seconds"))
    found["array"] = checksum(jnp.arange(3))
    return {**found, "functions": checksum([calls_another, with_inner("y + 1")])}


@pytest.mark.full
def test_checksums_are_the_same_in_every_process():
    code = "import test_code_checksum as t; print(t.everything())"
    found = []
    for seed in ("1", "2"):
        path = os.pathsep.join([str(TESTS / "checkpoint"), str(TESTS), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        found.append(run.stdout)
    assert found[0] == found[1] == f"{everything()}\n"
