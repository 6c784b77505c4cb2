"""A machine's scripted faults: kills, slowdowns and joins on the virtual clock."""

import pytest

from hetjax.machine import (
    Arrival,
    Cost,
    Join,
    Leave,
    Link,
    LocalRound,
    Machine,
    MergeAction,
    Merged,
    Profile,
    ScriptedFault,
    SimulatedClock,
    Slow,
    Timer,
)

STEP = LocalRound(1, 1)
LINKS = {"": Link(latency=0.0, bandwidth=1e9)}
KILLED, SCRIPTED = "killed, as scripted", "as scripted"


def clock(*faults, workers=2, **changes):
    """Workers a, b, ... whose step takes 2 s; faults are (seconds, what, worker)."""
    profiles = tuple(
        Profile(name, "gpu", Cost(2.0, 0.0), **changes) for name in "abc"[:workers]
    )
    script = tuple(ScriptedFault(*fault) for fault in faults)
    return SimulatedClock(Machine("m", profiles, LINKS, faults=script), seed=0)


def dispatch(c, *workers):
    return [c.dispatch(k, STEP, (0,)) for k in workers]


def drain(c):
    return list(iter(c.next, None))


# Kills


def test_the_round_of_a_killed_worker_never_arrives():
    c = clock((1.0, "kill", "b"))
    first, _ = dispatch(c, 0, 1)
    assert drain(c) == [Leave(1, 1.0, True, KILLED), first]
    with pytest.raises(ValueError, match=r"worker 1 \(b\) was stopped: start it"):
        dispatch(c, 1)
    with pytest.raises(ValueError, match="worker 1 cannot be started: it is lost"):
        c.start(1)
    with pytest.raises(
        ValueError, match="worker 1 cannot be stopped: it is not active"
    ):
        c.stop(1)


def test_a_waiting_worker_can_be_killed():
    assert drain(clock((1.0, "kill", "b"))) == [Leave(1, 1.0, True, KILLED)]


def test_a_worker_killed_at_its_arrival_does_not_arrive():
    c = clock((2.0, "kill", "b"))
    first, _ = dispatch(c, 0, 1)
    c.set_timer("then", 2.0)
    assert drain(c) == [Leave(1, 2.0, True, KILLED), first, Timer("then", 2.0)]


def test_a_merge_that_began_is_finished():
    """Its members were waiting; it ends at 3 s, although one of them is killed."""
    c = clock((1.0, "kill", "b"))
    c.merge(MergeAction((0, 1)), 0.0, seconds=3.0)
    assert drain(c) == [Leave(1, 1.0, True, KILLED), Merged("root", 3.0, (0, 1))]


def test_a_stopped_worker_can_be_killed():
    c = clock((1.0, "kill", "b"))
    dispatch(c, 1)
    c.stop(1)
    assert drain(c) == [Leave(1, 0.0), Leave(1, 1.0, True, KILLED)]


@pytest.mark.parametrize(
    "script",
    [
        [(1.0, "kill", "b"), (2.0, "kill", "b")],
        [(1.0, "kill", "b"), (1.0, "kill", "b")],
    ],
)
def test_a_fault_that_changes_nothing_is_no_event(script):
    assert drain(clock(*script)) == [Leave(1, 1.0, True, KILLED)]


def test_a_killed_worker_leaves_its_share_of_the_device():
    """Two workers on one device take twice as long; after the kill one is alone."""
    c = clock((5.0, "kill", "b"), device="d")
    first, second = dispatch(c, 0, 1)
    assert (first.finish, second.finish) == (4.0, 4.0)
    c.set_timer("later", 6.0)
    assert drain(c)[-1] == Timer("later", 6.0)
    assert dispatch(c, 0)[0].finish == 8.0


# Slowdowns


def arrived(c):
    """The next arrival."""
    while not isinstance(event := c.next(), Arrival):
        assert isinstance(event, Slow)
    return event


def test_steps_are_slow_from_the_next_round_on():
    c = clock((1.0, "slow", "a", 3.0), (7.0, "slow", "a"))
    finishes = []
    for _ in range(3):
        dispatch(c, 0)
        finishes.append(arrived(c).finish)
    # the round that began before takes 2 s, the next 6 s; at 8 s the slowdown ends
    assert finishes == [2.0, 8.0, 10.0]


