"""The wall clock: arrivals, timers, pauses and merges, in a world of scripted time."""

import math
import threading
import time

import pytest
from fake_time import START, STEP, World, wall_clock
from hypothesis import given, settings
from hypothesis import strategies as st

import hetjax.runtimes.real.wall_clock
from hetjax.machine import (
    Arrival,
    Leave,
    MergeAction,
    Merged,
    MergeRequest,
    MergeTimes,
    Stamps,
    Timer,
)
from hetjax.machine.types import MergeOp
from hetjax.runtimes.real.worker_reports import Completion

ACTION = MergeAction((0, 1), op=MergeOp.PUSH)


def stamps(*seconds):
    """The stamps of these seconds since the clock began."""
    return Stamps(*(START + s for s in seconds))


def merge(clock, *seconds, action=ACTION, compiling=0.0):
    """Carry out a merge with these stamps."""
    planned = clock.plan(MergeRequest(action, 0.0, 0.0, ()))
    assert planned == (clock.now, None, ())  # visible at once; it is measured
    return clock.merged(action, MergeTimes(stamps(*seconds), compiling))


# Arrivals and timers


def test_a_round_takes_the_time_that_its_thread_reports(world):
    c = wall_clock(1.0)
    world.busy_until(0.5)
    given = c.dispatch(0, STEP, [0])
    assert given == Arrival(0, STEP, 0.5, math.inf)
    world.report(0, began=0.75, finished=2.5)
    assert world.awaited(c) == Arrival(0, STEP, 0.75, 2.5)
    assert (c.now, world.now) == (2.5, 2.5)


def test_arrivals_are_in_the_order_of_their_finish(world):
    """While the host is busy three threads report, the latest finish first."""
    c = wall_clock(1.0, 1.0, 1.0)
    for k in range(3):
        c.dispatch(k, STEP, [0])
    for k, finished in enumerate((3.0, 2.0, 1.0)):
        c.report(Completion(k, START, START + finished))
    world.busy_until(4.0)
    events = [world.awaited(c) for _ in range(3)]
    assert [(e.worker, e.time) for e in events] == [(2, 1.0), (1, 2.0), (0, 3.0)]
    assert world.now == 4.0


def test_time_does_not_run_back_for_a_late_report(world):
    c = wall_clock(1.0, 1.0)
    c.dispatch(0, STEP, [0])
    c.set_timer("a", 2.0)
    assert world.awaited(c) == Timer("a", 2.0)
    c.report(Completion(0, START, START + 1.5))  # the report was delayed
    assert world.awaited(c).time == 1.5
    assert c.now == 2.0


def test_without_events_it_returns_now_and_then(world):
    """So that the loop can check for Ctrl-C."""
    c = wall_clock(1.0)
    c.set_timer("far", 8.0)
    assert c.next() is None
    assert world.now == 0.0
    c.prepare_wait()
    c.wait()
    assert world.now == pytest.approx(0.1)


def test_a_timer_is_due_at_its_time_or_at_once_if_that_is_past(world):
    c = wall_clock(1.0)
    c.set_timer("b", 2.0)
    c.set_timer("a", 1.0)
    assert (world.awaited(c), world.now) == (Timer("a", 1.0), 1.0)
    assert (world.awaited(c), world.now) == (Timer("b", 2.0), 2.0)
    c.set_timer("past", 0.5)
    assert (world.awaited(c), world.now) == (Timer("past", 0.5), 2.0)
    assert c.now == 2.0


def test_ties_merged_then_membership_then_arrivals_then_timers(world):
    c = wall_clock(1.0, 1.0, 1.0)
    c.set_timer("z", 1.0)
    c.set_timer("a", 1.0)
    for k in (1, 0):
        c.dispatch(k, STEP, [0])
        c.report(Completion(k, START, START + 1.0))
    world.busy_until(1.0)
    c.next()  # reads the queue: worker 0 comes first
    c.stop(2)
    merge(c, 1.0, 1.0, 1.0, 1.0, action=MergeAction((0,), "a"))
    events = [world.awaited(c) for _ in range(5)]
    merged, left, arrived, *timers = events
    assert merged == Merged("a", 1.0, (0,))
    assert left == Leave(2, 1.0)
    assert arrived.worker == 1
    assert timers == [Timer("z", 1.0), Timer("a", 1.0)]


