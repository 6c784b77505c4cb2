"""Strategies that are the same in a limit: whole runs against each other.

ALGORITHMS K.5, as far as it concerns the strategies that are here. The two sides do the
same arithmetic in another order, so they agree to float32 rounding, not bit for bit.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from float64_oracle import World, bulk_synchronous
from tiny_problems import PROBLEMS, flat, three_workers
from zoo import size_of

import hetjax
from hetjax import local, merge
from hetjax.machine import preset
from hetjax.sampling import Sampler

SECONDS, POINTS, SEED = 0.04, 8, 1

# Rounding of tens of steps on numbers of the order of 1 (see test_oracles).
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


@cache
def problem():
    return PROBLEMS["perceptron"]()


def train(strategy, machine, points=POINTS):
    return hetjax.train(
        problem().task,
        problem().data,
        machine,
        strategy,
        seconds=SECONDS,
        seed=SEED,
        points=points,
        progress=False,
    )


def column(history, name):
    return [point[name] for point in history.points]


COUNTS = ("seconds", "updates", "examples")


def assert_same_run(one, other, *, counts=COUNTS):
    """Equal points and final parameters, after at least a few merges."""
    assert one.merges == other.merges >= 4
    for name in counts:
        assert column(one, name) == column(other, name)
    assert len({p["loss"] for p in one.points}) > 4  # it is a trajectory
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(
            column(one, name), column(other, name), **TOLERANCE, err_msg=name
        )
    np.testing.assert_allclose(flat(one.params), flat(other.params), **TOLERANCE)


# Elastic, synchronous and sequential SGD


@pytest.mark.parametrize("machine", [preset("v100x4"), three_workers()])
def test_elastic_of_one_step_without_momentum_is_synchronous_sgd(machine):
    elastic = hetjax.elastic_sgd(batch_size=8, rate=0.2, steps=1, momentum=0.0)
    sync = hetjax.sync_sgd(batch_size=8, rate=0.2)
    assert_same_run(train(elastic, machine), train(sync, machine))


def test_sequential_is_elastic_of_one_step_on_one_worker():
    one = preset("v100x1")
    sequential = hetjax.sequential_sgd(batch_size=8, rate=0.2)
    elastic = hetjax.elastic_sgd(batch_size=8, rate=0.2, steps=1, momentum=0.0)
    assert_same_run(train(sequential, one), train(elastic, one))


def test_sequential_takes_no_notice_of_slower_workers():
    strategy = hetjax.sequential_sgd(batch_size=8, rate=0.2, momentum=0.9)
    few, many = (train(strategy, preset(name)) for name in ("v100x1", "v100x4"))
    assert few.points == many.points
    assert [w.updates for w in many.workers] == [few.workers[0].updates, 0, 0, 0]


def test_local_momentum_of_one_worker_is_the_optimizer_s_of_synchronous_sgd():
    one = preset("v100x1")
    sequential = hetjax.sequential_sgd(batch_size=8, rate=0.05, momentum=0.9)
    heavy = optax.sgd(1.0, momentum=0.9)
    sync = hetjax.sync_sgd(batch_size=8, rate=0.05, optimizer=heavy)
    assert_same_run(train(sequential, one), train(sync, one))


# Synchronous model averaging


class Watched(NamedTuple):
    """The state of a merge, and the first member's parameters after it."""

    state: Any
    params: Any


def watching(inner):
    """The merge whose model is the first replica instead of its own centre."""

    def init(params, model_state):
        copy = jax.tree.map(lambda x: x + 0, params)
        return Watched(inner.init(params, model_state), copy)

    def apply(state, replicas, facts, op):
        new, replicas = inner.apply(state.state, replicas, facts, op)
        return Watched(new, replicas[0].params), replicas

    def model(state):
        return state.params, inner.model(state.state)[1]

    return merge.Merge(init, apply, model, inner.needs)


def sma_without_pull(wrap):
    strategy = hetjax.sma(batch_size=8, rate=0.2, alpha=1.0, overlap=False)
    return strategy._replace(merge=wrap(merge.sma(momentum=0.9, alpha=0.0)))


