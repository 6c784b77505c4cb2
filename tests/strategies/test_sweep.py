"""Strategies of a grid of arguments: names, arguments, refusals."""

from functools import partial

import optax
import pytest
from tiny_runs import machine, train

import hetjax as hj
from hetjax.made_of import are_same
from hetjax.strategies.types import PARTS

BASE = {"batch_size": 8, "learning_rate": 0.1}


def same(one, other):
    """Are these made of the same parts? Their factories differ as objects."""
    parts = (tuple(getattr(s, part) for part in PARTS) for s in (one, other))
    return one.settings == other.settings and are_same(*parts)


def test_every_combination_has_a_name_and_its_arguments():
    base = hj.sma(**BASE, momentum=0.9)
    grid = {"local_steps": [1, 8], "learning_rate": [0.01, 0.1]}
    found = hj.sweep(base, grid)
    assert list(found) == [
        "sma, local_steps=1, learning_rate=0.01",
        "sma, local_steps=1, learning_rate=0.1",
        "sma, local_steps=8, learning_rate=0.01",
        "sma, local_steps=8, learning_rate=0.1",
    ]
    by_hand = hj.sma(batch_size=8, learning_rate=0.01, momentum=0.9, local_steps=8)
    assert same(found["sma, local_steps=8, learning_rate=0.01"], by_hand)
    assert not same(found["sma, local_steps=1, learning_rate=0.01"], by_hand)


@pytest.mark.parametrize("name", hj.STRATEGIES)
def test_every_factory_makes_its_strategy_again(name):
    base = hj.STRATEGIES[name](batch_size=8, learning_rate=optax.constant_schedule(0.1))
    (found,) = hj.sweep(base, {"batch_size": [16]}).values()
    again = found.factory(batch_size=8)
    assert same(again, base)
    assert (found.batch_size, found.settings["batch_size"]) == (16, 16)
    assert again.settings == base.settings


def test_functions_are_passed_on_and_named():
    cosine, linear = optax.cosine_decay_schedule(1, 9), optax.linear_schedule(1, 0, 9)
    base = hj.sync_sgd(batch_size=8, learning_rate=cosine)
    (found,) = hj.sweep(base, {"weight_decay": [0.5]}).values()
    assert found.learning_rate is cosine
    grid = {"learning_rate": {"cosine": cosine, "linear": linear, "low": 0.1}}
    swept = hj.sweep(base, grid)
    assert list(swept) == [
        f"sync_sgd, learning_rate={k}" for k in ("cosine", "linear", "low")
    ]
    assert [s.learning_rate for s in swept.values()] == [cosine, linear, 0.1]
    recorded = [s.settings["learning_rate"] for s in swept.values()]
    assert recorded == ["cosine", "linear", 0.1]
    with pytest.raises(ValueError, match="two values of learning_rate have the name"):
        hj.sweep(base, {"learning_rate": [cosine, optax.cosine_decay_schedule(2, 9)]})


def test_a_preset_is_not_overridden_by_what_another_one_chose():
    base = hj.adaptive_sgd(**BASE, preset="recommended")
    paper, own = hj.sweep(base, {"preset": ["paper", "recommended"]}).values()
    assert same(paper, hj.adaptive_sgd(**BASE, preset="paper"))
    assert paper.settings == hj.adaptive_sgd(**BASE, preset="paper").settings
    assert own.settings == base.settings
    (chosen,) = hj.sweep(base, {"merge_momentum": [None]}).values()
    assert chosen.settings == base.settings  # what the preset chose for None
    assert paper.settings["merge_momentum"] != own.settings["merge_momentum"]