def test_time_before_the_beginning_does_not_count(world):
    c = wall_clock(1.0)
    c.set_timer("a", 1.0)
    with c.paused():
        world.busy_until(16.0)
    world.busy_until(32.0)
    c.begin()
    assert (world.awaited(c), world.now) == (Timer("a", 1.0), 33.0)


# Pauses


def test_a_round_that_ends_within_a_pause_arrives_at_its_own_time(world):
    """A pause from 1 s to 8 s: first the rounds end, then an evaluation takes 5 s.

    After it the clock is at 1 s; worker 1 arrives at 2.5 s, and worker 0 at 3 s, as if
    there had been no pause.
    """
    c = wall_clock(1.0, 1.0)
    c.set_timer("evaluate", 1.0)
    world.report(0, began=0.0, finished=3.0)
    world.report(1, began=0.5, finished=2.5)
    for k in (0, 1):
        c.dispatch(k, STEP, [0])
    world.awaited(c)
    with c.paused():
        assert world.now == 3.0  # no worker computes any more
        world.busy_until(8.0)
    assert world.awaited(c) == Arrival(1, STEP, 0.5, 2.5)
    assert world.now == 8.0 + 1.5
    assert c.dispatch(1, STEP, [0]).start == 2.5
    world.report(1, began=9.75, finished=10.5)  # 7 s later than on the clock
    assert world.awaited(c) == Arrival(0, STEP, 0.0, 3.0)
    assert world.awaited(c) == Arrival(1, STEP, 2.75, 3.5)
    assert world.now == 10.5


def test_pauses_add_up(world):
    c = wall_clock(1.0)
    for k in range(3):
        c.set_timer("evaluate", 1.0 + k)
        assert world.awaited(c) == Timer("evaluate", 1.0 + k)
        assert world.now == 1.0 + 5.0 * k
        with c.paused():
            world.busy_until(world.now + 4.0)


def test_a_pause_does_not_wait_for_arrived_workers(world):
    """Both workers have arrived, but the loop knows of one of them only."""
    c = wall_clock(1.0, 1.0)
    for k in (0, 1):
        c.dispatch(k, STEP, [0])
        c.report(Completion(k, START, START + 1.0))
    world.busy_until(1.0)
    assert world.awaited(c).worker == 0
    with c.paused():
        assert world.now == 1.0
    assert world.awaited(c).worker == 1


def test_a_pause_does_not_wait_for_a_silent_worker(world):
    """A step of 1 s may take 20 * 1 + 1 s: after that the pause begins regardless.

    The worker is lost after the pause, although the clock is back at 0 s; otherwise
    the next pause would wait as long.
    """
    c = wall_clock(1.0)
    c.dispatch(0, STEP, [0])
    with c.paused():
        assert world.now == 21.0
        world.busy_until(30.0)
    assert world.awaited(c) == Leave(0, 0.0, True, "no answer for 30 s")
    assert world.now == 30.0
    with c.paused():
        assert world.now == 30.0


def test_a_pause_waits_for_a_compiling_worker(world):
    """It compiles until 70 s: deadlines are at 21, 42 and 84 s; then it is done."""
    c = wall_clock(1.0, is_compiling=lambda worker: world.now < 70.0)
    c.dispatch(0, STEP, [0])
    world.report(0, 0.0, 75.0)
    with c.paused():
        assert world.now == 75.0
    assert world.awaited(c) == Arrival(0, STEP, 0.0, 75.0)


def test_time_goes_on_after_an_error_within_a_pause(world):
    c = wall_clock(1.0)

    def evaluate():
        with c.paused():
            world.busy_until(4.0)
            raise KeyError

    with pytest.raises(KeyError):
        evaluate()
    c.set_timer("a", 1.0)
    assert world.awaited(c) == Timer("a", 1.0)
    assert world.now == 5.0


# Merges


def test_a_merge_took_place_when_its_stamps_say(world):
    c = wall_clock(1.0, 1.0)
    world.busy_until(5.0)
    assert merge(c, 2.0, 3.0, 4.0, 4.5) == (2.0, 3.0, 4.0, 4.5)
    assert world.awaited(c) == Merged("root", 4.5, (0, 1), MergeOp.PUSH)


