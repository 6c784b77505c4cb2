"""Policies without a machine: workers, a table of arrivals, and a random little clock.

`follow` feeds arrivals in a given order and writes down what was ordered; `timeline`
writes down what happens when on a simulated machine; `drive` gives every work a random
duration, and refuses what no policy may order.
"""

import heapq
import itertools
from typing import NamedTuple

from hetjax.machine import (
    Arrival,
    Cost,
    Evaluated,
    Link,
    Machine,
    Merged,
    MergeOp,
    Profile,
    SimulatedClock,
    Timer,
    WorkerInfo,
)
from hetjax.schedule import PUSH_FETCH, ROOT, Actions, simulate

# in the order in which a merge does them
OPERATIONS = (
    MergeOp.STEP,
    MergeOp.CLEAR,
    MergeOp.FORGET,
    MergeOp.DELIVER,
    MergeOp.SUBTRACT,
    MergeOp.PUSH,
    MergeOp.FETCH,
    MergeOp.REQUEST,
    MergeOp.RESET_TO_CENTER,
)


def infos(*seconds):
    """Workers whose step of one example takes so many seconds."""
    return tuple(
        WorkerInfo(k, f"w{k}", "gpu", (), fixed=s / 2, per_example=s / 2)
        for k, s in enumerate(seconds)
    )


def machine(*seconds, places=None, latency=0.0, **changes):
    """Workers whose step takes so many seconds; a merge takes 2 latencies, 1 a trip."""
    places = places or ((),) * len(seconds)
    workers = tuple(
        Profile(f"w{k}", "gpu", Cost(s, 0.0), place=place)
        for k, (s, place) in enumerate(zip(seconds, places, strict=True))
    )
    keys = {"/".join(p[:depth]) for p in places for depth in range(len(p) + 1)}
    links = {key: Link(latency, 1e9, "central") for key in sorted(keys)}
    return Machine("m", workers, links, **changes)


def written(actions):
    """Orders as text: "merge 012" and "2:4x8", worker 2 does 4 steps of 8 examples.

    A merge's node, where it is not the root, stands before its members, and its op, if
    it is not the usual push and fetch, behind them: "merge group0: 01", "merge
    group0+group1", "merge group0: 01 fetch".
    """
    merges = [_written_merge(m) for m in actions.merges]
    started = [f"start {k}" for k in actions.start]
    local_rounds = [
        f"{k}:{w.local_steps}x{w.batch_size:g}" for k, w in actions.dispatch
    ]
    return " ".join(
        merges + started + local_rounds + [f"stop {k}" for k in actions.stop]
    )


def _written_merge(order):
    node = () if order.node == ROOT else (f"{order.node}:",)
    partners = tuple(f"with {k}" for k in order.partners)
    op = () if order.op == PUSH_FETCH else (spelled(order.op),)
    return " ".join(("merge", *node, _joined(order.members), *partners, *op))


def spelled(op):
    """An operation's parts in the order in which they are done: "deliver+push"."""
    assert set(op) <= set(OPERATIONS)
    return "+".join(part.name.lower() for part in OPERATIONS if part in op)


def _joined(members):
    nodes = any(isinstance(m, str) for m in members)
    return ("+" if nodes else "").join(map(str, members))


def follow(policy, workers, events, num_examples=1000):
    """What is ordered at the start, and then at each event: a list of texts.

    A number is the arrival of that worker, with the work that it was given.
    """
    state, actions = policy.init(workers, num_examples)
    table, local_rounds = [written(actions)], dict(actions.dispatch)
    for time, event in enumerate(events, start=1):
        if isinstance(event, int):
            event = Arrival(event, local_rounds.pop(event), 0.0, float(time))
        state, actions = policy.react(state, event)
        local_rounds.update(actions.dispatch)
        table.append(written(actions))
    return table


def timeline(policy, machine, num_events, **settings):
    """What happens on the machine, and what is ordered: a list of texts.

    "3 w1 from 2 > merge 1": at 3 s worker 1 reports what it began at 2 s.
    """
    run = simulate(
        policy, SimulatedClock(machine, seed=0), num_examples=1000, **settings
    )
    _, actions = next(run)
    table = [written(actions)]
    for event, actions in itertools.islice(run, num_events):
        text = f"{event.time:g} {_written_event(event)}"
        table.append(f"{text} > {written(actions)}" if any(actions) else text)
    return table


def _written_event(event):
    match event:
        case Arrival():
            return f"w{event.worker} from {event.start:g}"
        case Merged():
            node = "" if event.node == ROOT else f"{event.node}: "
            return f"merged {node}{_joined(event.members)}"
        case _:
            return f"{type(event).__name__.lower()} {event.worker}"


class Entry(NamedTuple):
    """An arrival (None: the start), what it led to, and who had work afterwards."""

    arrival: Arrival | None
    actions: Actions
    busy: frozenset[int]


def drive(policy, workers, durations, num_arrivals):
    """The entries of a run; the i-th work takes the i-th of `durations`, in a cycle.

    Other events are thrown in before each arrival: they must change nothing.
    """
    state, actions = policy.init(workers, 1000)
    clock, given = [], {}
    entries = []
    arrival, now = None, 0.0
    while True:
        check_members_rest(actions, given)
        for worker, local_round in actions.dispatch:
            assert worker not in given, f"worker {worker} has work already"
            duration = durations[(len(entries) + worker) % len(durations)]
            given[worker] = Arrival(worker, local_round, now, now + duration)
            heapq.heappush(clock, (now + duration, worker))
        entries.append(Entry(arrival, actions, frozenset(given)))
        if len(entries) > num_arrivals:
            return entries
        assert clock, "nobody works, and nobody ever will: a deadlock"
        check_other_events_are_ignored(policy, state, now)
        now, worker = heapq.heappop(clock)
        arrival = given.pop(worker)
        state, actions = policy.react(state, arrival)


def check_members_rest(actions, given):
    for merge in actions.merges:
        assert not set(merge.members) & set(given), "a member of a merge is at work"


def check_other_events_are_ignored(policy, state, now):
    for event in (Merged(ROOT, now), Evaluated({"loss": 1.0}, now), Timer("a", now)):
        assert policy.react(state, event) == (state, Actions())
