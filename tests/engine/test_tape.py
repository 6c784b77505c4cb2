"""The tape of a policy on a clock without a model: its decisions, and its laws."""

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines_with_faults import machines_with_faults
from policy_driver import machine, scripted
from policy_table import NUM_WORKERS, TABLE
from tape_laws import Counting, check, spelled, written

from hetjax.engine.decisions import decisions
from hetjax.engine.tape import MergeDone, MergesDone
from hetjax.machine import (
    Arrival,
    Cost,
    EvaluationDue,
    Join,
    Leave,
    Link,
    LocalRound,
    Machine,
    MergeAction,
    MergeOp,
    Profile,
    Roster,
    ScriptedFault,
    SimulatedClock,
    Slow,
    Timer,
)
from hetjax.schedule import PUSH_FETCH, Actions, Policy, rounds


def played(policy, m, **settings):
    clock = SimulatedClock(m, seed=0)
    return list(decisions(policy, clock, **({"num_examples": 10} | settings)))


def test_first_the_initial_actions_then_each_event_and_its_actions():
    first, second = Actions(((0, LocalRound(1, 4)),)), Actions()
    first = Actions(dispatch=((0, LocalRound(1, 4)),))
    arrival = Arrival(0, LocalRound(1, 4), 0.0, 1.0)
    assert played(scripted(first), machine(1.0)) == [(None, first), (arrival, second)]


def test_merges_then_starts_then_dispatches_then_timers_then_stops():
    """The merge makes worker 0 wait until 0.5 s; 1 is started before its dispatch and
    stopped after it."""
    go = Actions(
        merges=(MergeAction((0,)),),
        start=(1,),
        dispatch=((0, LocalRound(1, 4)), (1, LocalRound(1, 4))),
        timers=(("a", 1.25),),
        stop=(1,),
    )
    run = played(scripted(Actions(stop=(1,)), go), machine(1.0, 1.0, latency=0.25))
    events = [event for event, _ in run]
    assert [type(e) for e in events[1:]] == [Leave, Join, Leave, type(events[4])] + [
        Arrival,
        Timer,
        Arrival,
    ]
    assert [e.time for e in events[1:]] == [0.0, 0.0, 0.0, 0.5, 1.0, 1.25, 1.5]
    assert events[7].start == 0.5


def test_a_simulation_can_be_left_at_any_time():
    endless = decisions(
        rounds(batch_size=4), SimulatedClock(machine(1.0), seed=0), num_examples=1
    )
    assert len(list(itertools.islice(endless, 100))) == 100


def test_bytes_and_nonzeros_take_time():
    """A step of 4 examples with 8 non-zeros each takes 2 + 8 * 4 / 16 = 4 s; a merge of
    two members 2 * 2 * 100 B / 50 B/s = 8 s."""
    workers = tuple(Profile(f"w{k}", "cpu", Cost(2.0, 0.0, 1 / 16)) for k in range(2))
    m = Machine(
        "m", workers, {"": Link(latency=0.0, bandwidth=50.0, topology="central")}
    )
    policy = rounds(batch_size=4, local_steps=2)
    clock = SimulatedClock(m, seed=0, nonzeros_per_example=8.0)
    run = decisions(policy, clock, num_examples=1, num_bytes=100, nonzeros=8.0)
    times = [event.time for event, _ in itertools.islice(run, 1, 6)]
    assert times == [8.0, 8.0, 16.0, 24.0, 24.0]


def test_policies_receive_the_workers_and_the_data():
    told = []

    def init(infos, num_examples):
        told.append((infos, num_examples))
        return (), Actions()

    policy = Policy(init, lambda state, event: (state, Actions()))
    m = machine(1.0, 2.0)
    played(policy, m, num_examples=77)
    assert told == [(m.worker_infos(0.0), 77)]


def test_a_round_for_a_busy_worker_is_refused():
    twice = Actions(dispatch=((0, LocalRound(1, 4)), (0, LocalRound(1, 4))))
    with pytest.raises(ValueError, match="has a local round in flight already"):
        played(scripted(twice), machine(1.0))


def test_at_evaluations_the_event_is_the_timer_that_the_policy_does_not_see():
    """It sees that an evaluation is due, and decides then."""
    told = []

    def react(state, event):
        told.append(event)
        return state, Actions()

    policy = Policy(lambda infos, n: ((), Actions()), react)
    assert played(policy, machine(1.0), instants=(2.0, 3.0)) == [
        (None, Actions()),
        (Timer("evaluate", 2.0), Actions()),
        (Timer("evaluate", 3.0), Actions()),
    ]
    assert told == [EvaluationDue(2.0), EvaluationDue(3.0)]


