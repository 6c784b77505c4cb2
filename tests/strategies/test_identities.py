"""Strategies that are equal in a limit: whole runs against each other.

docs/algorithms K.5, for the strategies that are implemented. The two sides do the same
arithmetic in another order, so they agree to float32 rounding, not bit for bit.
"""

from functools import partial

import numpy as np
import optax
import pytest
from identity_runs import (
    ONE,
    SECONDS,
    SEED,
    TOLERANCE,
    assert_same_run,
    column,
    free,
    own_order,
    problem,
    train,
    watching,
)
from oracle_world import World, bulk_synchronous
from tiny_problems import flat, three_workers

import hetjax
from hetjax import local, merge
from hetjax.machine import preset

# Elastic, synchronous and sequential SGD


@pytest.mark.parametrize("machine", [preset("v100x4"), three_workers()])
def test_elastic_of_one_step_without_momentum_is_synchronous_sgd(machine):
    elastic = hetjax.elastic_sgd(
        batch_size=8, learning_rate=0.2, local_steps=1, merge_momentum=0.0
    )
    sync = hetjax.sync_sgd(batch_size=8, learning_rate=0.2)
    assert_same_run(train(elastic, machine), train(sync, machine))


def test_sequential_is_elastic_of_one_step_on_one_worker():
    one = preset("v100x1")
    sequential = hetjax.sequential_sgd(batch_size=8, learning_rate=0.2)
    elastic = hetjax.elastic_sgd(
        batch_size=8, learning_rate=0.2, local_steps=1, merge_momentum=0.0
    )
    assert_same_run(train(sequential, one), train(elastic, one))


def test_sequential_ignores_slower_workers():
    strategy = hetjax.sequential_sgd(batch_size=8, learning_rate=0.2, momentum=0.9)
    few, many = (train(strategy, preset(name)) for name in ("v100x1", "v100x4"))
    assert few.evals == many.evals
    assert [w.updates for w in many.workers] == [few.workers[0].updates, 0, 0, 0]


def test_momentum_of_one_worker_is_the_optimizer_s_of_synchronous_sgd():
    one = preset("v100x1")
    sequential = hetjax.sequential_sgd(batch_size=8, learning_rate=0.05, momentum=0.9)
    heavy = partial(optax.sgd, momentum=0.9)
    sync = hetjax.sync_sgd(batch_size=8, learning_rate=0.05, optimizer=heavy)
    assert_same_run(train(sequential, one), train(sync, one))


# Synchronous model averaging


def sma_without_pull(wrap):
    strategy = hetjax.sma(batch_size=8, learning_rate=0.2, alpha=1.0, blocking=True)
    return strategy._replace(merge=wrap(merge.sma(momentum=0.9, alpha=0.0)))


def test_sma_of_one_learner_without_pull_is_sgd():
    one = preset("v100x1")
    sequential = hetjax.sequential_sgd(batch_size=8, learning_rate=0.2)
    assert_same_run(train(sma_without_pull(watching), one), train(sequential, one))


def test_sma_s_average_without_pull_stays_frozen():
    history = train(sma_without_pull(lambda merge: merge), preset("v100x1"))
    assert history.merges > 4
    assert len({p["loss"] for p in history.evals}) == 1
    initial = problem().initial(SEED)
    np.testing.assert_array_equal(flat(history.params), initial)


@pytest.mark.parametrize("alpha", [0.1, 0.25])
def test_sma_without_momentum_is_synchronous_elastic_averaging(alpha):
    """docs/algorithms G.1, in Jacobi form with beta = k alpha; x and x~ as there."""
    learning_rate, size, k = 0.2, 8, 4
    world = World(problem(), preset("v100x4"), seed=SEED, seconds=SECONDS)
    center = world.start
    x = [center] * k
    beta = k * alpha

    def compute(batches, eta):
        nonlocal x, center
        rows = [rows for (rows,) in batches.values()]
        g = [world.gradient(x_i, r) for x_i, r in zip(x, rows, strict=True)]
        mean = np.mean(x, 0)
        pairs = zip(x, g, strict=True)
        x = [x_i - learning_rate * g_i - alpha * (x_i - center) for x_i, g_i in pairs]
        center = (1 - beta) * center + beta * mean
        return center

    bulk_synchronous(world, tuple(range(k)), 1, size, compute)
    history = train(
        hetjax.sma(
            batch_size=size,
            learning_rate=learning_rate,
            merge_momentum=0.0,
            alpha=alpha,
            blocking=True,
        ),
        preset("v100x4"),
    )
    num_evals = [world.point(p["seconds"]) for p in history.evals]
    assert history.merges == len(world.models) - 1 > 4
    assert column(history, "updates") == [updates for updates, *_ in num_evals]
    losses = [loss for *_, loss in num_evals]
    np.testing.assert_allclose(column(history, "loss"), losses, **TOLERANCE)
    np.testing.assert_allclose(flat(history.params), center, **TOLERANCE)


