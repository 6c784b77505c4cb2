"""A user's own algorithms, from own parts and parts of the library.

Nothing below changes the library: a merge, two policies, and an asynchronous algorithm,
which the loop treats like any other.
"""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_problems import PROBLEMS, flat, ten_groups

import hetjax
from hetjax import local, merge, schedule, tree
from hetjax.machine import Arrival, Cost, Link, LocalRound, Machine, Profile
from hetjax.replica import Replica
from hetjax.schedule import Actions, MergeAction, Policy


@cache
def groups():
    """(task, data): an MLP 64-16-10 on ten groups."""
    data = ten_groups()
    return hetjax.classification(hetjax.models.mlp(hidden=16), data), data


def train_on_groups(strategy, machine, seconds):
    return hetjax.train(
        *groups(), machine, strategy, seconds=seconds, num_evals=4, progress=False
    )


def strategy(policy, merging, *, learning_rate=0.5, batch_size=16):
    return hetjax.Strategy(policy, local.sgd(), merging, batch_size, learning_rate)


def unlike(noise=0.05):
    """Three workers that need 1 ms, 1.5 ms and 2.5 ms per step."""
    cost = Cost(fixed=1e-3, per_example=0.0)
    workers = tuple(
        Profile(f"w{k}", "cpu", cost, factor=factor)
        for k, factor in enumerate((1, 1.5, 2.5))
    )
    return Machine(
        "unlike", workers, {"": Link(latency=1e-5, bandwidth=1e9)}, noise=noise
    )


def assert_time_is_accounted_for(history):
    for worker in history.workers:
        parts = worker.busy, worker.waiting, worker.merging, worker.idle
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(history.duration)


# A merge: the median of the replicas, coordinate by coordinate


class MedianState(NamedTuple):
    center: Any
    model_state: Any


def median():
    def init(params, model_state):
        return MedianState(tree.widened(params), model_state)

    def apply(state, replicas, stats, op):
        params = jax.tree.map(
            lambda *leaves: jnp.median(jnp.stack(leaves), axis=0),
            *[replica.params for replica in replicas],
        )
        merged = tuple(replica._replace(params=params) for replica in replicas)
        return state._replace(center=params), merged

    return merge.Merge(init, apply, lambda state: (state.center, state.model_state))


def test_a_users_own_merge_with_rounds():
    policy = schedule.rounds(local_steps=4, batch_size=16)
    history = train_on_groups(strategy(policy, median()), unlike(), seconds=0.8)
    assert history.evals[-1]["accuracy"] > 0.9  # ten classes: 0.1 at the start
    assert history.evals[0]["accuracy"] < 0.3
    updates = [worker.updates for worker in history.workers]
    assert max(updates) - min(updates) in (0, 4)  # the last round may be in progress
    assert_time_is_accounted_for(history)


def test_the_median_ignores_an_outlier():
    replicas = tuple(
        Replica({"w": jnp.array(w)}) for w in ([1.0, 2.0], [2.0, 1.0], [1e6, -1e6])
    )
    state = median().init(replicas[0].params, ())
    state, merged = median().apply(state, replicas, None, schedule.PUSH_FETCH)
    for params in (state.center, *(replica.params for replica in merged)):
        np.testing.assert_array_equal(params["w"], [2.0, 1.0])


# Policies


def growing_rounds(batch_size):
    """Rounds of 1, 2, 3, ... steps."""

    def actions(n, local_steps, merges=()):
        local_round = LocalRound(local_steps, batch_size)
        return Actions(
            merges=merges, dispatch=tuple((k, local_round) for k in range(n))
        )

    def init(workers, num_examples):
        n = len(workers)
        return (n, 1, n), actions(n, 1)

    def react(state, event):
        n, local_steps, pending = state
        if not isinstance(event, Arrival):
            return state, Actions()
        if pending > 1:
            return (n, local_steps, pending - 1), Actions()
        everybody = (MergeAction(tuple(range(n))),)
        return (n, local_steps + 1, n), actions(n, local_steps + 1, everybody)

    return Policy(init, react)


def taking_turns(batch_size):
    """Two workers alternate: each continues from the other's model."""

    def init(workers, num_examples):
        return 0, Actions(dispatch=((0, LocalRound(1, batch_size)),))

    def react(state, event):
        if not isinstance(event, Arrival):
            return state, Actions()
        other = 1 - event.worker
        # both are members, so that both get the new model; the idle one is inactive
        merged = MergeAction((0, 1))
        return state, Actions((merged,), ((other, LocalRound(1, batch_size)),))

    return Policy(init, react)


