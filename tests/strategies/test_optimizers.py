"""`optimizer=`: an optax optimizer at every worker, its rate inside or beside it."""

from inspect import signature

import numpy as np
import optax
import pytest
from identity_runs import ONE, TOLERANCE, column, train
from optax import contrib
from tiny_problems import flat, three_workers

import hetjax as hj
from hetjax import local
from hetjax.schedule import LearningRate, Progress, learning_rate_at

SETTINGS = {
    "sequential_sgd": {},
    "elastic_sgd": {"local_steps": 2},
    "local_sgd": {"local_steps": 2, "momentum": 0.0},
    "biased_local_sgd": {"local_steps": "measured:2", "momentum": 0.0},
    "fed_acc": {"local_steps": 2},
    "fed_adp": {"local_steps": 2},
    "sma": {},
    "easgd_sync": {},
    "easgd": {},
    "adaptive_sgd": {"mega_batch": 64},
    "diloco": {"local_steps": 2},
    "fed_opt": {"local_steps": 2, "server_learning_rate": 0.01},
    "async_diloco": {"local_steps": 2},
    "delayed_nesterov": {"local_steps": "measured:2"},
    "mla": {"local_steps": 2},
    "heloco": {"local_steps": 2},
    "streaming_diloco": {"local_steps": 4},
    "decoupled_diloco": {"local_steps": 4},
    "sparse_loco": {"local_steps": 2, "top_k": 4},
}
WITHOUT = {
    "fed_nova": "normalises by what SGD and its momentum do",
    "eamsgd": "has Nesterov's step of its own",
    "hier_sgd": "sums gradients",
    "downpour": "pushes gradients",
    "ad_psgd": "steps from another model than it averages",
    "magma_async_sgd": "steps at the master",
    "hogwild": "steps at the shared model",
    "sync_sgd": "takes one for the central step",
    "async_sgd": "takes one for the server",
    "slide": "is Adam",
    "fed_buff": "has a momentum of the server, too",
    "slow_mo": "divides by the learning rate of SGD",
    "fed_prox": "has a proximal term",
    "fed_async": "has a proximal term",
    "scaffold": "divides by the sum of SGD's learning rates",
    "ringmaster_asgd": "pushes gradients",
    "rennala_sgd": "pushes gradients",
    "malenia_sgd": "pushes gradients",
    "ringleader_asgd": "pushes gradients",
    "dc_asgd": "pushes gradients",
}


INSIDE = optax.sgd(0.1)  # one object, whose steps are compiled once


def made(name, **given):
    return hj.STRATEGIES[name](batch_size=8, **SETTINGS[name], **given)


def test_all_that_step_locally_take_one():
    takes = {
        name
        for name, factory in hj.STRATEGIES.items()
        if {"optimizer", "server_momentum"} & set(signature(factory).parameters)
        == {"optimizer"}
    }
    assert takes == set(SETTINGS) == set(hj.STRATEGIES) - set(WITHOUT)


@pytest.mark.parametrize("name", SETTINGS)
def test_sgd_as_an_optimizer_is_sgd(name):
    plain = train(made(name, learning_rate=0.1), three_workers())
    inside = train(made(name, optimizer=INSIDE), three_workers())
    assert column(inside, "examples") == column(plain, "examples")
    assert inside.merges == plain.merges
    assert not np.allclose(flat(plain.params), flat(plain.params) * 0, **TOLERANCE)
    np.testing.assert_allclose(flat(inside.params), flat(plain.params), **TOLERANCE)


def test_the_rate_is_inside_or_beside():
    inside = train(made("elastic_sgd", optimizer=optax.adam(0.02)), three_workers())
    beside = made("elastic_sgd", optimizer=optax.adam, learning_rate=0.02)
    beside = train(beside, three_workers())
    by_hand = made("elastic_sgd", learning_rate=0.02)
    by_hand = by_hand._replace(local=local.from_optax(optax.adam))
    by_hand = train(by_hand, three_workers())
    for other in (beside, by_hand):
        np.testing.assert_allclose(flat(inside.params), flat(other.params), **TOLERANCE)