def test_blocking_changes_seconds_and_no_numbers():
    """The same sequence of models, only earlier."""
    machine = three_workers(noise=0.0)
    overlapped, waiting = (
        train(
            hetjax.sma(batch_size=8, learning_rate=0.2, blocking=blocking),
            machine,
            num_evals=128,
        )
        for blocking in (False, True)
    )
    # evaluations are denser than merges: no model is missed
    losses = column(overlapped, "loss"), column(waiting, "loss")
    models = [list(dict.fromkeys(values)) for values in losses]
    common = min(map(len, models))
    assert common > 4
    assert models[0][:common] == models[1][:common]
    third = models[0][2]
    assert losses[0].index(third) < losses[1].index(third)
    assert overlapped.workers[0].merging < waiting.workers[0].merging


# Adaptive SGD


@pytest.mark.parametrize(
    "settings",
    [
        {"scaling": "none", "delta": 0.0},
        {"scaling": "none", "delta": 0.1},  # equal updates: nothing is perturbed
        {"scaling": "paper", "beta": 4.0, "delta": 0.1},  # equal updates: nothing moves
    ],
)
def test_adaptive_on_equal_workers_is_elastic(settings):
    equal, both = (
        preset("uniform:4", noise=0.0),
        {"learning_rate": 0.2, "mega_batch": 3 * 4 * 8},
    )
    adaptive = hetjax.adaptive_sgd(batch_size=8, **both, **settings)
    elastic = hetjax.elastic_sgd(batch_size=8, **both)
    one = train(adaptive._replace(sampler=own_order()), equal)
    other = train(elastic._replace(sampler=own_order()), equal)
    # Elastic reports three steps at once, Adaptive each step: their counts differ
    # between merges
    assert_same_run(one, other, counts=("seconds",))
    assert [w.updates % 3 for w in other.workers] == [0] * 4
    assert {p["weights_changed"] for p in one.evals} == {0.0}


def test_adaptive_on_one_worker_is_elastic():
    one, both = preset("v100x1"), {"learning_rate": 0.2, "mega_batch": 3 * 8}
    adaptive = hetjax.adaptive_sgd(batch_size=8, **both)
    elastic = hetjax.elastic_sgd(batch_size=8, **both)
    runs = train(adaptive, one), train(elastic, one)
    assert_same_run(*runs, counts=("seconds",))
    assert runs[0].evals[-1]["weights_changed"] == 0.0
    assert [size for _, size in runs[0].workers[0].batch_size_over_time] == [8.0]


# Trees


def test_hierarchical_sgd_of_one_node_is_k_step_averaging():
    """gamma_2 = gamma / p, by default and as a number."""
    averaging = hetjax.elastic_sgd(
        batch_size=6, learning_rate=0.2, local_steps=2, merge_momentum=0.0
    )
    one = train(averaging, preset("v100x4"))
    for gammas in (None, (1 / 4,)):
        tree = hetjax.hier_sgd(
            batch_size=6, learning_rate=0.2, levels=(), local_steps=(2,), gammas=gammas
        )
        assert_same_run(train(tree, preset("v100x4")), one)


def test_hierarchical_sgd_of_single_steps_is_synchronous_sgd():
    """With learning rate gamma_3 times the sum; gamma_2 does not matter."""
    machine = free(three_workers())
    sync = train(hetjax.sync_sgd(batch_size=6, learning_rate=3 * 0.5 * 0.1), machine)
    for gamma in (0.01, 0.7):
        tree = hetjax.hier_sgd(
            batch_size=6,
            learning_rate=0.1,
            levels=((2, 1),),
            local_steps=(1, 1),
            gammas=(gamma, 0.5),
        )
        run = train(tree, machine)
        assert run.merges == 3 * sync.merges
        run.merges = sync.merges
        assert_same_run(run, sync)


def test_hierarchical_sgd_by_default_is_averaging_at_every_node():
    tree = hetjax.hier_sgd(
        batch_size=6, learning_rate=0.2, levels=(2,), local_steps=(1, 2)
    )
    averaging = tree._replace(merge=(merge.average(), merge.average()))
    machine = free(preset("v100x4"))
    assert_same_run(train(tree, machine), train(averaging, machine))


# Local SGD


