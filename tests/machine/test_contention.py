"""Workers that slow each other down: manual calculations, and laws."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import machine

from hetjax.engine.decisions import decisions
from hetjax.machine import (
    Arrival,
    Cost,
    Link,
    LocalRound,
    Machine,
    MergeAction,
    Profile,
    ScriptedFault,
    SimulatedClock,
)
from hetjax.machine.contention import Contention
from hetjax.schedule import asynchronous, rounds

LINKS = {"": Link(latency=0.0, bandwidth=1e9)}


def profile(name="w", **changes):
    """A worker whose step takes a second."""
    return Profile(name, "cpu", Cost(1.0, 0.0), **changes)


def clock(*contentions, **changes):
    """A clock of workers w0, w1, ... with these contentions."""
    workers = (
        profile(f"w{k}", contention=c, **changes) for k, c in enumerate(contentions)
    )
    return SimulatedClock(Machine("m", tuple(workers), LINKS), seed=0)


def dispatch(c, worker, seconds):
    return c.dispatch(worker, LocalRound(seconds, 1), (0,) * seconds)


def drain(c):
    """(worker, start, finish) of all arrivals."""
    return [(e.worker, e.start, e.finish) for e in iter(c.next, None)]


# Finish times


def test_a_worker_alone_is_not_slowed():
    c = clock(4.0, 4.0)
    dispatch(c, 0, 3)
    assert drain(c) == [(0, 0.0, 3.0)]


def test_two_workers_slow_each_other():
    """Worker 0 has done 2 of its 4 s when worker 1 has done its 2 s, at 6 s."""
    c = clock(3.0, 3.0)
    assert dispatch(c, 0, 4).finish == 4.0  # as far as is known by then
    dispatch(c, 1, 2)
    assert drain(c) == [(1, 0.0, 6.0), (0, 0.0, 8.0)]


def test_a_worker_that_begins_later_slows_the_rest_of_a_round():
    """Worker 1 begins at 1 s: worker 0 has 3 s left and is three times as slow; at 7 s
    worker 1 is done, and worker 0 has 1 s left."""
    c = clock(3.0, 3.0)
    c.set_timer("begin", 1.0)
    dispatch(c, 0, 4)
    c.next()
    dispatch(c, 1, 2)
    assert drain(c) == [(1, 1.0, 7.0), (0, 0.0, 8.0)]


def test_each_worker_is_slowed_by_its_own_contention():
    c = clock(2.0, 1.0)
    dispatch(c, 0, 2)
    dispatch(c, 1, 1)
    # worker 1 is done at 1 s, when worker 0 has done half a second
    assert drain(c) == [(1, 0.0, 1.0), (0, 0.0, 2.5)]


def test_the_slowdown_is_linear_between_alone_and_all():
    """If none, one, ... of four others compute: 1, 2, 3, 4 and 5 times as slow."""
    c = Contention([profile(f"w{k}", contention=5.0) for k in range(5)])
    assert c.begin(0, 1.0, 0.0) == {0: 1.0}
    for others in range(1, 5):
        finishes = c.begin(others, 1.0, 0.0)
        assert finishes == dict.fromkeys(range(others + 1), 1.0 + others)
    assert c.end(4, 4.0) == dict.fromkeys(range(4), 4.0 + 0.2 * 4)


def test_a_worker_that_rests_for_most_of_its_step_slows_less():
    """With a duty of 1/4 it makes the others 1 + 2 / 4 times as slow."""
    workers = (
        profile("a", contention=3.0),
        profile("b", contention=3.0, duty=0.25),
    )
    c = SimulatedClock(Machine("m", workers, LINKS), seed=0)
    dispatch(c, 0, 4)
    dispatch(c, 1, 2)
    # a is done at 6 s, and so is b: 2 s, three times as slow
    assert drain(c) == [(0, 0.0, 6.0), (1, 0.0, 6.0)]


@pytest.mark.parametrize(("bursts", "local_steps"), [(True, 2), (False, 1)])
def test_a_worker_that_rests_after_its_round_slows_until_then(bursts, local_steps):
    """b computes for 1 s, three times as slow, and then rests three times as long.

    a has 1 s left at 3 s, and is alone from then on.
    """
    workers = (
        profile("a", contention=3.0),
        profile("b", contention=3.0, duty=0.25, bursts=bursts),
    )
    c = Contention(workers)
    assert c.begin(0, 2.0, 0.0, local_steps=2) == {0: 2.0}
    assert c.begin(1, 4.0, 0.0, local_steps=local_steps) == {0: 4.0, 1: 12.0}
    assert c.end(0, 4.0) == {1: 12.0}
    # a begins another round while b rests
    assert c.begin(0, 2.0, 4.0, local_steps=2) == {0: 6.0, 1: 12.0}


def test_waiting_for_a_merge_slows_no_worker():
    """Worker 1 begins after its merge, at 1 s; until then worker 0 is alone."""
    c = clock(2.0, 2.0)
    c.merge(MergeAction((1,)), 0.0, seconds=1.0)
    dispatch(c, 0, 1)
    dispatch(c, 1, 1)
    times = [(e.worker, e.start, e.finish) for e in list(iter(c.next, None))[1:]]
    assert times == [(0, 0.0, 1.0), (1, 1.0, 2.0)]


def test_a_round_of_no_duration_slows_no_worker():
    c = clock(3.0, 3.0)
    dispatch(c, 0, 4)
    dispatch(c, 1, 0)
    assert drain(c) == [(1, 0.0, 0.0), (0, 0.0, 4.0)]


def test_a_killed_worker_slows_no_worker_any_more():
    """Worker 1 is killed at 3 s, when worker 0 has done 1 of its 4 s."""
    workers = (profile("a", contention=3.0), profile("b", contention=3.0))
    script = (ScriptedFault(3.0, "kill", "b"),)
    m = Machine("m", workers, LINKS, faults=script)
    c = SimulatedClock(m, seed=0)
    dispatch(c, 0, 4)
    dispatch(c, 1, 4)
    assert c.next().worker == 1
    assert drain(c) == [(0, 0.0, 6.0)]


def test_a_worker_that_is_killed_before_its_round_never_begins_it():
    """It would have begun at 2 s, after a merge."""
    workers = (profile("a", contention=3.0), profile("b", contention=3.0))
    script = (ScriptedFault(1.0, "kill", "b"),)
    c = SimulatedClock(Machine("m", workers, LINKS, faults=script), seed=0)
    c.merge(MergeAction((1,)), 0.0, seconds=2.0)
    dispatch(c, 0, 4)
    dispatch(c, 1, 1)
    arrivals = [e for e in iter(c.next, None) if isinstance(e, Arrival)]
    assert [(e.worker, e.finish) for e in arrivals] == [(0, 4.0)]


# Laws


def events(m, policy, num_bytes, count=60):
    clock = SimulatedClock(m, seed=1)
    run = decisions(policy, clock, num_examples=1000, num_bytes=num_bytes)
    return list(itertools.islice(run, count))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seconds=st.lists(st.integers(1, 64), min_size=1, max_size=4),
    local_steps=st.integers(1, 3),
)
def test_an_inactive_worker_does_not_contend(seconds, local_steps):
    """An inactive worker with contention changes no event of the others. Seconds are
    eighths, so that sums are exact."""
    m = machine(*(s / 8 for s in seconds), latency=0.25)
    joins = ScriptedFault(1e9, "join", "late")
    other = profile("late", contention=2.0)
    for policy in (
        rounds(batch_size=8, local_steps=local_steps),
        asynchronous(batch_size=8),
    ):
        beside = dataclasses.replace(m, workers=(*m.workers, other), faults=(joins,))
        assert events(beside, policy, 1e9) == events(m, policy, 1e9)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seconds=st.lists(st.floats(0.1, 9.0), min_size=2, max_size=5),
    contention=st.floats(1.0, 9.0),
)
def test_while_all_compute_rounds_take_contention_times_as_long(seconds, contention):
    """Merges take no time, so no worker ever rests."""
    workers = tuple(
        Profile(f"w{k}", "cpu", Cost(s, 0.0), contention=contention)
        for k, s in enumerate(seconds)
    )
    run = events(Machine("m", workers, LINKS), asynchronous(batch_size=8), 0.0)
    arrivals = [e for e, _ in run if isinstance(e, Arrival)]
    took = [(e.finish - e.start) / seconds[e.worker] for e in arrivals]
    assert took == pytest.approx([contention] * len(took))
    times = [e.finish for e in arrivals]
    assert times == sorted(times)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    alone=st.lists(st.floats(0.1, 9.0), min_size=2, max_size=5),
    begins=st.lists(st.floats(0.0, 9.0), min_size=5, max_size=5),
    contention=st.floats(1.0, 9.0),
    duty=st.floats(0.1, 1.0),
)
def test_every_round_is_done_completely(alone, begins, contention, duty):
    """Integrate the speeds piece by piece: every worker did all of its round."""
    n = len(alone)
    c = Contention([profile(contention=contention, duty=duty)] * n)
    coming = sorted((begins[k], k) for k in range(n))
    finishes, now, done, began = {}, 0.0, [0.0] * n, set()
    while coming or finishes:
        first = min(finishes, key=finishes.get) if finishes else None
        ends = not coming or (first is not None and finishes[first] <= coming[0][0])
        until, worker = (finishes[first], first) if ends else coming.pop(0)
        share = duty * (len(finishes) - 1) / (n - 1)
        for k in finishes:
            done[k] += (until - now) / (1 + (contention - 1) * share)
        now = until
        if ends:
            began.add(worker)
            finishes = c.end(worker, now)
        else:
            finishes = c.begin(worker, alone[worker], now, local_steps=2)
    assert began == set(range(n))
    assert done == pytest.approx(alone)
