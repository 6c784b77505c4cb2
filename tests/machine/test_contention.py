"""Workers that slow each other down, worked out by hand; subsets; files."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import carried_out, machine

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

LINKS = {"": Link(0.0, 1e9)}


def profile(name="w", **changes):
    """A worker whose step takes a second."""
    return Profile(name, "cpu", Cost(1.0, 0.0), **changes)


def clock(*contentions, **changes):
    """Workers w0, w1, ... that contend so."""
    workers = (
        profile(f"w{k}", contention=c, **changes) for k, c in enumerate(contentions)
    )
    return SimulatedClock(Machine("m", tuple(workers), LINKS), seed=0)


def dispatch(c, worker, seconds):
    return c.dispatch(worker, LocalRound(seconds, 1), (0,) * seconds)


def drain(c):
    """(worker, start, finish) of all that arrives."""
    return [(e.worker, e.start, e.finish) for e in iter(c.next, None)]


# Finish times


def test_alone_nobody_is_slowed():
    c = clock(4.0, 4.0)
    dispatch(c, 0, 3)
    assert drain(c) == [(0, 0.0, 3.0)]


def test_side_by_side_both_are():
    """Worker 0 has 2 s behind it when worker 1 has done its 2 s at 6 s."""
    c = clock(3.0, 3.0)
    assert dispatch(c, 0, 4).finish == 4.0  # as far as it is known
    dispatch(c, 1, 2)
    assert drain(c) == [(1, 0.0, 6.0), (0, 0.0, 8.0)]


def test_who_begins_later_slows_the_rest():
    """Worker 1 begins at 1 s: worker 0 has 3 s left, and is three times as slow; at 7 s
    worker 1 is done, and worker 0 has 1 s left."""
    c = clock(3.0, 3.0)
    c.set_timer("begin", 1.0)
    dispatch(c, 0, 4)
    c.next()
    dispatch(c, 1, 2)
    assert drain(c) == [(1, 1.0, 7.0), (0, 0.0, 8.0)]


def test_each_is_slowed_as_its_own_contention_says():
    c = clock(2.0, 1.0)
    dispatch(c, 0, 2)
    dispatch(c, 1, 1)
    # worker 1 is done at 1 s, when worker 0 has done half a second
    assert drain(c) == [(1, 0.0, 1.0), (0, 0.0, 2.5)]


def test_between_alone_and_all_it_is_linear():
    """Of four others none, one, ... compute: 1, 2, 3, 4 and 5 times as slow."""
    c = Contention([profile(f"w{k}", contention=5.0) for k in range(5)])
    assert c.begin(0, 1.0, 0.0) == {0: 1.0}
    for others in range(1, 5):
        finishes = c.begin(others, 1.0, 0.0)
        assert finishes == dict.fromkeys(range(others + 1), 1.0 + others)
    assert c.end(4, 4.0) == dict.fromkeys(range(4), 4.0 + 0.2 * 4)


def test_who_rests_most_of_its_step_slows_less():
    """With a duty of 1/4 the others are 1 + 2 / 4 times as slow."""
    workers = (
        profile("a", contention=3.0),
        profile("b", contention=3.0, duty=0.25),
    )
    c = SimulatedClock(Machine("m", workers, LINKS), seed=0)
    dispatch(c, 0, 4)
    dispatch(c, 1, 2)
    # a is done at 6 s, b then too: 2 s, three times as slow
    assert drain(c) == [(0, 0.0, 6.0), (1, 0.0, 6.0)]


@pytest.mark.parametrize(("bursts", "local_steps"), [(True, 2), (False, 1)])
def test_who_rests_behind_its_work_slows_until_then(bursts, local_steps):
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
    # a begins anew while b rests
    assert c.begin(0, 2.0, 4.0, local_steps=2) == {0: 6.0, 1: 12.0}


def test_waiting_for_a_merge_slows_nobody():
    """Worker 1 begins behind its merge, at 1 s; until then worker 0 is alone."""
    c = clock(2.0, 2.0)
    c.merge(MergeAction((1,)), 0.0, seconds=1.0)
    dispatch(c, 0, 1)
    dispatch(c, 1, 1)
    times = [(e.worker, e.start, e.finish) for e in list(iter(c.next, None))[1:]]
    assert times == [(0, 0.0, 1.0), (1, 1.0, 2.0)]


def test_work_of_no_time_slows_nobody():
    c = clock(3.0, 3.0)
    dispatch(c, 0, 4)
    dispatch(c, 1, 0)
    assert drain(c) == [(1, 0.0, 0.0), (0, 0.0, 4.0)]


def test_who_is_killed_slows_nobody_any_more():
    """Worker 1 is gone at 3 s, when worker 0 has done 1 of its 4 s."""
    workers = (profile("a", contention=3.0), profile("b", contention=3.0))
    script = (ScriptedFault(3.0, "kill", "b"),)
    m = Machine("m", workers, LINKS, faults=script)
    c = SimulatedClock(m, seed=0)
    dispatch(c, 0, 4)
    dispatch(c, 1, 4)
    assert c.next().worker == 1
    assert drain(c) == [(0, 0.0, 6.0)]


def test_who_is_killed_before_it_begins_never_does():
    """It would have begun at 2 s, behind a merge."""
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
    run = carried_out(policy, SimulatedClock(m, seed=1), num_bytes=num_bytes)
    return list(itertools.islice(run, count))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seconds=st.lists(st.integers(1, 64), min_size=1, max_size=4),
    local_steps=st.integers(1, 3),
)
def test_who_does_not_contend_takes_what_it_took(seconds, local_steps):
    """Seconds are eighths, for sums without rounding. That somebody contends who is
    not there changes no event of the others."""
    m = machine(*(s / 8 for s in seconds))
    absent = ScriptedFault(1e9, "join", "late")
    other = profile("late", contention=2.0)
    for policy in (
        rounds(batch_size=8, local_steps=local_steps),
        asynchronous(batch_size=8),
    ):
        beside = dataclasses.replace(m, workers=(*m.workers, other), faults=(absent,))
        assert events(beside, policy, 1e9) == events(m, policy, 1e9)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seconds=st.lists(st.floats(0.1, 9.0), min_size=2, max_size=5),
    contention=st.floats(1.0, 9.0),
)
def test_while_all_compute_works_take_as_much_longer_as_they_contend(
    seconds, contention
):
    """Merges take no time: nobody ever rests."""
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
def test_all_the_work_is_done(alone, begins, contention, duty):
    """Going through the times anew, piece by piece: what everybody did is its work."""
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
