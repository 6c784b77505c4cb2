"""The wall clock: failures, overdue workers, scripted kills, slowdowns and joins."""

import math

import pytest
from fake_time import START, STEP, wall_clock
from recorded_runs import scripted, writer

from hetjax.engine.tape import BeginReplica, DiscardReplica, DiscardRound, StartRound
from hetjax.machine import (
    Arrival,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    MergeRequest,
    ScriptedFault,
    Slow,
)
from hetjax.runtimes.real.worker_reports import Appeared, Completion, Vanished
from hetjax.schedule import Actions

LONG = LocalRound(10, 1)


def busy(world, c, worker, began, finished, **changes):
    """Dispatch a step to the worker, which takes from `began` to `finished`."""
    c.dispatch(worker, STEP, [0])
    world.report(worker, began, finished, **changes)


def assert_lost(c, worker):
    """Check that a lost worker refuses all requests."""
    with pytest.raises(ValueError, match="was stopped: start it first"):
        c.dispatch(worker, STEP, [0])
    with pytest.raises(ValueError, match="cannot be started: it is lost"):
        c.start(worker)
    with pytest.raises(ValueError, match="cannot be stopped: it is not active"):
        c.stop(worker)


# Failures


def test_a_worker_that_fails_is_lost_and_says_why(world):
    c = wall_clock(1.0, 1.0)
    busy(world, c, 0, 0.0, 1.5, failure="Traceback\nKeyError: 3")
    busy(world, c, 1, 0.0, 2.0)
    assert world.awaited(c) == Leave(0, 1.5, True, "Traceback\nKeyError: 3")
    assert_lost(c, 0)
    assert not c.has_pending_joins
    assert world.awaited(c) == Arrival(1, STEP, 0.0, 2.0)  # the others go on
    assert world.awaited(c, seconds=50.0) is None


def test_a_worker_that_fails_within_a_pause_is_lost_after_it(world):
    c = wall_clock(1.0)
    busy(world, c, 0, 0.0, 2.0, failure="why")
    with c.paused():
        world.busy_until(10.0)
    assert world.awaited(c) == Leave(0, 2.0, True, "why")
    assert world.now == 12.0


def test_a_failed_worker_can_be_stopped_until_the_policy_is_told(world):
    """Worker 0 arrives just before worker 1 fails, and the policy stops worker 1."""
    c = wall_clock(1.0, 1.0)
    for k, failure in enumerate(("", "why")):
        c.dispatch(k, STEP, [0])
        c.report(Completion(k, START, START + 1.0 + k, failure))
    world.busy_until(4.0)
    assert world.awaited(c).worker == 0
    c.stop(1)
    leaves = [world.awaited(c), world.awaited(c, seconds=50.0)]
    assert Leave(1, 2.0, True, "why") in leaves


# Silence: a step that was never measured may take 20 times its 1 s, and 1 s more


def test_a_worker_that_does_not_answer_is_lost(world):
    c = wall_clock(1.0, 1.0)
    world.busy_until(2.0)
    c.dispatch(1, STEP, [0])
    assert world.awaited(c) == Leave(1, 23.0, True, "no answer for 21 s")
    assert world.now == 23.0
    assert_lost(c, 1)
    assert c.has_pending_joins  # it may still answer


def test_a_worker_that_answers_late_rejoins(world):
    c = wall_clock(1.0)
    busy(world, c, 0, 0.0, 30.0)
    assert isinstance(world.awaited(c), Leave)
    assert world.awaited(c) == Join(0, 30.0, "answered after 30 s")
    assert not c.has_pending_joins
    # its round is dropped, but it is known to be slow now: 2 * 20 + 1 s
    busy(world, c, 0, 30.0, 70.0)
    assert world.awaited(c) == Arrival(0, STEP, 30.0, 70.0)


def test_a_worker_that_became_slow_is_not_lost_for_ever(world):
    """It becomes 40 times as slow; the deadline doubles with every loss."""
    c, now = wall_clock(1.0), 0.0
    for _ in range(5):
        busy(world, c, 0, now, now + 1.0)
        now += 1.0
        assert isinstance(world.awaited(c), Arrival)
    losses = 0
    for _ in range(20):
        busy(world, c, 0, now, now + 40.0)
        now += 40.0
        event = world.awaited(c)
        if isinstance(event, Leave):
            losses += 1
            assert isinstance(world.awaited(c), Join)
    assert losses == 3  # limits of 5, 10 and 20 steps


