"""A policy on a clock without a model: what `simulate` yields, in which order."""

import itertools

import pytest
from policy_driver import machine

from hetjax.machine import (
    Arrival,
    Cost,
    Join,
    Leave,
    Link,
    LocalRound,
    Machine,
    MergeAction,
    Profile,
    SimulatedClock,
    Timer,
)
from hetjax.schedule import Actions, Policy, rounds, simulate


def scripted(*answers):
    """A policy that gives these actions in turn, whatever happens; then none."""

    def actions(k):
        return answers[k] if k < len(answers) else Actions()

    return Policy(
        lambda infos, n: (1, actions(0)), lambda k, event: (k + 1, actions(k))
    )


def played(policy, m, **settings):
    clock = SimulatedClock(m, seed=0)
    return list(simulate(policy, clock, **({"num_examples": 10} | settings)))


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
    endless = simulate(
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
    run = simulate(policy, clock, num_examples=1, num_bytes=100, nonzeros=8.0)
    times = [event.time for event, _ in itertools.islice(run, 1, 6)]
    assert times == [8.0, 8.0, 16.0, 24.0, 24.0]


def test_policies_are_told_the_workers_and_the_data():
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
