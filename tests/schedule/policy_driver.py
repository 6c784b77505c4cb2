"""Policies without a machine: workers, tables of arrivals, and a little random clock.

`follow` feeds arrivals in a given order and writes down the actions; `timeline` writes
down events and actions on a simulated machine; `drive` gives every local round a random
duration, and refuses actions that no policy may request.
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
    """Workers whose step on one example takes these seconds."""
    return tuple(
        WorkerInfo(k, f"w{k}", "gpu", (), fixed=s / 2, per_example=s / 2)
        for k, s in enumerate(seconds)
    )


def machine(*seconds, places=None, latency=0.0, **changes):
    """Workers whose step takes these seconds; a merge takes 1 latency per transfer."""
    places = places or ((),) * len(seconds)
    workers = tuple(
        Profile(f"w{k}", "gpu", Cost(s, 0.0), place=place)
        for k, (s, place) in enumerate(zip(seconds, places, strict=True))
    )
    keys = {"/".join(p[:depth]) for p in places for depth in range(len(p) + 1)}
    links = {
        key: Link(latency=latency, bandwidth=1e9, topology="central")
        for key in sorted(keys)
    }
    return Machine("m", workers, links, **changes)


def written(actions):
    """Actions as text: "merge 012", or "2:4x8": worker 2 does 4 steps of 8 examples.

    A merge's node, if it is not the root, is written before its members, and its op, if
    it is not the usual push and fetch, after them: "merge group0: 01", "merge
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


def _written_merge(action):
    node = () if action.node == ROOT else (f"{action.node}:",)
    partners = tuple(f"with {k}" for k in action.partners)
    op = () if action.op == PUSH_FETCH else (spelled(action.op),)
    return " ".join(("merge", *node, _join(action.members), *partners, *op))


def spelled(op):
    """An operation's parts in the order in which they are done: "deliver+push"."""
    assert set(op) <= set(OPERATIONS)
    return "+".join(part.name.lower() for part in OPERATIONS if part in op)


def _join(members):
    nodes = any(isinstance(m, str) for m in members)
    return ("+" if nodes else "").join(map(str, members))


def follow(policy, workers, events, num_examples=1000):
    """The actions at the start, and then at each event: a list of texts.

    A number stands for the arrival of that worker with its current local round.
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
    """The events on the machine and the actions: a list of texts.

    "3 w1 from 2 > merge 1": at 3 s worker 1 arrives with a round begun at 2 s.
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
            return f"merged {node}{_join(event.members)}"
        case _:
            return f"{type(event).__name__.lower()} {event.worker}"


class Entry(NamedTuple):
    """An arrival (None: the start), its actions, and the workers busy afterwards."""

    arrival: Arrival | None
    actions: Actions
    busy: frozenset[int]


def drive(policy, workers, durations, num_arrivals):
    """The entries of a run; the i-th round takes the i-th of `durations`, in a cycle.

    Other events come before each arrival: they must change nothing.
    """
    state, actions = policy.init(workers, 1000)
    clock, given = [], {}
    entries = []
    arrival, now = None, 0.0
    while True:
        check_members_rest(actions, given)
        for worker, local_round in actions.dispatch:
            assert worker not in given, f"worker {worker} is already busy"
            duration = durations[(len(entries) + worker) % len(durations)]
            given[worker] = Arrival(worker, local_round, now, now + duration)
            heapq.heappush(clock, (now + duration, worker))
        entries.append(Entry(arrival, actions, frozenset(given)))
        if len(entries) > num_arrivals:
            return entries
        assert clock, "no worker is busy, and none ever will be: a deadlock"
        check_other_events_are_ignored(policy, state, now)
        now, worker = heapq.heappop(clock)
        arrival = given.pop(worker)
        state, actions = policy.react(state, arrival)


def check_members_rest(actions, given):
    for merge in actions.merges:
        assert not set(merge.members) & set(given), "a member of a merge is busy"


def check_other_events_are_ignored(policy, state, now):
    for event in (Merged(ROOT, now), Evaluated({"loss": 1.0}, now), Timer("a", now)):
        assert policy.react(state, event) == (state, Actions())