def test_a_join_does_not_outlive_a_kill(world):
    """It answers during a pause in which a scripted kill is due as well."""
    c = wall_clock(1.0, 1.0, faults=(ScriptedFault(25.0, "kill", "w0"),))
    busy(world, c, 0, 0.0, 30.0)
    assert isinstance(world.awaited(c), Leave)
    world.busy_until(31.0)
    assert world.awaited(c) == Leave(0, 25.0, True, "killed, as scripted")
    assert world.awaited(c, seconds=50.0) is None


def test_of_such_a_kill_only_the_reason_is_new(world):
    """The policy knows of the loss; for the clock the worker had returned."""
    c = wall_clock(1.0, 1.0, faults=(ScriptedFault(25.0, "kill", "w0"),))
    rounds = (Actions(dispatch=((k, STEP),)) for k in range(2))
    tape, heard = writer(scripted(*rounds), c), []
    list(tape.begin())
    world.report(0, began=0.0, finished=30.0)
    world.report(1, began=22.0, finished=24.0)
    for seconds in (22.0, 31.0):
        world.busy_until(seconds)
        while (event := c.next()) is not None:
            heard.append((event, [type(x) for x in tape.handle(event)][1:]))
    leaves = [(e.why, then) for e, then in heard if e.worker == 0]
    assert leaves == [
        (
            "no answer for 22 s",
            [DiscardRound, DiscardReplica, Actions, BeginReplica, StartRound],
        ),
        ("killed, as scripted", []),
    ]
    assert tape.ledger.records[0].lost == 1


def test_a_silent_worker_that_fails_does_not_rejoin(world):
    """A second event has the reason."""
    c = wall_clock(1.0)
    busy(world, c, 0, 0.0, 30.0, failure="why")
    assert isinstance(world.awaited(c), Leave)
    assert world.awaited(c) == Leave(0, 30.0, True, "why")
    assert world.awaited(c, seconds=50.0) is None
    assert not c.has_pending_joins
    assert_lost(c, 0)


def test_a_longer_round_may_take_longer(world):
    c = wall_clock(1.0)
    c.dispatch(0, LONG, [0] * 10)
    assert world.awaited(c).time == 20 * 10 + 1


def test_a_known_worker_has_a_shorter_deadline(world):
    """After five steps of 1 s each: 5 times their median, and 1 s."""
    c = wall_clock(1.0)
    for second in range(5):
        busy(world, c, 0, second, second + 1.0)
        assert isinstance(world.awaited(c), Arrival)
    c.dispatch(0, STEP, [0])
    assert world.awaited(c) == Leave(0, 5.0 + 6.0, True, "no answer for 6 s")


def test_the_clock_waits_for_a_compiling_worker(world):
    """It compiles until 70 s: deadlines are at 21, 42 and 84 s."""
    asked = []

    def is_compiling(worker):
        asked.append((worker, world.now))
        return world.now < 70.0

    c = wall_clock(1.0, is_compiling=is_compiling)
    c.dispatch(0, STEP, [0])
    assert world.awaited(c) == Leave(0, 84.0, True, "no answer for 84 s")
    assert asked == [(0, 21.0), (0, 42.0), (0, 84.0)]


def test_a_finished_worker_is_not_silent(world):
    """It finished within a pause, after its deadline at 21 s; the clock is at 0 s."""
    c = wall_clock(1.0)
    busy(world, c, 0, 0.0, 25.0)
    with c.paused():
        world.busy_until(40.0)
    assert world.awaited(c) == Arrival(0, STEP, 0.0, 25.0)


# Scripts


def test_a_kill_as_scripted(world):
    """Its round never arrives, although its thread finishes it."""
    c = wall_clock(1.0, 1.0, faults=(ScriptedFault(1.0, "kill", "w1"),))
    busy(world, c, 1, 0.0, 2.0)
    assert world.awaited(c) == Leave(1, 1.0, True, "killed, as scripted")
    assert world.now == 1.0
    assert_lost(c, 1)
    assert not c.has_pending_joins
    assert world.awaited(c, seconds=50.0) is None


def test_a_kill_drops_a_round_that_arrives_at_the_same_time(world):
    c = wall_clock(1.0, faults=(ScriptedFault(1.0, "kill", "w0"),))
    busy(world, c, 0, 0.0, 1.0)
    assert world.awaited(c) == Leave(0, 1.0, True, "killed, as scripted")
    assert world.awaited(c, seconds=50.0) is None


def test_a_slowdown_as_scripted(world):
    slowed = []
    c = wall_clock(
        1.0,
        1.0,
        faults=(
            ScriptedFault(2.0, "slow", "w1", 3.0),
            ScriptedFault(4.0, "slow", "w1"),
        ),
        on_slow=lambda *about: slowed.append((*about, world.now)),
    )
    assert [world.awaited(c), world.awaited(c)] == [
        Slow(1, 2.0, 3.0),
        Slow(1, 4.0, 1.0),
    ]
    assert slowed == [(1, 3.0, 2.0), (1, 1.0, 4.0)]