def test_a_slowdown_is_of_one_worker_and_does_not_add_up():
    c = clock((0.0, "slow", "a", 3.0), (0.0, "slow", "a", 2.0))
    assert drain(c) == [Slow(0, 0.0, 3.0), Slow(0, 0.0, 2.0)]
    assert [a.finish for a in dispatch(c, 0, 1)] == [4.0, 2.0]


# Joins


def test_a_joining_worker_is_inactive_until_then():
    c = clock((3.0, "join", "b"))
    assert [w.present for w in c.workers] == [True, False]
    assert c.has_pending_joins
    with pytest.raises(ValueError, match=r"worker 1 \(b\) was stopped"):
        dispatch(c, 1)
    with pytest.raises(ValueError, match="worker 1 cannot be started: it is lost"):
        c.start(1)
    assert drain(c) == [Join(1, 3.0, SCRIPTED)]
    assert not c.has_pending_joins
    assert dispatch(c, 1) == [Arrival(1, STEP, 3.0, 5.0)]


def test_a_killed_worker_rejoins():
    """Its old round does not keep it busy until 2 s."""
    c = clock((1.0, "kill", "b"), (1.5, "join", "b"))
    dispatch(c, 1)
    assert [w.present for w in c.workers] == [True, True]
    assert drain(c) == [Leave(1, 1.0, True, KILLED), Join(1, 1.5, SCRIPTED)]
    assert dispatch(c, 1) == [Arrival(1, STEP, 1.5, 3.5)]
    assert drain(c)[0].worker == 1


def test_a_slowdown_before_the_join_holds():
    c = clock((1.0, "slow", "b", 3.0), (2.0, "join", "b"))
    assert not c.workers[1].present  # a slowdown does not make it active
    assert drain(c) == [Slow(1, 1.0, 3.0), Join(1, 2.0, SCRIPTED)]
    assert dispatch(c, 1)[0].finish == 8.0


def test_an_active_worker_does_not_join():
    """Neither does a stopped worker: the policy decides about it."""
    c = clock((1.0, "kill", "b"), (2.0, "join", "b"), (3.0, "join", "b"))
    c.set_timer("stop", 2.5)
    events = []
    while (event := c.next()) is not None:
        events.append(event)
        if isinstance(event, Timer):
            c.stop(1)
    assert [type(e) for e in events] == [Leave, Join, Timer, Leave]
    assert not c.has_pending_joins


def test_a_joining_worker_shares_its_device():
    c = clock((1.0, "join", "b"), device="d")
    assert dispatch(c, 0)[0].finish == 2.0
    drain(c)
    assert [a.finish - a.start for a in dispatch(c, 0, 1)] == [4.0, 4.0]


# Order, and refusals


def test_ties_merged_then_membership_then_arrivals():
    c = clock((2.0, "kill", "c"), (2.0, "join", "b"), workers=3)
    (arrival,) = dispatch(c, 0)
    c.merge(MergeAction((2,)), 0.0, seconds=2.0)
    assert drain(c) == [
        Merged("root", 2.0, (2,)),
        Leave(2, 2.0, True, KILLED),  # in the order of the script
        Join(1, 2.0, SCRIPTED),
        arrival,
    ]


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("what='die': choose one of kill, slow, join", (1.0, "die", "a")),
        ("seconds=-1.0: pass a number of at least 0", (-1.0, "kill", "a")),
        ("seconds=nan: pass a number of at least 0", (float("nan"), "kill", "a")),
        ("factor=0.0: pass a number above 0", (1.0, "slow", "a", 0.0)),
        (
            "a fault names 'x', but there is no such worker; the workers are a, b",
            (1.0, "kill", "x"),
        ),
    ],
)
def test_invalid_faults(message, fault):
    with pytest.raises(ValueError, match=message):
        clock(fault)


def test_a_worker_must_be_active_at_the_start():
    with pytest.raises(ValueError, match="no worker is active when the run begins"):
        clock((1.0, "join", "a"), (1.0, "join", "b"))
    clock((1.0, "join", "a"), (2.0, "kill", "a"), (0.5, "kill", "b"))
