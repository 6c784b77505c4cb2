"""Grids: runs that are trained as one program equal runs trained alone."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from jax import tree

import hetjax as hj
from hetjax.machine.faults import ScriptedFault
from hetjax.runtimes.compiled import player_choice

DATA = hj.data.digits()
TASK = hj.classification(hj.models.mlp(hidden=8), DATA)
RATES = (0.05, 0.2)
SECONDS, EVALS = 0.08, 8


def machine_of(trouble):
    machine = hj.machine.preset("v100x3+k80")
    if trouble == "slow link":  # merges end after the next evaluations
        links = {"": replace(machine.links[""], latency=0.015)}
        return replace(machine, links=links)
    if trouble == "faults":
        first, second = (worker.name for worker in machine.workers[:2])
        faults = (
            ScriptedFault(0.02, "kill", first),
            ScriptedFault(0.04, "join", first),
            ScriptedFault(0.05, "kill", second),
        )
        return replace(machine, faults=faults)
    return machine


def strategy_of(name, rate):
    own = {"levels": (2,)} if name == "hier_sgd" else {}
    return hj.STRATEGIES[name](batch_size=8, learning_rate=rate, **own)


def compared(name, trouble, rates, **settings):
    strategies = {f"{rate}": strategy_of(name, rate) for rate in rates}
    return hj.compare(
        TASK,
        DATA,
        machine_of(trouble),
        strategies,
        seconds=SECONDS,
        num_evals=EVALS,
        progress=False,
        **settings,
    ).histories


@cache
def alone(name, trouble, rate, seed, schedule_seed):
    return hj.train(
        TASK,
        DATA,
        machine_of(trouble),
        strategy_of(name, rate),
        seconds=SECONDS,
        num_evals=EVALS,
        seed=seed,
        schedule_seed=schedule_seed,
        progress=False,
        compiled=False,
    )


def assert_alike(history, expected):
    assert history.stopped == expected.stopped
    assert history.merges == expected.merges
    assert history.settings == expected.settings
    assert [w.updates for w in history.workers] == [w.updates for w in expected.workers]
    assert len(history.evals) == len(expected.evals)
    for found, one in zip(history.evals, expected.evals, strict=True):
        assert list(found) == list(one)
        for key, value in one.items():
            np.testing.assert_allclose(found[key], value, atol=2e-6, rtol=2e-6)
    pairs = zip(tree.leaves(history.params), tree.leaves(expected.params), strict=True)
    for ours, others in pairs:
        np.testing.assert_allclose(ours, others, atol=2e-6, rtol=0)


TABLE = [
    (name, trouble)
    for name in ("async_sgd", "sma", "adaptive_sgd", "ad_psgd", "hier_sgd", "easgd")
    for trouble in ("", "slow link", "faults")
]
CORE = [("async_sgd", "slow link"), ("sma", "")]


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        pytest.param(*row, marks=() if row in CORE else pytest.mark.full)
        for row in TABLE
    ],
)
def test_rates_together_are_rates_alone(name, trouble):
    histories = compared(name, trouble, RATES)
    assert {h.played for h in histories} == {"compiled, one of 2 runs at once"}
    for history, rate in zip(histories, RATES, strict=True):
        assert_alike(history, alone(name, trouble, rate, 0, None))


@pytest.mark.full
@pytest.mark.parametrize("name", ["async_sgd", "sma"])
def test_seeds_of_one_schedule(name):
    histories = compared(name, "slow link", RATES, seeds=[3, 0], schedule_seed=7)
    assert {h.played for h in histories} == {"compiled, one of 4 runs at once"}
    rates = [rate for rate in RATES for _ in range(2)]
    assert [h.seed for h in histories] == [3, 0, 3, 0]
    for history, rate in zip(histories, rates, strict=True):
        assert_alike(history, alone(name, "slow link", rate, history.seed, 7))


@pytest.mark.full
def test_a_rate_that_diverges_ends_as_it_does_alone():
    rates = (1e30, 0.1)
    worst, other = compared("async_sgd", "", rates)
    assert_alike(other, alone("async_sgd", "", 0.1, 0, None))
    expected = alone("async_sgd", "", 1e30, 0, None)
    assert worst.stopped.partition(":")[2] == expected.stopped.partition(":")[2]
    assert worst.duration == expected.duration


@pytest.mark.full
def test_what_decides_by_its_numbers_is_run_alone():
    """Losses of rounds choose examples, and metrics are weights."""
    for name in ("biased_local_sgd", "fed_acc"):
        histories = compared(name, "", RATES)
        assert {h.played for h in histories} == {"compiled"}


@pytest.mark.parametrize("seed", [-1, 1.5, 2**32])
def test_a_seed_that_a_schedule_cannot_have(seed):
    with pytest.raises(ValueError, match=f"^schedule_seed={seed}: pass a whole number"):
        compared("async_sgd", "slow link", RATES, schedule_seed=seed)


@pytest.mark.full
def test_the_best_models_of_checkpointed_runs(tmp_path):
    histories = compared("async_sgd", "slow link", RATES, out=tmp_path)
    again = compared("async_sgd", "slow link", RATES, out=tmp_path)
    for history, resumed, rate in zip(histories, again, RATES, strict=True):
        one = alone("async_sgd", "slow link", rate, 0, None)
        assert_alike(history, one)
        assert_alike(resumed, one)
        best = max(history.evals, key=lambda e: e["accuracy"])
        metrics = TASK.metrics(history.best_params, history.best_model_state, _test())
        accuracy = float(np.mean(metrics["accuracy"]))
        assert accuracy == pytest.approx(best["accuracy"], abs=1e-6)


def _test():
    rows = np.arange(len(DATA.test))
    return hj.make_batch(DATA.test, rows, hj.make_buckets(DATA.test, len(rows)))


def test_a_grid_that_is_faster_on_threads_is_played_one_by_one(monkeypatch):
    """Which only the first rounds show: they have several steps of a large model."""
    monkeypatch.setattr(player_choice, "SMALL_MODEL", 0)
    for history, rate in zip(compared("local_sgd", "", RATES), RATES, strict=True):
        assert history.played.startswith("reference player")
        assert_alike(history, alone("local_sgd", "", rate, 0, None))