def test_sma_of_one_learner_without_pull_is_sgd():
    one = preset("v100x1")
    sequential = hetjax.sequential_sgd(batch_size=8, rate=0.2)
    assert_same_run(train(sma_without_pull(watching), one), train(sequential, one))


def test_and_its_average_stays_frozen():
    history = train(sma_without_pull(lambda merge: merge), preset("v100x1"))
    assert history.merges > 4
    assert len({p["loss"] for p in history.points}) == 1
    initial = problem().initial(SEED)
    np.testing.assert_array_equal(flat(history.params), initial)


@pytest.mark.parametrize("alpha", [0.1, 0.25])
def test_sma_without_momentum_is_synchronous_elastic_averaging(alpha):
    """ALGORITHMS G.1, in Jacobi form with beta = k alpha; x, x~ as written there."""
    rate, size, k = 0.2, 8, 4
    world = World(problem(), preset("v100x4"), seed=SEED, seconds=SECONDS)
    center = world.start
    x = [center] * k
    beta = k * alpha

    def compute(batches):
        nonlocal x, center
        rows = [rows for (rows,) in batches.values()]
        g = [world.gradient(x_i, r) for x_i, r in zip(x, rows, strict=True)]
        mean = np.mean(x, 0)
        pairs = zip(x, g, strict=True)
        x = [x_i - rate * g_i - alpha * (x_i - center) for x_i, g_i in pairs]
        center = (1 - beta) * center + beta * mean
        return center

    bulk_synchronous(world, tuple(range(k)), 1, size, compute)
    history = train(
        hetjax.sma(
            batch_size=size, rate=rate, momentum=0.0, alpha=alpha, overlap=False
        ),
        preset("v100x4"),
    )
    points = [world.point(p["seconds"]) for p in history.points]
    assert history.merges == len(world.models) - 1 > 4
    assert column(history, "updates") == [updates for updates, *_ in points]
    losses = [loss for *_, loss in points]
    np.testing.assert_allclose(column(history, "loss"), losses, **TOLERANCE)
    np.testing.assert_allclose(flat(history.params), center, **TOLERANCE)


def test_overlap_changes_seconds_and_no_numbers():
    """The same models one after the other, only sooner."""
    machine = three_workers(noise=0.0)
    overlapped, waiting = (
        train(hetjax.sma(batch_size=8, rate=0.2, overlap=overlap), machine, points=128)
        for overlap in (True, False)
    )
    # points are denser than merges: no model is missed
    losses = column(overlapped, "loss"), column(waiting, "loss")
    models = [list(dict.fromkeys(values)) for values in losses]
    common = min(map(len, models))
    assert common > 4
    assert models[0][:common] == models[1][:common]
    third = models[0][2]
    assert losses[0].index(third) < losses[1].index(third)
    assert overlapped.workers[0].merging < waiting.workers[0].merging


# Adaptive SGD


def own_order():
    """A sampler with an order for each worker, whoever else draws in between.

    Elastic draws K batches at once, Adaptive one at a time and in turn: only so do
    they see the same examples.
    """

    def init(workers, num_examples, seed):
        rngs = [np.random.default_rng((seed, worker.index)) for worker in workers]
        return tuple(rng.integers(num_examples, size=10_000) for rng in rngs)

    def draw(state, worker, n):
        rest = list(state)
        rest[worker] = state[worker][n:]
        return tuple(rest), state[worker][:n]

    return Sampler(init, draw)


@pytest.mark.parametrize(
    "settings",
    [
        {"scaling": "none", "delta": 0.0},
        {"scaling": "none", "delta": 0.1},  # equal updates: nothing is perturbed
        {"scaling": "paper", "beta": 4.0, "delta": 0.1},  # equal updates: nothing moves
    ],
)
def test_adaptive_on_equal_workers_is_elastic(settings):
    equal, both = preset("uniform:4", noise=0.0), {"rate": 0.2, "mega_batch": 3 * 4 * 8}
    adaptive = hetjax.adaptive_sgd(b_max=8, **both, **settings)
    elastic = hetjax.elastic_sgd(batch_size=8, **both)
    one = train(adaptive._replace(sampler=own_order()), equal)
    other = train(elastic._replace(sampler=own_order()), equal)
    # Elastic reports three steps at once, Adaptive each of them: counts differ between
    # merges
    assert_same_run(one, other, counts=("seconds",))
    assert [w.updates % 3 for w in other.workers] == [0] * 4
    assert {p["weights_changed"] for p in one.points} == {0.0}


