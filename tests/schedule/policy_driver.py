"""Decisions of policies as text: on a simulated machine, and on a clock by hand.

`timeline` writes down events and actions on a simulated machine, `follow` the actions
at events that a test chooses, and `arrivals` returns the actions at arrivals. All three
read the tape that `hetjax.engine.tape` writes.
"""

import itertools
import math
from typing import NamedTuple

from hetjax.engine.decisions import decisions
from hetjax.machine import (
    Arrival,
    Cost,
    Evaluated,
    Link,
    Machine,
    Merged,
    MergeOp,
    PlannedMerge,
    Profile,
    Roster,
    SimulatedClock,
    Stamps,
    Timer,
    WorkerInfo,
)
from hetjax.schedule import PUSH_FETCH, ROOT, Actions, Policy

# in the order in which a merge does them
OPERATIONS = (
    MergeOp.STEP,
    MergeOp.CLEAR,
    MergeOp.FORGET,
    MergeOp.DELIVER,
    MergeOp.SUBTRACT,
    MergeOp.PUSH,
    MergeOp.ACCUMULATE,
    MergeOp.APPLY,
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


def scripted(*answers):
    """A policy that gives these actions in turn, whatever happens; then none."""

    def actions(k):
        return answers[k] if k < len(answers) else Actions()

    return Policy(
        lambda infos, n: (1, actions(0)), lambda k, event: (k + 1, actions(k))
    )


def written(actions):
    """Actions as text: "merge 012", or "2:4x8": worker 2 does 4 steps of 8 examples.

    A merge's node, if it is not the root, is written before its members, and its op, if
    it is not the usual push and fetch, after them: "merge group0: 01", "merge
    group0+group1", "merge group0: 01 fetch".
    """
    cancelled = [f"cancel {k}" for k in actions.cancel]
    merges = cancelled + [_written_merge(m) for m in actions.merges]
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
    part = (f"part {action.part}",) if action.part else ()
    members = (_join(action.members),) if action.members else ()
    return " ".join(("merge", *node, *members, *partners, *op, *part))


def spelled(op):
    """An operation's parts in the order in which they are done: "deliver+push"."""
    assert set(op) <= set(OPERATIONS)
    return "+".join(part.name.lower() for part in OPERATIONS if part in op)


def _join(members):
    nodes = any(isinstance(m, str) for m in members)
    return ("+" if nodes else "").join(map(str, members))


class ByHand:
    """A clock on which what a test says happens, once a second.

    An event is one of `hetjax.machine`, or the number of a worker: it arrives with its
    current round. Merges take no time.
    """

    has_pending_joins = True  # a Join is an event like others

    def __init__(self, workers, events):
        self.workers, self.now = workers, 0.0
        self.roster = Roster.of(workers)
        self._events, self._rounds = iter(events), {}

    def dispatch(self, worker, local_round, nonzeros):
        assert worker in self.roster.active - self.roster.working
        self.roster = self.roster.dispatched((worker,))
        self._rounds[worker] = Arrival(worker, local_round, self.now, math.inf)
        return self._rounds[worker]

    def plan(self, merge):
        assert not self.roster.working & set(merge.action.members), "one is busy"
        return PlannedMerge(self.now, Stamps(*[self.now] * 4))

    def cancel(self, worker):
        assert worker in self.roster.working, "only a round in flight can be cancelled"
        self.roster = self.roster.cancelled((worker,))

    def set_timer(self, name, time):
        """Timers are events of the test."""
        assert time >= self.now

    def next(self):
        event = next(self._events, None)
        if event is None:
            return None
        self.now += 1.0
        if isinstance(event, int):
            event = self._rounds[event]._replace(finish=self.now)
        self.roster = self.roster.after(event)
        return event


def follow(policy, workers, events, num_examples=1000):
    """The actions at the start, and then at each event of a `ByHand`: a list of texts.

    A simulated machine cannot do this: there an order of arrivals has to be worked out
    as seconds of steps, a worker leaves only if the policy stops it, and merges are
    events, too.
    """
    run = decisions(policy, ByHand(workers, events), num_examples=num_examples)
    return [written(actions) for _, actions in run]


def timeline(policy, machine, num_events, **settings):
    """The events on the machine and the actions: a list of texts.

    "3 w1 from 2 > merge 1": at 3 s worker 1 arrives with a round begun at 2 s.
    """
    clock = SimulatedClock(machine, seed=0)
    run = decisions(policy, clock, num_examples=1000, **settings)
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
        case Timer():
            return f"timer {event.name}"
        case _:
            return f"{type(event).__name__.lower()} {event.worker}"


class Entry(NamedTuple):
    """An arrival (None: the start), its actions, and the workers busy afterwards."""

    arrival: Arrival | None
    actions: Actions
    busy: frozenset[int]


def arrivals(policy, machine, num_arrivals):
    """The entries of the start and of so many arrivals.

    Other events that come before each arrival must change nothing. The clock itself
    refuses rounds for workers that are busy, and merges of them.
    """
    clock = SimulatedClock(machine, seed=0)
    entries = []
    for event, actions in decisions(undisturbed(policy), clock, num_examples=1000):
        if event is None or isinstance(event, Arrival):
            busy = clock.roster.working.union(k for k, _ in actions.dispatch)
            entries.append(Entry(event, actions, busy))
        if len(entries) > num_arrivals:
            return entries
    raise AssertionError("no worker is busy, and none ever will be: a deadlock")


def undisturbed(policy):
    """The policy, which at each arrival is also sent events that it has to ignore."""

    def react(state, event):
        now = event.time
        others = Merged(ROOT, now), Evaluated({"loss": 1.0}, now), Timer("a", now)
        for other in others if isinstance(event, Arrival) else (event,):
            assert policy.react(state, other) == (state, Actions())
        return policy.react(state, event)

    return policy._replace(react=react)
