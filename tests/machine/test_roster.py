"""The roster of active, busy and lost workers: rules, and a model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.machine import Arrival, Evaluated, Join, Leave, LocalRound, Merged, Timer
from hetjax.machine.roster import Roster
from hetjax.machine.types import EvaluationDue, Slow, WorkerInfo

NUM_WORKERS = 4
LAWS = settings(max_examples=200, deadline=None, derandomize=True)


def info(k, present=True):
    return WorkerInfo(k, f"w{k}", "gpu", (), 0.5, 0.5, present=present)


def arrival(k):
    return Arrival(k, LocalRound(1, 8), 0.0, 1.0)


def roster(active=(), working=(), lost=()):
    return Roster(frozenset(active), frozenset(working), frozenset(lost))


def test_the_roster_at_the_start():
    """A worker that is not active yet cannot be started: it joins."""
    infos = (info(0), info(1, present=False), info(2))
    assert Roster.of(infos) == roster(active=(0, 2), lost=(1,))
    assert Roster.of(iter(infos)) == Roster.of(infos)


@pytest.mark.parametrize(
    ("event", "after"),
    [
        (arrival(0), roster((0, 1), (), (2,))),
        (Join(3, 1.0), roster((0, 1, 3), (0,), (2,))),
        (Join(2, 1.0), roster((0, 1, 2), (0,), ())),
        (Leave(0, 1.0), roster((1,), (0,), (2,))),
        (Leave(0, 1.0, lost=True), roster((1,), (), (0, 2))),
        (Leave(1, 1.0, lost=True), roster((0,), (0,), (1, 2))),
        (Leave(2, 1.0), roster((0, 1), (0,), (2,))),  # of a worker that is already lost
    ],
)
def test_each_event(event, after):
    """Worker 0 is busy, 1 waits, 2 is lost and 3 was stopped."""
    assert roster((0, 1), (0,), (2,)).after(event) == after


@pytest.mark.parametrize(
    "event",
    [
        Merged("root", 1.0, (0,)),
        EvaluationDue(1.0),
        Evaluated({"loss": 1.0}, 1.0),
        Timer("late", 1.0),
        Slow(0, 1.0, 2.0),
    ],
)
def test_events_without_a_worker_change_nothing(event):
    before = roster((0, 1), (0,), (2,))
    assert before.after(event) is before


def test_dispatched_workers_are_busy():
    assert roster((0, 1), (0,)).dispatched((1,)) == roster((0, 1), (0, 1))
    assert roster((0, 1), (0,)).dispatched(()) == roster((0, 1), (0,))


# Any sequence of possible events


class Truth:
    """A model of the roster with a separate state for each worker."""

    def __init__(self, present):
        self.active = list(present)
        self.working = [False] * len(present)
        self.lost = [not p for p in present]

    def may(self):
        """The events and dispatches that are possible now."""
        moves = []
        for k in range(len(self.active)):
            if self.working[k]:
                moves.append(("arrive", k))
            elif self.active[k]:
                moves.append(("dispatch", k))
            if self.active[k]:
                moves.append(("stop", k))
            elif not self.lost[k]:
                moves.append(("start", k))
            moves.append(("join", k) if self.lost[k] else ("kill", k))
            if self.lost[k]:  # a stop from before the loss may arrive after it
                moves.append(("late stop", k))
        return moves

    def make(self, move, k):
        """Make the move; return its event, or None for a dispatch."""
        if move == "arrive":
            self.working[k] = False
            return arrival(k)
        if move == "dispatch":
            self.working[k] = True
            return None
        if move in ("start", "join"):
            self.active[k], self.lost[k] = True, False
            return Join(k, 1.0)
        if move == "kill":
            self.active[k], self.working[k], self.lost[k] = False, False, True
            return Leave(k, 1.0, lost=True)
        self.active[k] = False
        return Leave(k, 1.0)


@LAWS
@given(
    st.lists(st.booleans(), min_size=NUM_WORKERS, max_size=NUM_WORKERS),
    st.lists(st.integers(0, 10**6), max_size=60),
)
def test_the_sets_agree_with_the_model(present, choices):
    """In addition, no lost worker is active or busy."""
    truth = Truth(present)
    now = Roster.of(info(k, p) for k, p in enumerate(present))
    for choice in choices:
        moves = truth.may()
        move, k = moves[choice % len(moves)]
        event = truth.make(move, k)
        now = now.dispatched((k,)) if event is None else now.after(event)
        for name in Roster._fields:
            kept = {k for k, holds in enumerate(getattr(truth, name)) if holds}
            assert getattr(now, name) == kept
        assert not now.lost & (now.active | now.working)
        hash(now)  # a value: it cannot be changed later


@LAWS
@given(
    st.lists(st.integers(0, 10**6), max_size=30),
    st.integers(0, NUM_WORKERS - 1),
)
def test_an_event_is_about_its_worker_only(choices, other):
    """Events of other workers do not change a worker's state."""
    truth = Truth([True] * NUM_WORKERS)
    now = Roster.of(info(k) for k in range(NUM_WORKERS))
    for choice in choices:
        moves = truth.may()
        move, k = moves[choice % len(moves)]
        event = truth.make(move, k)
        before = now
        now = now.dispatched((k,)) if event is None else now.after(event)
        if k != other:
            assert [other in s for s in now] == [other in s for s in before]