def test_a_join_as_scripted(world):
    c = wall_clock(1.0, 1.0, absent=(1,), faults=(ScriptedFault(3.0, "join", "w1"),))
    assert_lost(c, 1)
    assert c.has_pending_joins
    assert world.awaited(c) == Join(1, 3.0, "as scripted")
    assert not c.has_pending_joins
    assert c.dispatch(1, STEP, [0]).start == 3.0


def test_a_killed_worker_rejoins_as_scripted(world):
    faults = (ScriptedFault(1.0, "kill", "w0"), ScriptedFault(3.0, "join", "w0"))
    c = wall_clock(1.0, faults=faults)
    c.dispatch(0, STEP, [0])
    assert isinstance(world.awaited(c), Leave)
    assert world.awaited(c) == Join(0, 3.0, "as scripted")
    busy(world, c, 0, 3.0, 4.0)
    assert world.awaited(c) == Arrival(0, STEP, 3.0, 4.0)


def test_the_old_round_of_a_killed_worker_is_not_mistaken_for_its_new_one(world):
    """Killed at 1 s, back at 1.5 s; the old thread finishes its step at 2 s."""
    faults = (ScriptedFault(1.0, "kill", "w0"), ScriptedFault(1.5, "join", "w0"))
    c = wall_clock(1.0, faults=faults)
    busy(world, c, 0, 0.0, 2.0)
    assert isinstance(world.awaited(c), Leave)
    assert isinstance(world.awaited(c), Join)
    busy(world, c, 0, 1.5, 3.0)
    assert world.awaited(c) == Arrival(0, STEP, 1.5, 3.0)


def test_a_silent_worker_that_is_killed_does_not_rejoin(world):
    c = wall_clock(1.0, faults=(ScriptedFault(25.0, "kill", "w0"),))
    busy(world, c, 0, 0.0, 30.0)
    assert world.awaited(c) == Leave(0, 21.0, True, "no answer for 21 s")
    assert world.awaited(c) == Leave(0, 25.0, True, "killed, as scripted")
    assert not c.has_pending_joins
    assert world.awaited(c, seconds=50.0) is None


@pytest.mark.parametrize("fault", ["kill", "join"])
def test_a_fault_that_changes_nothing_is_no_event(world, fault):
    """Killing an inactive worker; joining an active one."""
    absent = (1,) if fault == "kill" else ()
    script = (ScriptedFault(1.0, fault, "w1"),)
    c = wall_clock(1.0, 1.0, absent=absent, faults=script)
    assert world.awaited(c, seconds=9.0) is None
    assert not c.has_pending_joins


# Actions


def test_stop_and_start(world):
    c = wall_clock(1.0, 1.0)
    busy(world, c, 1, 0.0, 1.0)
    world.busy_until(0.5)
    c.stop(1)
    assert world.awaited(c) == Leave(1, 0.5)
    assert world.awaited(c) == Arrival(1, STEP, 0.0, 1.0)  # it finishes its round
    with pytest.raises(ValueError, match=r"worker 1 \(w1\) was stopped: start it"):
        c.dispatch(1, STEP, [0])
    c.start(1)
    assert world.awaited(c) == Join(1, 1.0)
    assert c.dispatch(1, STEP, [0]).start == 1.0


def with_a_round_in_flight():
    c = wall_clock(1.0, 1.0, 1.0, absent=(2,))
    c.dispatch(1, STEP, [0])
    return c


def merge_of(c, *members):
    return c.plan(MergeRequest(MergeAction(members), 8.0, 0.0, ()))


@pytest.mark.parametrize(
    ("message", "act"),
    [
        (
            r"worker 1 \(w1\) has a local round in flight",
            lambda c: c.dispatch(1, STEP, [0]),
        ),
        (r"worker 1 \(w1\) has a local round in flight", lambda c: merge_of(c, 0, 1)),
        (r"worker 2 \(w2\) was stopped: start", lambda c: c.dispatch(2, STEP, [0])),
        ("no worker 3; they are 0 to 2", lambda c: c.dispatch(3, STEP, [0])),
        ("no worker -1", lambda c: c.dispatch(-1, STEP, [0])),
        ("no worker -1", lambda c: merge_of(c, -1)),
        ("at least one member", lambda c: merge_of(c)),
        ("worker 0 cannot be started: it is active", lambda c: c.start(0)),
        ("worker 2 cannot be started: it is lost", lambda c: c.start(2)),
        ("worker 2 cannot be stopped: it is not", lambda c: c.stop(2)),
        ("timer 'x' at nan s", lambda c: c.set_timer("x", math.nan)),
        ("timer 'x' at inf s", lambda c: c.set_timer("x", math.inf)),
        ("timer 'x' at -1.0 s", lambda c: c.set_timer("x", -1.0)),
    ],
)
def test_refusals_change_nothing(world, message, act):
    c = with_a_round_in_flight()
    with pytest.raises(ValueError, match=message):
        act(c)
    world.report(1, began=0.0, finished=1.0)
    assert world.awaited(c) == Arrival(1, STEP, 0.0, 1.0)
    assert world.awaited(c, seconds=50.0) is None


