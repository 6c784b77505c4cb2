"""Whole runs of every strategy against the same algorithm in NumPy float64."""

import copy
from functools import cache

import federated_and_async_cases
import new_cases
import numpy as np
import pytest
import round_cases
from oracle_case import ORACLES
from oracle_world import World
from quick import quick_if
from tiny_problems import MACHINES, PROBLEMS, flat

import hetjax
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session

SECONDS, POINTS, SEED = 0.07, 8, 3  # num_evals: a power of two, so k / 8 is exact

# float32 against float64: each of at most 100 steps and merges rounds numbers of the
# order of 1 a few times, by 6e-8; these contract errors more often than not. A wrong
# term is of the order of learning rate * gradient, 1e-2 and more.
ATOL = 1e-5

RTOL = 2e-5  # of losses between 0.05 and 10
CASES = round_cases.CASES | federated_and_async_cases.CASES
RUNS = [(name, p) for name, case in CASES.items() for p in case.problems]


@cache
def problem(name):
    return PROBLEMS[name]()


@cache
def session(name):
    """One session for all runs on a problem: they share their compiled programs."""
    machine = MACHINES["three"]()
    task, data = problem(name).task, problem(name).data
    return Session(task, data, machine, RunConfig(seconds=SECONDS, num_evals=POINTS))


def strategy_of(case):
    strategy = hetjax.STRATEGIES[case.strategy](**case.settings)
    return strategy._replace(sampler=case.shards) if case.shards else strategy


@cache  # nobody changes what it returns
def replay(name, problem_name, seconds):
    """Run the oracle; return its world, and its count of branches if it has one."""
    case = CASES[name]
    strategy = strategy_of(case)
    world = World(
        problem(problem_name),
        MACHINES[case.machine](),
        seed=SEED,
        seconds=seconds,
        sampler=strategy.sampler,
        held_out=bool(strategy.merges[0].required_metrics),
    )
    return world, ORACLES[case.strategy](world, **case.settings)


def last_merge(world):
    """The time of the last merge that finished in time."""
    return max(time for time, _ in world.models if time <= world.end)


def train(name, problem_name, seconds):
    case, one = CASES[name], copy.copy(session(problem_name))
    one.machine = MACHINES[case.machine]()
    one.config = RunConfig(seconds=seconds, num_evals=POINTS)
    return one.run(name, strategy_of(case), SEED, ProgressBar(seconds, shown=False))


@pytest.mark.parametrize(
    ("name", "problem_name"),
    # the plain algorithms on both problems, their variants on quadratics
    quick_if(lambda run: " " not in run[0] or run[1] != "perceptron", RUNS),
)
def test_oracle(name, problem_name):
    # until just after a merge
    seconds = last_merge(replay(name, problem_name, SECONDS)[0])
    world, taken = replay(name, problem_name, seconds)
    history = train(name, problem_name, seconds)
    assert history.stopped == ""
    assert history.merges == world.merges >= 4
    # rounds, exactly
    assert [w.updates for w in history.workers] == [
        world.updates(k) for k in world.workers
    ]
    if CASES[name].strategy != "magma_async_sgd":  # a slave's round may begin too late
        assert [w.batch_size_over_time for w in history.workers] == world.sizes
    num_evals = [world.point(p["seconds"]) for p in history.evals]
    done = [(p["updates"], p["examples"]) for p in history.evals]
    assert done == [(updates, examples) for updates, examples, _ in num_evals]
    # results
    losses = [p["loss"] for p in history.evals]
    np.testing.assert_allclose(losses, [loss for *_, loss in num_evals], rtol=RTOL)
    final = world.visible(world.end)
    np.testing.assert_allclose(flat(history.params), final, atol=ATOL)
    assert np.abs(final - world.start).max() > 1000 * ATOL  # the model moved
    for counter in ("condition_met", "weights_changed"):
        if counter in history.evals[-1]:
            assert history.evals[-1][counter] == taken[counter]


def test_every_strategy_has_an_oracle_and_a_case():
    newer = {case.strategy for case in new_cases.CASES.values()}
    assert ORACLES.keys() | newer >= hetjax.STRATEGIES.keys()
    older = {case.strategy for case in CASES.values()}
    assert older | newer == hetjax.STRATEGIES.keys()


@pytest.mark.parametrize(
    "name", [n for n, case in CASES.items() if case.reaches is not None]
)
def test_a_case_reaches_its_branch(name):
    """Restarts, workers that are held back, merges at the top of a tree."""
    for problem_name in CASES[name].problems:
        _, taken = replay(name, problem_name, SECONDS)
        assert taken[CASES[name].reaches] >= 2


def test_adaptive_cases_reach_all_branches():
    """Perturbed or not, equal updates or not, sizes that change or do not."""
    branches, changes = [], []
    for name, case in CASES.items():
        if case.strategy == "adaptive_sgd":
            for problem_name in case.problems:
                world, taken = replay(name, problem_name, SECONDS)
                branches.append(taken)
                changes += [len(sizes) - 1 for sizes in world.sizes]
    assert any(t["condition_met"] == 0 for t in branches)
    assert any(0 == t["weights_changed"] < t["condition_met"] for t in branches)
    assert any(t["weights_changed"] > 0 for t in branches)
    assert any(t["equal_updates_of_unlike_batches"] > 0 for t in branches)
    assert 0 in changes
    assert max(changes) > 3
