"""Whole runs of every strategy against the same algorithm in NumPy float64."""

from functools import cache

import float64_oracle as oracle
import hetjax
import numpy as np
import optax
import pytest
from tiny_problems import MACHINES, PROBLEMS, flat

SECONDS, POINTS, SEED = 0.06, 12, 3

# float32 against float64: each of at most 100 steps and merges rounds numbers of the
# order of 1 a few times, by 6e-8; these contract errors more often than not. A wrong
# term is of the order of rate * gradient, 1e-2 and more.
ATOL = 1e-5


def falling(examples):
    return 0.3 / (1 + examples / 200)


# name: (factory, oracle, settings of both, machine)
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
        {"b_max": 8, "rate": 0.2, "b_min": 2, "beta": 0.5, "mega_batch": 80},
        "v100x4",
    ),
    "adaptive, clipped, always perturbed": (
        "adaptive_sgd",
        {
            "b_max": 8,
            "rate": 0.2,
            "b_min": 2,
            "beta": 3.0,
            "mega_batch": 70,
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
            "scaling": False,
        },
        "v100x4",
    ),
}


@cache
def problem(name):
    return PROBLEMS[name]()


def constant(value):
    return value if callable(value) else lambda examples: value


def run_both(case, problem_name):
    """(history, world of the oracle, what the oracle returned)."""
    name, settings, machine = CASES[case]
    given, expected = dict(settings), dict(settings)
    if name == "sync_sgd" and "momentum" in given:
        given["optimizer"] = optax.sgd(1.0, momentum=given.pop("momentum"))
    if name == "elastic_sgd":
        expected["rate"] = constant(expected["rate"])
    task = problem(problem_name)
    world = oracle.World(task, MACHINES[machine](), seed=SEED, seconds=SECONDS)
    returned = getattr(oracle, name)(world, **expected)
    history = hetjax.train(
        task.task,
        task.data,
        MACHINES[machine](),
        hetjax.STRATEGIES[name](**given),
        seconds=SECONDS,
        seed=SEED,
        points=POINTS,
        progress=False,
    )
    return history, world, returned


@pytest.mark.parametrize("problem_name", PROBLEMS)
@pytest.mark.parametrize("case", CASES)
def test_oracle(case, problem_name):
    history, world, counters = run_both(case, problem_name)
    assert history.stopped == ""
    assert len(world.models) > 4  # several merges, none under way at the end
    assert world.models[-1][0] <= SECONDS
    assert history.merges == len(world.models) - 1
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
    np.testing.assert_allclose(losses, [loss for *_, loss in points], atol=10 * ATOL)
    np.testing.assert_allclose(flat(history.params), world.models[-1][1], atol=ATOL)
    moved = np.abs(world.models[-1][1] - world.start).max()
    assert moved > 1000 * ATOL
    if counters:
        last = history.points[-1]
        assert (last["condition_met"], last["weights_changed"]) == counters


def test_the_cases_reach_all_branches():
    """Perturbed and not, equal updates and not, sizes that move and that do not."""
    counters, sizes = [], []
    for name in (case for case in CASES if case.startswith("adaptive")):
        for problem_name in PROBLEMS:
            _, settings, machine = CASES[name]
            world = oracle.World(
                problem(problem_name), MACHINES[machine](), seed=SEED, seconds=SECONDS
            )
            counters.append(oracle.adaptive_sgd(world, **settings))
            counters[-1] += (len(world.models) - 1,)
            sizes += [len(entries) for entries in world.sizes]
    assert any(0 == met for met, _, _ in counters)
    assert any(0 < changed < met for met, changed, _ in counters)
    assert {min(sizes), max(sizes)} >= {1} and max(sizes) > 3