def test_biased_local_sgd_of_equal_steps_is_a_plain_mean():
    """Eq. (4) equals eq. (3), and no worker is slow; the sampler is the same."""
    both = {"batch_size": 6, "learning_rate": 0.1, "local_steps": 2}
    biased = hetjax.biased_local_sgd(**both)
    plain = hetjax.local_sgd(**both)._replace(sampler=biased.sampler)
    uniform = hetjax.biased_local_sgd(sampler="uniform", **both)
    machine = preset("v100x4")
    assert_same_run(train(biased, machine), train(plain, machine))
    one = train(uniform, machine)
    assert_same_run(one, train(hetjax.local_sgd(**both), machine))


@pytest.mark.parametrize("settings", [{}, {"proximal": 1e-9}])
def test_fed_nova_of_equal_steps_is_federated_averaging(settings):
    both = {"batch_size": 6, "learning_rate": 0.1, "local_steps": 2, "momentum": 0.0}
    nova, plain = hetjax.fed_nova(**both, **settings), hetjax.local_sgd(**both)
    assert_same_run(train(nova, preset("v100x4")), train(plain, preset("v100x4")))


def test_local_sgd_of_one_step_is_synchronous_sgd():
    both = {"batch_size": 6, "learning_rate": 0.1}
    local_steps = hetjax.local_sgd(
        local_steps=1, momentum=0.0, aggregation="steps", **both
    )
    sync = hetjax.sync_sgd(**both)
    assert_same_run(train(local_steps, three_workers()), train(sync, three_workers()))


# Asynchronous


def test_synchronous_sgd_of_one_worker_is_the_serial_form():
    """MagmaDNN's Algorithm 1 with N = 1: its optimizer at the only worker."""
    sync = hetjax.sync_sgd(
        batch_size=8, learning_rate=0.2, server_momentum=0.8, ema=True
    )
    ema = optax.chain(optax.ema(0.8, debias=False), optax.scale(-1.0))
    serial = hetjax.sequential_sgd(batch_size=8, learning_rate=0.2)
    serial = serial._replace(local=local.from_optax(ema))
    assert_same_run(train(sync, ONE), train(serial, ONE))


@pytest.mark.parametrize(
    "strategy",
    [
        hetjax.async_sgd(batch_size=8, learning_rate=0.2),
        hetjax.hogwild(batch_size=8, learning_rate=0.2),
        hetjax.ad_psgd(batch_size=8, learning_rate=0.2),
        hetjax.elastic_sgd(
            batch_size=8, learning_rate=0.2, local_steps=1, merge_momentum=0.0
        ),
        hetjax.hier_sgd(batch_size=8, learning_rate=0.2, levels=(), local_steps=(1,)),
        hetjax.local_sgd(batch_size=8, learning_rate=0.2, local_steps=1, momentum=0.0),
        # it never requests the server's model, which equals its own
        hetjax.downpour(
            batch_size=8, learning_rate=0.2, server="sgd", fetch_every=10**6
        ),
    ],
    ids=lambda strategy: strategy.name,
)
def test_asynchronous_sgd_of_one_worker_is_sequential_sgd(strategy):
    sequential = hetjax.sequential_sgd(batch_size=8, learning_rate=0.2)
    assert_same_run(train(strategy, ONE), train(sequential, ONE))


def test_a_server_s_momentum_for_one_worker_is_its_own():
    server = hetjax.async_sgd(batch_size=8, learning_rate=0.05, server_momentum=0.9)
    own = hetjax.sequential_sgd(batch_size=8, learning_rate=0.05, momentum=0.9)
    assert_same_run(train(server, ONE), train(own, ONE))


def test_hogwild_is_a_parameter_server_without_a_link():
    both = {"batch_size": 6, "learning_rate": 0.1, "max_staleness": 2}
    machine = free(three_workers())
    runs = (train(make(**both), machine) for make in (hetjax.hogwild, hetjax.async_sgd))
    assert_same_run(*runs)


def test_eamsgd_without_momentum_is_easgd():
    both = {"batch_size": 6, "learning_rate": 0.1, "local_steps": 2}
    easgd, eamsgd = hetjax.easgd(**both), hetjax.eamsgd(momentum=0.0, **both)
    assert_same_run(train(eamsgd, three_workers()), train(easgd, three_workers()))


def test_without_momentum_sma_is_synchronous_elastic_averaging():
    both = {"batch_size": 6, "learning_rate": 0.1, "alpha": 0.2, "local_steps": 2}
    sma, easgd = hetjax.sma(merge_momentum=0.0, **both), hetjax.easgd_sync(**both)
    assert_same_run(train(sma, preset("v100x4")), train(easgd, preset("v100x4")))
