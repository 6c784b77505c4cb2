"""Whole runs of every strategy against the same algorithm in NumPy float64."""

from functools import cache

import float64_oracle as oracle
import numpy as np
import optax
import pytest
from tiny_problems import MACHINES, PROBLEMS, flat

import hetjax

SECONDS, POINTS, SEED = 0.07, 8, 3  # points: a power of two, so k / 8 is exact

# float32 against float64: each of at most 100 steps and merges rounds numbers of the
# order of 1 a few times, by 6e-8; these contract errors more often than not. A wrong
# term is of the order of rate * gradient, 1e-2 and more.
ATOL = 1e-5


RTOL = 2e-5  # of losses between 0.05 and 10


def falling(examples):
    return 0.3 / (1 + examples / 200)


# name: (factory and its oracle, settings of both, machine)
CASES = {
    "sequential": ("sequential_sgd", {"batch_size": 8, "rate": 0.1}, "three"),
    "sequential with momentum and decay": (
        "sequential_sgd",
        {"batch_size": 8, "rate": 0.05, "momentum": 0.9, "weight_decay": 0.01},
        "v100x4",
    ),
    "sync": ("sync_sgd", {"batch_size": 6, "rate": 0.2}, "three"),
    "sync with momentum": (
        "sync_sgd",
        {"batch_size": 8, "rate": 0.05, "momentum": 0.8},
        "v100x4",
    ),
    "elastic, a falling rate": (
        "elastic_sgd",
        {"batch_size": 8, "rate": falling, "steps": 3},
        "v100x4",
    ),
    "K-AVG": (
        "elastic_sgd",
        {"batch_size": 5, "rate": 0.2, "steps": 2, "momentum": 0.0},
        "three",
    ),
    "sma": ("sma", {"batch_size": 8, "rate": 0.1}, "v100x4"),
    "sma with everything": (
        "sma",
        {
            "batch_size": 7,
            "rate": 0.05,
            "momentum": 0.5,
            "alpha": 0.2,
            "tau": 2,
            "local_momentum": 0.9,
            "weight_decay": 0.01,
            "overlap": False,
        },
        "three",
    ),
    "adaptive": (
        "adaptive_sgd",
        {"b_max": 8, "rate": 0.2, "b_min": 2, "beta": 2.0, "mega_batch": 48},
        "v100x4",
    ),
    "adaptive, clipped, always perturbed": (
        "adaptive_sgd",
        {
            "b_max": 8,
            "rate": 0.2,
            "b_min": 2,
            "beta": 3.0,
            "mega_batch": 40,
            "delta": 0.2,
            "pert_thr": 100.0,
            "momentum": 0.5,
            "bound": "clip",
            "scale_every": 2,
        },
        "three",
    ),
    "adaptive without scaling, more workers than batches": (
        "adaptive_sgd",
        {
            "b_max": 8,
            "rate": 0.2,
            "b_min": 1,
            "beta": 0.5,
            "mega_batch": 20,
            "scaling": "none",
        },
        "v100x4",
    ),
}


@cache
def problem(name):
    return PROBLEMS[name]()


def replay(case, problem_name, seconds):
    """The oracle's run: its world, and the branches it took if it counts them."""
    name, settings, machine = CASES[case]
    world = oracle.World(
        problem(problem_name), MACHINES[machine](), seed=SEED, seconds=seconds
    )
    return world, getattr(oracle, name)(world, **settings)


def last_merge(world):
    """When the last merge was done that was done in time."""
    return max(time for time, _ in world.models if time <= world.end)


def train(case, problem_name, seconds):
    name, settings, machine = CASES[case]
    if name == "sync_sgd" and "momentum" in settings:
        rest = {k: v for k, v in settings.items() if k != "momentum"}
        settings = {**rest, "optimizer": optax.sgd(1.0, momentum=settings["momentum"])}
    return hetjax.train(
        problem(problem_name).task,
        problem(problem_name).data,
        MACHINES[machine](),
        hetjax.STRATEGIES[name](**settings),
        seconds=seconds,
        seed=SEED,
        points=POINTS,
        progress=False,
    )


@pytest.mark.parametrize("problem_name", PROBLEMS)
@pytest.mark.parametrize("case", CASES)
def test_oracle(case, problem_name):
    # until a merge is just done, so that none is under way at the end
    seconds = last_merge(replay(case, problem_name, SECONDS)[0])
    world, taken = replay(case, problem_name, seconds)
    history = train(case, problem_name, seconds)
    assert history.stopped == ""
    assert history.merges == len(world.models) - 1 >= 4
    # what was done, exactly
    assert [w.updates for w in history.workers] == [
        world.updates(k) for k in world.workers
    ]
    assert [w.batch_size_over_time for w in history.workers] == world.sizes
    points = [world.point(p["seconds"]) for p in history.points]
    done = [(p["updates"], p["examples"]) for p in history.points]
    assert done == [(updates, examples) for updates, examples, _ in points]
    # what it led to
    losses = [p["loss"] for p in history.points]
    np.testing.assert_allclose(losses, [loss for *_, loss in points], rtol=RTOL)
    final = world.models[-1][1]
    np.testing.assert_allclose(flat(history.params), final, atol=ATOL)
    assert np.abs(final - world.start).max() > 1000 * ATOL  # it went somewhere
    for name in ("condition_met", "weights_changed") if taken is not None else ():
        assert history.points[-1][name] == taken[name]


def test_the_cases_reach_all_branches():
    """Perturbed and not, equal updates and not, sizes that move and that do not."""
    branches, changes = [], []
    for case in CASES:
        if case.startswith("adaptive"):
            for problem_name in PROBLEMS:
                world, taken = replay(case, problem_name, SECONDS)
                branches.append(taken)
                changes += [len(sizes) - 1 for sizes in world.sizes]
    assert any(t["condition_met"] == 0 for t in branches)
    assert any(0 == t["weights_changed"] < t["condition_met"] for t in branches)
    assert any(t["weights_changed"] > 0 for t in branches)
    assert any(t["equal_updates_of_unlike_batches"] > 0 for t in branches)
    assert 0 in changes
    assert max(changes) > 3
