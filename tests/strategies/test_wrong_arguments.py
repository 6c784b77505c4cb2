"""Every numeric argument of every strategy, with values that it cannot mean."""

import inspect
import itertools
import typing

import jax.numpy as jnp
import numpy as np
import pytest

import hetjax
from hetjax.engine.decisions import decisions
from hetjax.machine import SimulatedClock, preset

VALUES = (float("nan"), float("inf"), -1, 0, 1.5, None, (1, 2), [], "x", "1", 10**30)
VALUES += (10**400, {}, b"1", 1j)
REQUIRED = {"batch_size": 8, "learning_rate": 0.1}
MACHINE = preset("v100x4", seed=0)


def numeric(factory):
    """The names of a factory's arguments that may be numbers, or lists of them."""
    hints = typing.get_type_hints(inspect.unwrap(factory))
    del hints["return"]
    return [name for name, hint in hints.items() if _has_number(hint)]


def _has_number(hint):
    return hint in (int, float) or any(map(_has_number, typing.get_args(hint)))


def trains(strategy):
    """Whether the policy and the learning rate are such that rounds can begin."""
    clock = SimulatedClock(MACHINE, seed=0)
    run = decisions(strategy.policy, clock, num_examples=64, num_bytes=4.0)
    dispatched = sum(len(a.dispatch) for _, a in itertools.islice(run, 20))
    return dispatched >= 4 and strategy.batch_size == int(strategy.batch_size)


@pytest.mark.parametrize("name", [*hetjax.STRATEGIES, "slide"])
def test_a_number_is_refused_by_name_or_trains(name):
    """A refusal names the argument, and comes before anything is compiled."""
    factory = getattr(hetjax, name)
    found = numeric(factory)
    assert {"batch_size", "learning_rate"} <= set(found)
    for argument, value in itertools.product(found, VALUES):
        what = f"{name}({argument}={str(value)[:20]})"
        refusal = ""
        try:
            assert trains(factory(**{**REQUIRED, argument: value})), what
        except (ValueError, TypeError) as error:
            refusal = str(error)
        says = "pass " in refusal or "needs" in refusal or "has 2 entries" in refusal
        assert not refusal or (argument in refusal and says), f"{what}: {refusal}"


@pytest.mark.parametrize(
    ("args", "given", "message"),
    [
        (
            (),
            {"batchsize": 8, "learning_rate": 0.1},
            "is no argument batchsize; the arguments",
        ),
        (
            (),
            {"batch_size": 8, "lr": 0.1},
            "is no argument lr; the arguments, by name, are",
        ),
        ((), {"learning_rate": 0.1}, "missing a required argument: 'batch_size'; the"),
        ((8, 0.1), {}, "too many positional arguments; the arguments, by name, are"),
    ],
)
def test_other_arguments_are_named_beside_those_that_there_are(args, given, message):
    with pytest.raises(TypeError, match=f"local_sgd: .*{message}.*batch_size"):
        hetjax.local_sgd(*args, **given)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("local_sgd", {"local_steps": float("inf")}, "local_steps=inf: pass a whole"),
        ("local_sgd", {"local_steps": ()}, r"local_steps=\(\): pass a number, one for"),
        (
            "local_sgd",
            {"local_steps": (2, -1)},
            r"local_steps=\(2, -1\): pass a whole number of",
        ),
        (
            "local_sgd",
            {"weight_decay": (1, 2)},
            r"weight_decay=\(1, 2\): pass a number",
        ),
        ("local_sgd", {"weight_decay": -0.1}, "weight_decay=-0.1: pass a number of at"),
        ("hier_sgd", {"local_steps": 4}, "local_steps=4: pass a sequence of whole num"),
        (
            "hier_sgd",
            {"local_steps": (4, float("inf"))},
            "pass a sequence of whole num",
        ),
        ("hier_sgd", {"levels": (0,)}, r"levels=\(0,\): pass a sequence of whole num"),
        ("downpour", {"push_every": float("inf")}, "push_every=inf: pass a whole num"),
        ("easgd", {"local_steps": 2.5}, "local_steps=2.5: pass a whole number"),
        ("easgd", {"beta": None}, "beta=None: pass a number above 0"),
        ("easgd_sync", {"beta": None}, "beta=None: pass a number above 0"),
        ("ad_psgd", {"partner_seed": 1.5}, "partner_seed=1.5: pass a whole number fr"),
        ("ad_psgd", {"partner_seed": -1}, "partner_seed=-1: pass a whole number from"),
        (
            "async_sgd",
            {"max_staleness": float("nan")},
            "max_staleness=nan: pass a whole number of at least 0",
        ),
        (
            "async_sgd",
            {"max_staleness": 2**31},
            "pass a whole number of at least 0 or None, below",
        ),
        ("sma", {"patience": 0}, "patience=0: pass a whole number of at"),
        ("sma", {"blocking": "no"}, "blocking='no': pass True or False"),
        ("adaptive_sgd", {"preset": ["paper"]}, r"preset=\['paper'\]: choose one of"),
        (
            "sync_sgd",
            {"learning_rate": None},
            "learning_rate is missing: pass one, or an",
        ),
        ("sync_sgd", {"learning_rate": "0.1"}, "learning_rate='0.1': pass a number ab"),
    ],
)
def test_refusals(name, wrong, message):
    with pytest.raises(ValueError, match=message):
        hetjax.STRATEGIES[name](**{**REQUIRED, **wrong})


def test_numbers_of_other_libraries_are_numbers():
    """They train, and are recorded, as the Python numbers that they are."""
    given = {
        "batch_size": np.int64(8),
        "local_steps": 2.0,
        "momentum": jnp.float32(0.5),
    }
    strategy = hetjax.local_sgd(**given, learning_rate=np.float32(0.25))
    same = hetjax.local_sgd(
        batch_size=8, local_steps=2, momentum=0.5, learning_rate=0.25
    )
    assert strategy.settings == same.settings
    assert strategy.local is same.local
    large = hetjax.local_sgd(**REQUIRED, weight_decay=10**30).settings["weight_decay"]
    assert (large, type(large)) == (1e30, float)
    sizes = hetjax.hier_sgd(**REQUIRED, levels=np.array([2]), local_steps=[1, 2])
    assert trains(sizes)