def test_functions_that_return_strategies():
    sampler = hj.sampling.uniform("sequential")

    def own(steps, *, learning_rate=0.5):
        made = hj.elastic_sgd(
            batch_size=8, learning_rate=learning_rate, local_steps=steps
        )
        return made._replace(sampler=sampler, settings={}, name="own")

    found = hj.sweep(own, {"steps": [2]})["own, steps=2"]
    assert found.sampler is sampler
    assert found.settings == {"steps": 2}
    fixed = hj.sweep(partial(hj.sma, **BASE), {"local_steps": [4]})[
        "sma, local_steps=4"
    ]
    assert same(fixed, hj.sma(**BASE, local_steps=4))
    with pytest.raises(ValueError, match="the arguments are steps, learning_rate"):
        hj.sweep(own, {"step": [2]})


@pytest.mark.parametrize(
    ("base", "grid", "message"),
    [
        (hj.sequential_sgd(**BASE), {"rate": [1]}, "'rate', but the arguments are bat"),
        (hj.sma(**BASE), {}, "grid is empty"),
        (hj.sma(**BASE), {"local_steps": []}, r"grid\['local_steps'\] is empty"),
        (hj.sma(**BASE), {"local_steps": 3}, "is 3: pass a list"),
        (hj.sma(**BASE), {"restart": "never"}, "is 'never': pass a list"),
        (hj.sma(**BASE), {"local_steps": [2, 2]}, "two values .* the name '2'"),
        (hj.sma(**BASE), {"local_steps": [0]}, "^local_steps=0: pass a whole number"),
        (hj.sma, {"learning_rate": [0.1]}, "also need batch_size"),
        (lambda a: a, {"a": [1]}, "a=1: base returned 1, not a Strategy"),
        (
            hj.sma(**BASE)._replace(policy=hj.schedule.rounds(batch_size=8)),
            {"local_steps": [1, 2]},
            "'sma, local_steps=1' and 'sma, local_steps=2' are made of the same parts",
        ),
        (
            hj.sma(**BASE)._replace(factory=None, name="mine"),
            {"local_steps": [1]},
            "'mine', which was not made by a factory of hetjax",
        ),
    ],
)
def test_what_cannot_be_swept(base, grid, message):
    with pytest.raises(ValueError, match=message) as found:
        hj.sweep(base, grid)
    assert "\n" not in str(found.value)


def test_replaced_parts_are_kept_and_recorded():
    sampler = hj.sampling.uniform("sequential")
    base = hj.sma(**BASE)._replace(learning_rate=1e-9, sampler=sampler)
    assert base.settings["learning_rate"] == 1e-9
    assert base.settings["sampler"] == "uniform"
    assert "learning_rate=1e-09" in repr(base)
    found = hj.sweep(base, {"local_steps": [1, 4]})
    for strategy in found.values():
        assert strategy.sampler is sampler
        assert strategy.learning_rate == strategy.settings["learning_rate"] == 1e-9
    (swept,) = hj.sweep(base, {"learning_rate": [0.5]}).values()
    assert swept.learning_rate == swept.settings["learning_rate"] == 0.5
    assert swept.sampler is sampler


def test_the_records_of_a_run_are_those_of_what_runs():
    """A replaced learning rate in the history, and both numbers of an own strategy."""
    made = hj.local_sgd(**BASE)._replace(learning_rate=1e-9)
    own = made._replace(settings={}, factory=None, name="own")
    for strategy in (made, own):
        history = train(machine(1.0), strategy, 1.0)
        assert history.settings["learning_rate"] == 1e-9
        assert history.settings["batch_size"] == 8


def test_another_batch_size_needs_another_policy():
    base = hj.local_sgd(**BASE)
    with pytest.raises(ValueError, match="dispatches batches of 8"):
        base._replace(batch_size=16)
    policy = hj.schedule.rounds(batch_size=16)
    other = base._replace(batch_size=16, policy=policy)
    assert other.settings["batch_size"] == 16
    assert other.settings["policy"] == "rounds"


def test_a_batch_size_beside_a_replaced_policy_is_refused():
    policy = hj.schedule.rounds(batch_size=8)
    base = hj.local_sgd(**BASE)._replace(policy=policy)
    with pytest.raises(ValueError, match="dispatched by the policy, which was"):
        hj.sweep(base, {"batch_size": [4, 16]})