def test_a_center_s_rate_is_inside_or_beside():
    """Each is one step of Adam at 0.02 per merge."""
    inside = train(hj.sync_sgd(batch_size=8, optimizer=optax.adam(0.02)), ONE)
    beside = hj.sync_sgd(batch_size=8, optimizer=optax.adam, learning_rate=0.02)
    beside = train(beside, ONE)
    np.testing.assert_allclose(flat(inside.params), flat(beside.params), **TOLERANCE)


def test_a_function_of_the_rate_is_called_once():
    """So that all runs of a grid of rates share their programs."""
    one, other = (
        made("elastic_sgd", optimizer=optax.adam, learning_rate=rate).local
        for rate in (0.1, 0.2)
    )
    assert one is other


def test_a_schedule_inside_counts_the_workers_own_steps():
    """A rate that falls to nothing after three steps leaves the model where it is."""
    falling = optax.sgd(optax.piecewise_constant_schedule(0.1, {3: 0.0}))
    history = train(made("sequential_sgd", optimizer=falling), three_workers())
    losses = dict(zip(column(history, "updates"), column(history, "loss"), strict=True))
    after = [loss for updates, loss in losses.items() if updates >= 3]
    assert len(after) > 3
    assert len(set(after)) == 1
    assert after[0] != losses[0]


ADAM = optax.adam(1e-3)
WRONG = [
    ("elastic_sgd", {}, "learning_rate is missing: pass one, or an optimizer="),
    (
        "elastic_sgd",
        {"optimizer": ADAM, "learning_rate": 0.1},
        "learning_rate=0.1: the optimizer has a learning rate of its own; leave one",
    ),
    (
        "sync_sgd",
        {"optimizer": ADAM, "learning_rate": 0.1},
        "leave one out: pass opti",
    ),
    ("sync_sgd", {"optimizer": optax.adam}, "learning_rate is missing: optimizer=adam"),
    ("elastic_sgd", {"optimizer": optax.adam}, "is a function of it; pass one, or an"),
    (
        "elastic_sgd",
        {"optimizer": "adam"},
        "optimizer='adam': pass a GradientTransformation",
    ),
    (
        "elastic_sgd",
        {"optimizer": abs, "learning_rate": 0.1},
        "optimizer=: <built-in function abs> is not an optax optimizer",
    ),
    (
        "elastic_sgd",
        {"optimizer": contrib.schedule_free, "learning_rate": 0.1},
        "fails for the learning rate 1.0 .*: pass a function of the learning rate",
    ),
    ("local_sgd", {"optimizer": ADAM, "weight_decay": 0.1}, "pass weight_decay=0.1 or"),
    (
        "sequential_sgd",
        {"optimizer": ADAM, "momentum": 0.9},
        "pass momentum=0.9 or an optimizer, not both",
    ),
    (
        "biased_local_sgd",
        {"optimizer": ADAM, "reset_momentum": True},
        "reset_momentum=True concerns the momentum of SGD",
    ),
    (
        "local_sgd",
        {"optimizer": ADAM, "aggregation": "fed_nova"},
        "aggregation='fed_nova' concerns the momentum of SGD",
    ),
    (
        "sma",
        {"optimizer": ADAM, "restart": "on_plateau"},
        "a restart resets the momentum of SGD",
    ),
]


@pytest.mark.parametrize(("name", "given", "message"), WRONG)
def test_what_does_not_go_with_an_optimizer(name, given, message):
    with pytest.raises(ValueError, match=message):
        hj.STRATEGIES[name](batch_size=8, **given)


def test_sma_with_an_optimizer_may_restart_without_a_reset():
    strategy = made("sma", optimizer=ADAM, restart="on_plateau", reset_momentum=False)
    assert train(strategy, three_workers()).merges > 4


def test_a_schedule_of_optax_may_be_over_updates():
    rate = LearningRate(optax.linear_schedule(1.0, 0.0, 80), over="updates")
    here = Progress(examples=500, epochs=0.5, updates=40, seconds=7.0)
    assert learning_rate_at(rate, here) == pytest.approx(0.5)