@pytest.mark.full
def test_a_users_own_policy_of_growing_rounds():
    history = train_on_groups(
        strategy(growing_rounds(16), merge.average()), unlike(noise=0.0), seconds=0.8
    )
    assert history.evals[-1]["accuracy"] > 0.9
    # 1 + 2 + ... + 24 = 300 steps of the slowest, 2.5 ms each, and 24 merges of about
    # 50 us take less than 0.8 s; 25 more steps do not fit. The other two workers have
    # done their 25 steps of the last round
    assert history.merges == 24
    assert [worker.updates for worker in history.workers] == [325, 325, 300]
    assert_time_is_accounted_for(history)


def test_a_users_own_policy_of_two_workers_in_turn():
    history = train_on_groups(
        strategy(taking_turns(16), merge.average()), unlike(noise=0.0), seconds=0.8
    )
    assert history.evals[-1]["accuracy"] > 0.9
    first, second, third = history.workers
    assert abs(first.updates - second.updates) <= 1
    assert (third.updates, third.idle) == (0, history.duration)
    # the idle member holds an old model: it is inactive, not stale
    assert first.staleness.keys() == {0}
    assert_time_is_accounted_for(history)


# Asynchronous: an arriving worker merges alone, with a centre that moved meanwhile


def asynchronous(batch_size):
    """No worker waits: an arrival is merged at once, and its worker goes on."""
    local_round = LocalRound(1, batch_size)

    def init(workers, num_examples):
        everybody = tuple((worker.index, local_round) for worker in workers)
        return (), Actions(dispatch=everybody)

    def react(state, event):
        if not isinstance(event, Arrival):
            return state, Actions()
        k = event.worker
        return state, Actions((MergeAction((k,)),), ((k, local_round),))

    return Policy(init, react)


class MovingState(NamedTuple):
    center: Any
    model_state: Any
    merges: jax.Array
    stale: jax.Array


def moving_average(share):
    """z <- z + share (w_i - z);   w_i <- z."""

    def init(params, model_state):
        zeros = jnp.zeros(()), jnp.zeros(())
        return MovingState(tree.widened(params), model_state, *zeros)

    def apply(state, replicas, stats, op):
        (replica,) = replicas
        center = jax.tree.map(
            lambda z, w: z + share * (w - z), state.center, replica.params
        )
        new = MovingState(
            center,
            state.model_state,
            state.merges + 1,
            state.stale + stats.staleness.sum(),
        )
        return new, (replica._replace(params=center),)

    def report(state):
        return {"mean_staleness": state.stale / jnp.maximum(state.merges, 1)}

    def model(state):
        return state.center, state.model_state

    return merge.Merge(init, apply, model, (), report)


def test_an_asynchronous_algorithm_learns():
    history = train_on_groups(
        strategy(asynchronous(16), moving_average(0.5)), unlike(), seconds=0.8
    )
    assert history.evals[-1]["accuracy"] > 0.9
    updates = [worker.updates for worker in history.workers]
    assert history.merges == sum(updates)
    # no worker waits, so updates are in inverse proportion to 1, 1.5 and 2.5 ms, except
    # for 5 % noise per step and 28 us per merge (2 L, and 4 KB over 1 GB/s)
    assert updates == pytest.approx([778, 523, 316], rel=0.02)
    assert_time_is_accounted_for(history)


def by_hand(link=None):
    """Three workers that need 1 s, 1.5 s and 3.25 s per step; merges take no time."""
    cost = Cost(fixed=1.0, per_example=0.0)
    workers = tuple(
        Profile(f"w{k}", "cpu", cost, factor=factor)
        for k, factor in enumerate((1.0, 1.5, 3.25))
    )
    return Machine("by hand", workers, {"": link or Link(latency=0.0, bandwidth=1e30)})


def run_by_hand(machine, seconds):
    problem = PROBLEMS["quadratic"]()
    return problem, hetjax.train(
        problem.task,
        problem.data,
        machine,
        strategy(asynchronous(4), moving_average(0.5), learning_rate=0.1, batch_size=4),
        seconds=seconds,
        num_evals=1,
        progress=False,
    )