@pytest.mark.parametrize("now", [8.0, 8.25])
def test_compiling_does_not_count(world, now):
    """4 of the 5 s from 3 to 8 s are compiling: the merge takes 1 s and ends at 4 s."""
    c = wall_clock(1.0, 1.0)
    world.busy_until(now)
    assert merge(c, 2.0, 3.0, 8.0, 8.0, compiling=4.0) == (2.0, 3.0, 4.0, 4.0)
    assert world.awaited(c) == Merged("root", 4.0, (0, 1), MergeOp.PUSH)
    c.dispatch(0, STEP, [0])
    world.report(0, began=8.5, finished=10.0)
    assert world.awaited(c) == Arrival(0, STEP, 4.5, 6.0)


def test_a_merge_never_takes_negative_time(world):
    """More seconds of compiling than the merge took: some were spent before it."""
    c = wall_clock(1.0, 1.0)
    world.busy_until(8.0)
    assert merge(c, 2.0, 3.0, 8.0, 8.0, compiling=9.0) == (2.0, 3.0, 3.0, 3.0)


def test_the_transfers_back_of_a_merge_that_compiled_count(world):
    """As above, but the models are back a second later: 4 of 6 s are compiling."""
    c = wall_clock(1.0, 1.0)
    world.busy_until(9.0)
    assert merge(c, 2.0, 3.0, 8.0, 9.0, compiling=4.0) == (2.0, 3.0, 4.0, 5.0)


def test_workers_that_compute_while_a_merge_compiles_arrive_in_order(world):
    """Worker 2 ends just before the program is compiled, worker 3 just after that; both
    take the time that they report."""
    c = wall_clock(1.0, 1.0, 1.0, 1.0)
    for k, finished in ((2, 7.5), (3, 8.5)):
        c.dispatch(k, STEP, [0])
        world.report(k, began=1.0, finished=finished)
    world.busy_until(8.0)
    merge(c, 2.0, 3.0, 8.0, 8.0, compiling=4.0)
    merged, *arrivals = [world.awaited(c) for _ in range(3)]
    assert merged.time == 4.0
    assert arrivals == [Arrival(2, STEP, 1.0, 7.5), Arrival(3, STEP, 1.0, 8.5)]
    assert world.now == 8.5 + 4.0


# Laws


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    local_rounds=st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 3)), max_size=25
    ),
    pauses=st.sets(st.integers(1, 40)),
)
def test_pauses_do_not_change_the_time_of_rounds(local_rounds, pauses):
    """Worker k does the next round of the list; pauses at these quarters of a second
    take as many seconds. A round of q quarters arrives q quarters later."""
    with pytest.MonkeyPatch.context() as patch:
        world = World()
        for name in ("time", "queue"):
            patch.setattr(hetjax.runtimes.real.wall_clock, name, world)
        c = wall_clock(1.0, 1.0, 1.0, 1.0)
        for quarter in pauses:
            c.set_timer("pause", quarter / 4)
        todo, given, last = list(local_rounds), {}, 0.0
        while todo or given:
            for quarters, k in tuple(todo):
                if k not in given:
                    todo.remove((quarters, k))
                    start = c.dispatch(k, STEP, [0]).start
                    given[k] = (start, start + quarters / 4)
                    world.report(k, world.now, world.now + quarters / 4)
            event = world.awaited(c)
            assert event.time == c.now >= last
            last = c.now
            if isinstance(event, Timer):
                with c.paused():
                    world.busy_until(world.now + event.time)
            else:
                assert (event.start, event.finish) == given.pop(event.worker)


def test_real_threads_report_in_real_time():
    """Without a fake world: 5 ms of sleep take at least 5 ms, and wake the clock."""
    c = wall_clock(1.0)
    c.dispatch(0, STEP, [0])

    def local_round():
        began = time.perf_counter()
        time.sleep(0.005)
        c.report(Completion(0, began, time.perf_counter()))

    thread = threading.Thread(target=local_round)
    thread.start()
    thread.join()
    event = c.next()
    assert event.worker == 0
    assert event.finish - event.start >= 0.005
