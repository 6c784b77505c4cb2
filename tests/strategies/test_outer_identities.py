"""Newer strategies that are equal in a limit: whole runs against each other.

The laws of docs/algorithms L, on random quadratics. Two sides whose arithmetic is the
same are compared to the bit, others to float32 rounding.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import vector_task
from quick import quick
from vector_task import PROBLEMS

import hetjax as hj
from hetjax import local, merge, schedule
from hetjax.strategies.local_steps import on_arrival

RATE, STEPS = 0.25, 2
ALONE, EQUAL, UNEQUAL = (1.0,), (1.0, 1.0, 1.0), (2.0, 3.0, 7.0)
MIXED = PROBLEMS["mixed"]
FIXED = vector_task.mixed(rows=1)  # gradients do not depend on the draw
BIT, ROUNDING = 0.0, 1e-6


class Law(NamedTuple):
    """Two strategies, and the runs in which they are one."""

    one: hj.Strategy
    other: hj.Strategy
    seconds: tuple[float, ...]
    tolerance: float = ROUNDING
    end: float = 20.5
    problem: vector_task.Quadratics = MIXED


def made(name, **settings):
    return getattr(hj, name)(batch_size=1, learning_rate=RATE, **settings)


def stepping(name, **settings):
    return made(name, **{"local_steps": STEPS} | settings)


def on_reports(tx, *, scale: Any = 1.0, steps=STEPS, rule=None, **settings):
    """A server that steps with an outer optimizer on each report."""
    merging = merge.outer(tx, scale=scale, since="given")
    return on_arrival(merging, rule or local.sgd(), RATE, 1, steps, **settings)


def share(stats):
    return 1 / stats.num_workers


def compressed_diloco():
    """Nesterov's step on messages that have everything."""
    whole = merge.compressed(merge.outer(), top_k=8, chunk=8, error_feedback=0.3)
    return stepping("diloco")._replace(merge=whole)


SGD = optax.sgd(1.0)
local_sgd = partial(stepping, "local_sgd", momentum=0.0)
diloco = partial(stepping, "diloco")
LAWS = {
    "outer SGD of rate 1 is local SGD": Law(
        diloco(outer_optimizer=SGD), local_sgd(), UNEQUAL, end=60.5
    ),
    "outer SGD of one step is sync SGD": Law(
        diloco(outer_optimizer=SGD, local_steps=1), made("sync_sgd"), EQUAL
    ),
    "an outer heavy ball of one step is sync SGD's": Law(
        diloco(outer_optimizer=optax.sgd(1.0, momentum=0.5), local_steps=1),
        made("sync_sgd", server_momentum=0.5),
        EQUAL,
    ),
    "DiLoCo without momentum is outer SGD": Law(
        diloco(outer_momentum=0.0), diloco(outer_optimizer=optax.sgd(0.7)), EQUAL
    ),
    "SlowMo at a constant rate is FedAvgM": Law(
        stepping("slow_mo", slow_momentum=0.6),
        stepping("fed_opt", server="avgm", beta1=0.6, server_learning_rate=1.0),
        EQUAL,
    ),
    "SlowMo without momentum is local SGD": Law(
        stepping("slow_mo", slow_momentum=0.0), local_sgd(), EQUAL
    ),
    "FedAdam with b1 0, b2 1 is outer SGD": Law(
        stepping("fed_opt", server="adam", beta1=0.0, beta2=1.0, tau=0.2),
        diloco(outer_optimizer=optax.sgd(0.1 / 0.4)),
        EQUAL,
    ),
    "FedYogi with b1 0, b2 1 is outer SGD": Law(
        stepping("fed_opt", server="yogi", beta1=0.0, beta2=1.0, tau=0.2),
        diloco(outer_optimizer=optax.sgd(0.1 / 0.4)),
        EQUAL,
    ),
    "one worker of async DiLoCo is DiLoCo": Law(
        stepping("async_diloco", outer_learning_rate=0.7), diloco(), ALONE
    ),
    "outer SGD of one step on reports is async SGD": Law(
        on_reports(SGD, steps=1), made("async_sgd"), UNEQUAL
    ),
    "an endless window is local SGD": Law(
        on_reports(SGD, scale=share, grace=1e9), local_sgd(), UNEQUAL, end=60.5
    ),
    "N 1 is Nesterov on every report": Law(
        stepping("delayed_nesterov", every=1, outer_learning_rate=0.2),
        on_reports(optax.sgd(0.2, momentum=0.9, nesterov=True)),
        UNEQUAL,
    ),
    "delayed Nesterov without momentum is outer SGD g / N": Law(
        stepping("delayed_nesterov", every=3, outer_momentum=0.0),
        on_reports(optax.sgd(0.7 / 3)),
        UNEQUAL,
    ),
    "the first k reports are a round of DiLoCo": Law(
        stepping("delayed_nesterov"), diloco(), EQUAL, end=2.5
    ),
    "dynamic local updates at equal speeds are H": Law(
        stepping("delayed_nesterov", local_steps="measured:2"),
        stepping("delayed_nesterov"),
        EQUAL,
        BIT,
    ),
    "MLA without momentum is async outer SGD": Law(
        stepping("mla", outer_momentum=0.0), on_reports(optax.sgd(0.7)), UNEQUAL
    ),
    "MLA that sends a look-ahead without momentum, too": Law(
        stepping("mla", outer_momentum=0.0, send="lookahead"),
        on_reports(optax.sgd(0.7)),
        UNEQUAL,
    ),
    "one worker of FedAsync is outer SGD": Law(
        stepping("fed_async", staleness="constant"),
        diloco(outer_optimizer=optax.sgd(0.6)),
        ALONE,
    ),
    "FedBuff with K 1 is async outer SGD": Law(
        stepping("fed_buff", buffer_size=1, staleness="none"),
        on_reports(SGD),
        UNEQUAL,
    ),
    "the first center of FedBuff with K k is local SGD's": Law(
        stepping("fed_buff", buffer_size=3), local_sgd(), EQUAL, end=3.5
    ),
    "Ringmaster without a bound is async SGD": Law(
        made("ringmaster_asgd", max_delay=10**6), made("async_sgd"), UNEQUAL, BIT
    ),
    "and so if it ignores": Law(
        made("ringmaster_asgd", max_delay=10**6, stop="ignore"),
        made("async_sgd"),
        UNEQUAL,
        BIT,
    ),
    "Ringmaster with R 1 is Rennala with B 1": Law(
        made("ringmaster_asgd", max_delay=1), made("rennala_sgd", batches=1), UNEQUAL
    ),
    "and so if both ignore": Law(
        made("ringmaster_asgd", max_delay=1, stop="ignore"),
        made("rennala_sgd", batches=1, stop="ignore"),
        UNEQUAL,
    ),
    "delay-adaptive while no delay is above k is async SGD": Law(
        made("async_sgd", delay_adaptive=True), made("async_sgd"), EQUAL, BIT
    ),
    "Rennala with B k at equal speeds is sync SGD": Law(
        made("rennala_sgd", batches=3), made("sync_sgd"), EQUAL, problem=FIXED
    ),
    "Malenia with S k at equal speeds is sync SGD": Law(
        made("malenia_sgd", batches=3), made("sync_sgd"), EQUAL, problem=FIXED
    ),
    "one worker of Ringleader is SGD": Law(
        made("ringleader_asgd"), made("sequential_sgd"), ALONE
    ),
    "rescaled at equal speeds is async SGD": Law(
        made("async_sgd")._replace(
            policy=schedule.asynchronous(batch_size=1, rescaled=True)
        ),
        made("async_sgd"),
        EQUAL,
    ),
    "one learner of Decoupled DiLoCo is DiLoCo": Law(
        stepping("decoupled_diloco", fragments=1, average="mean"), diloco(), ALONE
    ),
    "RDA of one member is the mean": Law(
        stepping("decoupled_diloco", fragments=1, average="rda"),
        stepping("decoupled_diloco", fragments=1, average="mean"),
        ALONE,
    ),
    "streaming one fragment at once is DiLoCo": Law(
        stepping("streaming_diloco", fragments=1, delay=0, blend=0.0),
        diloco(),
        UNEQUAL,
        end=60.5,
    ),
    "SparseLoCo that keeps everything is local SGD": Law(
        stepping("sparse_loco", top_k=8, chunk=8), local_sgd(), EQUAL
    ),
    "compressed DiLoCo that keeps everything is DiLoCo": Law(
        compressed_diloco(), diloco(), EQUAL
    ),
    "one worker of SCAFFOLD is SGD": Law(
        stepping("scaffold"), made("sequential_sgd"), ALONE, end=12.5
    ),
    "the first round of SCAFFOLD is local SGD": Law(
        stepping("scaffold"), local_sgd(), EQUAL, end=2.5
    ),
    "FedProx without its term is local SGD": Law(
        stepping("fed_prox", proximal=0.0), local_sgd(), EQUAL
    ),
    "DC-ASGD without strength is async SGD": Law(
        made("dc_asgd", strength=0.0), made("async_sgd"), UNEQUAL
    ),
    "one worker of DC-ASGD is SGD": Law(
        made("dc_asgd", strength=0.4), made("sequential_sgd"), ALONE
    ),
}