def test_a_policy_does_not_see_that_a_worker_is_slow():
    slow = ScriptedFault(0.5, "slow", "w0", 2.0)
    told = []
    policy = Policy(lambda infos, n: ((), Actions()), lambda *args: told.append(args))
    run = played(policy, machine(1.0, faults=(slow,)))
    assert run == [(None, Actions()), (Slow(0, 0.5, 2.0), Actions())]
    assert told == []


# Laws

INSTANTS = tuple(float(t) for t in range(1, 41))
LAWS = settings(deadline=None, derandomize=True)
OPS = (PUSH_FETCH, MergeOp.PUSH, MergeOp.FETCH, MergeOp.PUSH | MergeOp.REQUEST)


def at_random(seed):
    """A policy that asks by chance for anything that a policy may ask for."""

    def init(infos, num_examples):
        return decide(Roster.of(infos), 0, 0.0, range(len(infos)))

    def react(state, event):
        roster, count, workers = state
        started = isinstance(event, Join) and event.worker not in roster.lost
        stopped = isinstance(event, Leave) and not event.lost
        if not (started or stopped):  # these it has decided itself
            roster = roster.after(event)
        return decide(roster, count + 1, event.time, workers)

    def decide(roster, count, now, workers):
        chance = random.Random(10_000 * seed + count)

        def some(among, share):
            return tuple(k for k in sorted(among) if chance.random() < share)

        here = set(workers) - roster.lost
        merges = []
        for _ in range(chance.randrange(3)):
            if members := some(here - roster.working, 0.5):
                merges.append(
                    MergeAction(
                        members,
                        op=chance.choice(OPS),
                        blocking=chance.random() < 0.5,
                        partners=some(here - set(members), 0.2),
                        transfers=chance.randrange(3),
                    )
                )
        start = some(here - roster.active, 0.3)
        active = roster.active.union(start)
        dispatch = some(active - roster.working, 0.7)
        stop = some(active, 0.1)
        actions = Actions(
            merges=tuple(merges),
            dispatch=tuple((k, LocalRound(1 + k, 4)) for k in dispatch),
            timers=(("again", now + 0.75),) if chance.random() < 0.3 else (),
            start=start,
            stop=stop,
        )
        roster = roster._replace(active=active.difference(stop)).dispatched(dispatch)
        return (roster, count, workers), actions

    return Policy(init, react)


def obeys(policy, m):
    """Check the tape on this machine; return it as text."""
    play = Counting(INSTANTS)
    entries = written(policy, m, play=play, num_bytes=1e8, instants=INSTANTS)
    check(entries)
    return spelled(entries)


@settings(LAWS, max_examples=80)
@given(machines_with_faults(4, spared=1), st.integers(0, 10_000))
def test_laws_of_tapes_whatever_a_policy_decides(m, seed):
    obeys(at_random(seed), m)


def test_random_policies_bring_about_every_case():
    """Of starts, stops, losses, merges that an evaluation does not see yet, ..."""
    faults = [("kill", 3.25), ("join", 5.0), ("kill", 5.0625), ("join", 9.5)]
    m = machine(
        *(0.5, 1.0, 2.0, 0.75),
        latency=0.6,
        faults=tuple(ScriptedFault(t, what, "w3") for what, t in faults),
    )
    text = "".join(obeys(at_random(seed), m) for seed in range(30))
    for pattern in ("XF", "XA", "e.*F", "A(BB)?M", "LM", "LP", "tAP", "FBR"):
        assert re.search(pattern, text), pattern


@pytest.mark.parametrize("name", TABLE)
@settings(LAWS, max_examples=4)
@given(m=machines_with_faults(NUM_WORKERS, spared=2))
def test_laws_of_tapes_of_every_policy(name, m):
    obeys(TABLE[name].policy, m)


def test_the_check_itself():
    """Each of these tapes breaks a law."""
    good = written(rounds(batch_size=4), machine(1.0, 2.0), num_events=8)
    check(good)
    assert (
        spelled(good) == "ABRBR\naAW\naAMDWRR\ne" + "A\naAW\naAMDWRR\neA\naAW\naAMDWRR"
    )
    begin, start = good[1], good[2]
    for entries in (
        good[:3] + [begin] + good[3:],
        good[:1] + good[2:],
        good[:3] + [start] + good[3:],
        [e for e in good if not isinstance(e, MergesDone)],
        [e for e in good if not isinstance(e, MergeDone)],
        good[:2] + good[5:],
    ):
        with pytest.raises((AssertionError, KeyError)):
            check(entries)