def test_silence_is_noticed_while_the_others_always_have_something_due(world):
    """Worker 0 is unresponsive; the other two report all the time."""
    c = wall_clock(0.03125, 0.03125, 0.03125)
    given = {}
    for k in range(3):
        c.dispatch(k, STEP, [0])
    for k in (1, 2):
        world.report(k, began=0.0, finished=0.0625)
    while world.now < 4.0:
        event = world.awaited(c, seconds=1.0)
        if isinstance(event, Leave):
            break
        given[event.worker] = given.get(event.worker, 0) + 1
        c.dispatch(event.worker, STEP, [0])
        # the host is slow: when it asks again, the next event is due
        now = world.now
        world.report(event.worker, began=now, finished=now + 0.0625)
        world.busy_until(now + 0.125)
    assert isinstance(event, Leave), "it was never missed"
    assert (event.worker, event.lost) == (0, True)
    assert event.time < 2.5  # its deadline: 20 times its step, and a second
    assert min(given.values()) > 4


# New processes, of which other threads tell


def test_a_new_process_outlives_the_loss_of_the_old_one(world):
    """The loop gets both at once; the Leave does not remove the Join."""
    c, adopted = wall_clock(1.0, 1.0), []
    c.dispatch(1, STEP, [0])
    assert world.awaited(c).why == "no answer for 21 s"
    world.report(1, 0.0, 24.0, failure="it was killed")
    world.busy_until(25.0)
    c.report(Appeared(1, "a new process", lambda: adopted.append(world.now)))
    assert world.awaited(c) == Leave(1, 24.0, True, "it was killed")
    assert world.awaited(c) == Join(1, 25.0, "a new process")
    assert adopted == [25.0]


def test_a_new_process_waits_until_the_loss_is_heard_of(world):
    c, adopted = wall_clock(1.0, 1.0), []
    c.dispatch(1, STEP, [0])
    world.busy_until(1.0)
    c.report(Appeared(1, "a new process", lambda: adopted.append(world.now)))
    assert world.awaited(c, seconds=1.0) is None
    assert not adopted
    world.report(1, 0.0, 3.0, failure="it was killed")
    assert world.awaited(c).why == "it was killed"
    assert world.awaited(c).why == "a new process"
    assert adopted


def test_a_process_that_is_gone_again_is_not_adopted(world):
    """It answered, and was killed, before the loop received its missed deadline."""
    c = wall_clock(1.0, 1.0)
    c.dispatch(1, STEP, [0])
    world.busy_until(1.0)
    c.report(Appeared(1, "answers again", lambda: pytest.fail("it is gone")))
    c.report(Vanished(1, "it was killed"))
    assert world.awaited(c).why == "it was killed"
    assert world.awaited(c, seconds=5.0) is None
    c.report(Appeared(1, "a new process"))
    assert world.awaited(c).why == "a new process"


def test_why_no_new_process_comes_is_told_after_the_loss(world):
    """Even if it is reported before the loop has received the loss."""
    c = wall_clock(1.0, 1.0)
    c.report(Vanished(1, "it was killed"))
    c.report(Vanished(1, "no node has room", again=True))
    c.report(Vanished(1, "it is unresponsive"))  # which is known
    assert world.awaited(c) == Leave(1, 0.0, True, "it was killed")
    assert world.awaited(c) == Leave(1, 0.0, True, "no node has room")
    assert world.awaited(c, seconds=5.0) is None
    assert_lost(c, 1)


def test_a_new_process_comes_after_all_that_was_said_of_the_loss(world):
    c = wall_clock(1.0, 1.0)
    c.report(Vanished(1, "it was killed"))
    c.report(Vanished(1, "it did not start", again=True))
    c.report(Appeared(1, "a new process"))
    assert [world.awaited(c).why for _ in range(3)] == [
        "it was killed",
        "it did not start",
        "a new process",
    ]
    c.dispatch(1, STEP, [0])