def test_adaptive_on_one_worker_is_elastic():
    one, both = preset("v100x1"), {"rate": 0.2, "mega_batch": 3 * 8}
    adaptive = hetjax.adaptive_sgd(b_max=8, **both)
    elastic = hetjax.elastic_sgd(batch_size=8, **both)
    runs = train(adaptive, one), train(elastic, one)
    assert_same_run(*runs, counts=("seconds",))
    assert runs[0].points[-1]["weights_changed"] == 0.0
    assert [size for _, size in runs[0].workers[0].batch_size_over_time] == [8.0]


# Factories


FACTORIES = {name: {size_of(name): 8, "rate": 0.1} for name in hetjax.STRATEGIES}


@pytest.mark.parametrize("name", FACTORIES)
def test_settings_are_recorded(name):
    """All of them, the defaults too; what is no number is described."""
    strategy = hetjax.STRATEGIES[name](**FACTORIES[name])
    assert strategy.settings.items() >= FACTORIES[name].items()
    code = hetjax.STRATEGIES[name].__code__
    assert set(strategy.settings) == set(code.co_varnames[: code.co_kwonlyargcount])
    assert (strategy.b_max, strategy.rate) == (8, 0.1)
    falling = hetjax.STRATEGIES[name](**{**FACTORIES[name], "rate": abs})
    assert falling.settings["rate"] == "abs"
    assert falling.rate is abs


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        *((name, {"batch_size": 0}, "batch_size=0") for name in list(FACTORIES)[:4]),
        *((name, {"batch_size": -8}, "batch_size=-8") for name in list(FACTORIES)[:4]),
        ("elastic_sgd", {"steps": 0}, "steps=0"),
        ("elastic_sgd", {"mega_batch": 0}, "mega_batch=0"),
        ("sma", {"tau": 0}, "tau=0"),
        ("sma", {"alpha": -0.1}, "alpha=-0.1"),
        ("adaptive_sgd", {"b_max": 0}, "b_max=0"),
        ("adaptive_sgd", {"b_min": 0}, "b_min=0"),
        ("adaptive_sgd", {"b_min": 9}, "b_min=9 is above b_max=8"),
        ("adaptive_sgd", {"mega_batch": -1}, "mega_batch=-1"),
        ("adaptive_sgd", {"scale_every": 0}, "scale_every=0"),
        ("adaptive_sgd", {"bound": "cut"}, "bound='cut': choose one of"),
        ("adaptive_sgd", {"weights": "fair"}, "weights='fair': choose one of"),
        ("adaptive_sgd", {"reg_measure": "l1"}, "reg_measure='l1': choose one of"),
        # larger batches for the slower: sizes would run away from each other
        ("adaptive_sgd", {"beta": -1.0}, "beta=-1.0: give a number of at least 0"),
        (
            "adaptive_sgd",
            {"delta": -0.1},
            "delta=-0.1: give a number from 0",
        ),
    ],
)
def test_wrong_settings(name, wrong, message):
    with pytest.raises(ValueError, match=message):
        hetjax.STRATEGIES[name](**{**FACTORIES[name], **wrong})


def test_no_scaling_is_a_setting_too():
    """beta = 0 is a rule that changes nothing, not an error."""
    assert hetjax.adaptive_sgd(b_max=8, rate=0.1, beta=0.0).settings["beta"] == 0.0


@pytest.mark.parametrize("wrong", [0.0, -0.1, float("nan"), float("inf")])
def test_a_rate_must_be_positive(wrong):
    with pytest.raises(ValueError, match=f"rate={wrong}: give a finite number above 0"):
        train(hetjax.sync_sgd(batch_size=8, rate=wrong), preset("v100x1"))


def test_rules_of_equal_settings_are_shared():
    """So are their compiled programs."""
    strategies = (
        hetjax.elastic_sgd(batch_size=8, rate=0.1),
        hetjax.adaptive_sgd(b_max=16, rate=0.3),
        hetjax.sma(batch_size=4, rate=0.2),
    )
    assert {strategy.local for strategy in strategies} == {local.sgd()}