def test_staleness_by_hand():
    """Until 6.25 s, with the version of the centre that each merge produces:

        version   1    2    3    4    5    6     7    8    9    10   11
        time [s]  1    1.5  2    3    3    3.25  4    4.5  5    6    6
        worker    0    1    0    0    1    2     0    1    0    0    1
        started   0    0    1    3    2    0     4    5    7    9    8
        stale     0    1    1    0    2    5     2    2    1    0    2

    `started` is the version that the worker continued from; stale = version - 1 -
    started. At 3 s and 6 s two workers arrive at once: the lower index comes first.
    """
    problem, history = run_by_hand(by_hand(), seconds=6.25)
    assert history.merges == 11
    assert [worker.updates for worker in history.workers] == [6, 4, 1]
    assert [worker.staleness for worker in history.workers] == [
        {0: 3, 1: 2, 2: 1},
        {1: 1, 2: 3},
        {5: 1},
    ]
    total = sum((Counter(w.staleness) for w in history.workers), Counter())
    mean = sum(stale * n for stale, n in total.items()) / 11
    assert history.evals[-1]["mean_staleness"] == pytest.approx(mean)
    # busy until the end, which cuts off their current rounds
    for worker in history.workers:
        assert worker.busy == pytest.approx(6.25)
        assert (worker.waiting, worker.merging, worker.idle) == (0.0, 0.0, 0.0)
    _check_numbers(problem, history, [0, 1, 0, 0, 1, 2, 0, 1, 0, 0, 1])


def _check_numbers(problem, history, arrivals):
    """Check the centre after those arrivals, each from its worker's version."""
    sampler = hetjax.sampling.uniform()
    state = sampler.init((), len(problem.data.train), 0)
    center = problem.initial(0)
    known, rows = [center] * 3, [None] * 3
    for k in range(3):
        state, rows[k] = sampler.draw(state, k, 4)
    for k in arrivals:
        replica = known[k] - 0.1 * problem.gradient(known[k], rows[k])
        known[k] = center = center + 0.5 * (replica - center)
        state, rows[k] = sampler.draw(state, k, 4)
    # float32: tens of roundings of numbers of the order of 1
    np.testing.assert_allclose(flat(history.params), center, atol=1e-5)


def test_time_by_hand_with_a_slow_server():
    """A merge of one takes 2 L = 0.5 s at a server, and the next one queues.

    Worker 2 arrives at 3.25 s and has the link until 3.75 s; worker 1 arrives at 3.5 s,
    waits for it and has it until 4.25 s; worker 0 arrives at 4 s and has it until
    4.75 s. The end at 4.5 s cuts off its merge.
    """
    _, history = run_by_hand(
        by_hand(Link(latency=0.25, bandwidth=1e12, topology="central")), seconds=4.5
    )
    expected = (
        (0, "busy", 0.0, 1.0),
        (1, "busy", 0.0, 1.5),
        (2, "busy", 0.0, 3.25),
        (0, "merging", 1.0, 1.5),
        (0, "busy", 1.5, 2.5),
        (1, "merging", 1.5, 2.0),
        (1, "busy", 2.0, 3.5),
        (0, "merging", 2.5, 3.0),
        (0, "busy", 3.0, 4.0),
        (2, "merging", 3.25, 3.75),
        (2, "busy", 3.75, 4.5),
        (1, "merging", 3.5, 4.25),
        (1, "busy", 4.25, 4.5),
        (0, "merging", 4.0, 4.75),
    )

    def by_worker(segments):
        return sorted(segments, key=lambda s: (s[0], s[2]))

    found, expected = by_worker(history.timeline), by_worker(expected)
    assert [s[:2] for s in found] == [s[:2] for s in expected]
    # the bandwidth is not infinite: a few bytes take nanoseconds
    times = [s[2:] for s in found]
    np.testing.assert_allclose(times, [s[2:] for s in expected], atol=1e-6)
    busy = [worker.busy for worker in history.workers]
    merging = [worker.merging for worker in history.workers]
    np.testing.assert_allclose(busy, [3.0, 3.25, 4.0], atol=1e-6)
    np.testing.assert_allclose(merging, [1.5, 1.25, 0.5], atol=1e-6)
    assert_time_is_accounted_for(history)


def test_a_link_on_which_no_merge_ends_is_noted():
    """Latency and bandwidth swapped: a merge takes 1e10 s, and the run 0.1 s."""
    machine = replace(unlike(), links={"": Link(latency=1e9, bandwidth=1e-6)})
    own = strategy(schedule.rounds(batch_size=16), merge.average())
    history = train_on_groups(own, machine, seconds=0.1)
    assert "the first merge takes until" in repr(history)
    assert "latency and bandwidth of the machine's links" in history.unmerged
    usual = train_on_groups(own, unlike(), seconds=0.1)
    assert usual.unmerged == ""
