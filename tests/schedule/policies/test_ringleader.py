"""Ringleader: phases in which every worker has one update."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import follow, infos
from small_server import Pushed, operations, play

from hetjax.machine import Arrival, Join, Leave
from hetjax.schedule import MergeAction, MergeOp, asynchronous, ringleader

ALL = "0:1x8 1:1x8 2:1x8"
UPDATE = "accumulate+apply+fetch"
LAST = "clear+accumulate+apply+fetch"  # of a phase


def near(values, expected):
    np.testing.assert_allclose(values, expected, atol=1e-6)


class Tables(Pushed):
    """The merge's side of the contract: it sees the operations only.

    A gradient that enters without an update goes to the second table if there was an
    update since the last swap. After as many updates as the first table has workers,
    the second becomes the first.
    """

    def __init__(self):
        super().__init__()
        self.first, self.second, self.updates = {}, {}, 0

    def accumulate(self, k, difference, staleness, applies):
        table = self.second if self.updates and not applies else self.first
        table.setdefault(k, []).append(difference)

    def apply(self):
        means = [np.mean(each, 0) for each in self.first.values()]
        self.center = self.center - np.mean(means, 0)
        self.updates += 1
        if self.updates == len(self.first):
            self.first, self.second, self.updates = self.second, {}, 0


def test_phases():
    run = play(ringleader(batch_size=1), Tables(), 9)
    assert operations(run) == [
        "2/0: 0 accumulate",
        "3/1: 1 accumulate",
        "4/0: 0 accumulate",
        "6/0: 0 accumulate",
        "6/1: 1 accumulate",
        "7/2: 2 accumulate+apply+fetch",
        "8/0: 0 accumulate+apply+fetch",
        "9/1: 1 accumulate+apply+clear+fetch",
        "10/0: 0 accumulate",
    ]
    near(run.server.center, (0.25, 0.805556))
    near(run.given, [(0.555556, 0.138889), (0.25, 0.805556), (0.805556, -0.444444)])


def test_workers_may_take_the_present_model_at_every_report():
    run = play(ringleader(batch_size=1, refresh=True), Tables(), 9)
    assert operations(run)[-1] == "10/0: 0 accumulate+fetch"
    near(run.given, [(0.25, 0.805556), (0.25, 0.805556), (0.805556, -0.444444)])


def test_one_worker_is_sgd():
    run = play(ringleader(batch_size=1), Tables(), 5, (1,))
    sgd = play(asynchronous(batch_size=1), Pushed(), 5, (1,))
    near(run.server.center, sgd.server.center)


def test_transfers():
    def merges(**settings):
        policy = ringleader(batch_size=8, **settings)
        run = play(policy, Tables(), 3, (1, 4))
        return [m for _, actions in run.actions for m in actions.merges][:1]

    only = MergeAction((0,), op=MergeOp.ACCUMULATE, transfers=1)
    both = MergeAction((0,), op=MergeOp.ACCUMULATE | MergeOp.FETCH, transfers=2)
    assert merges() == [only]
    assert merges(refresh=True) == [both]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seconds=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_every_worker_has_one_update_per_phase_and_delays_are_bounded(seconds):
    """A gradient is used at most 2 k - 2 updates after its worker got its model."""
    k, updates = len(seconds), []
    tables = Tables()
    run = play(ringleader(batch_size=1), tables, 40, tuple(seconds))
    for event, actions in run.actions:
        for merge in actions.merges:
            if MergeOp.APPLY in merge.op:
                assert isinstance(event, Arrival)
                updates.append(event.worker)
    phases = [sorted(updates[n : n + k]) for n in range(0, len(updates) - k + 1, k)]
    assert phases == [list(range(k))] * len(phases)
    assert max(run.staleness) <= 2 * k - 2
    assert tables.version == len(updates)


# Workers that are lost and join: as many updates as workers in the first table


def test_a_worker_that_is_lost_before_its_update_has_it_without_a_gradient():
    events = (0, 1, 2, Leave(0, 2.0, lost=True), 2, 1, Join(0, 3.0), 1, 0)
    assert follow(ringleader(batch_size=8), infos(1.0, 1.0, 1.0), events) == [
        ALL,
        "merge 0 accumulate 0:1x8",
        "merge 1 accumulate 1:1x8",
        f"merge 2 {UPDATE} 2:1x8",
        "merge apply",
        "merge 2 accumulate 2:1x8",  # for the next phase
        f"merge 1 {LAST} 1:1x8",
        "0:1x8",
        "merge 1 accumulate 1:1x8",
        f"merge 0 {UPDATE} 0:1x8",  # the table is full
    ]


def test_a_worker_that_is_lost_while_the_table_fills_leaves_its_gradient():
    events = (0, Leave(0, 2.0, lost=True), 1, 2)
    assert follow(ringleader(batch_size=8), infos(1.0, 1.0, 1.0), events)[-2:] == [
        "merge 1 accumulate 1:1x8",
        f"merge 2 {UPDATE} merge apply 2:1x8",
    ]


def test_nobody_waits_for_a_worker_that_is_lost_without_a_gradient():
    events = (0, 1, Leave(2, 2.0, lost=True), 1, 0)
    assert follow(ringleader(batch_size=8), infos(1.0, 1.0, 1.0), events)[-2:] == [
        f"merge 1 {UPDATE} 1:1x8",
        f"merge 0 {LAST} 0:1x8",
    ]


def test_a_worker_that_joins_between_the_updates_waits_for_the_next_phase():
    workers = infos(1.0, 1.0, 1.0)
    workers = (*workers[:2], workers[2]._replace(present=False))
    events = (0, 1, Join(2, 3.0), 2, 0, 1, 0)
    assert follow(ringleader(batch_size=8), workers, events) == [
        "0:1x8 1:1x8",
        "merge 0 accumulate 0:1x8",
        f"merge 1 {UPDATE} 1:1x8",
        "2:1x8",
        "merge 2 accumulate 2:1x8",
        f"merge 0 {LAST} 0:1x8",
        "merge 1 accumulate 1:1x8",
        f"merge 0 {UPDATE} 0:1x8",
    ]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(choices=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
def test_the_merge_swaps_its_tables_when_the_policy_does(choices):
    """Workers report, are lost and join in any order: both count the same updates."""
    policy, tables = ringleader(batch_size=8), Tables()
    state, actions = policy.init(infos(1.0, 1.0, 1.0), 100)
    rounds = dict(actions.dispatch)
    for k, reports in choices:
        active = state.versions.roster.active
        if k not in active:
            event = Join(k, 0.0)
        elif reports:
            event = Arrival(k, rounds[k], 0.0, 0.0)
        else:
            event = Leave(k, 0.0, lost=True)
        state, actions = policy.react(state, event)
        rounds |= dict(actions.dispatch)
        for merge in actions.merges:
            for member in merge.members:
                applies = MergeOp.APPLY in merge.op
                tables.accumulate(member, np.zeros(2), 0, applies)
            if MergeOp.APPLY in merge.op:
                tables.apply()
        assert set(tables.first) == state.first
        assert set(tables.second) == state.second
        assert bool(tables.updates) == bool(state.to_update)


def test_refusals():
    with pytest.raises(ValueError, match="ringleader: there are no workers"):
        ringleader(batch_size=8).init((), 100)
    with pytest.raises(ValueError, match="batch_size=0: pass a number above 0"):
        ringleader(batch_size=0)