# one side changes the center within rounds of so many seconds
ROUNDS = {"one worker of SCAFFOLD is SGD": 2, "an endless window is local SGD": 14}


@pytest.mark.parametrize(
    "name", quick(LAWS, "outer SGD of rate 1 is local SGD", "and so if it ignores")
)
def test_law(name):
    law = LAWS[name]
    one, other = (
        vector_task.run(strategy, law.problem, law.seconds, law.end)
        for strategy in (law.one, law.other)
    )
    moved = np.abs(one.centers[-1] - law.problem.start).max()
    assert moved > 0.05
    every = ROUNDS.get(name)
    centers = [run.centers[every::every] for run in (one, other)]
    assert len(centers[0]) > 1
    np.testing.assert_allclose(*centers, rtol=law.tolerance, atol=law.tolerance)


def test_nobody_hears_of_others_if_all_of_a_worker_s_own_is_kept(monkeypatch):
    strategy = stepping("streaming_diloco", delay=0, blend=1.0)
    run = vector_task.run(strategy, MIXED, EQUAL, 8.5, monkeypatch=monkeypatch)
    for worker in range(3):
        x = MIXED.start
        for t in range(8):
            x = x - RATE * MIXED.gradient(worker, t, x)
        np.testing.assert_allclose(run.given[worker], x, rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_bytes_of_a_fragment_are_its_share():
    """Leaves 0 and 2 are in one fragment, 1 and 3 in the other."""
    lengths, strategy = MIXED.lengths, stepping("streaming_diloco", delay=0, blend=0.0)
    first = 4 * (lengths[0] + lengths[2])
    for end, sent in ((1.5, first), (2.5, 4 * sum(lengths))):
        run = vector_task.run(strategy, MIXED, EQUAL, end)
        assert run.up == run.down == [sent] * 3


@pytest.mark.full
def test_alignment_below_every_cosine_changes_nothing():
    rng = np.random.default_rng(0)
    move, momentum = (
        {"a": jnp.asarray(rng.normal(size=3), jnp.float32), "b": jnp.ones(())}
        for _ in range(2)
    )
    same = hj.formulas.aligned(move, momentum, keep=-1.01)
    assert all(np.array_equal(same[k], move[k]) for k in move)
