"""Rennala and Malenia: gradients are collected at one model until enough are in."""

import numpy as np
import pytest
from policy_driver import follow, infos
from small_server import Pushed, operations, play

from hetjax.machine import Join, Leave
from hetjax.schedule import MergeAction, MergeOp, bounded_delay, collected

ALL = "0:1x8 1:1x8 2:1x8"
DONE = "accumulate+apply+fetch"


def near(values, expected):
    np.testing.assert_allclose(values, expected, atol=1e-6)


class Sums(Pushed):
    """The mean of all gradients (Rennala), or of each worker's mean (Malenia)."""

    def __init__(self, per_worker=False):
        super().__init__()
        self.per_worker, self.entries = per_worker, {}

    def accumulate(self, k, difference, staleness, applies):
        assert staleness == 0
        key = k if self.per_worker else "all"
        self.entries.setdefault(key, []).append(difference)

    def apply(self):
        means = [np.mean(each, 0) for each in self.entries.values()]
        self.center, self.entries = self.center - np.mean(means, 0), {}


def test_unfinished_gradients_are_cancelled():
    run = play(collected(batch_size=1, gradients=2), Sums())
    assert run.reports == ["2/0", "3/1", "5/0", "6/1", "8/0", "9/1"]
    assert operations(run)[:2] == [
        "2/0: 0 accumulate",
        "3/1: 1 accumulate+apply+fetch, 02 fetch",
    ]
    near(run.server.center, (0.8125, -0.0625))


def test_unfinished_gradients_are_dropped():
    run = play(collected(batch_size=1, gradients=2, stop="ignore"), Sums())
    assert operations(run) == [
        "2/0: 0 accumulate",
        "3/1: 1 accumulate+apply+fetch",
        "4/0: 0 fetch",
        "6/0: 0 accumulate",
        "6/1: 1 accumulate+apply+fetch",
        "7/2: 2 fetch",
    ]
    near(run.server.center, (1.125, -0.625))
    near(run.given[0], (0.75, -0.25))


def test_malenia_waits_for_every_worker():
    policy = collected(batch_size=1, gradients=3, per_worker=True)
    run = play(policy, Sums(per_worker=True))
    rows = operations(run)
    assert len(rows) == 6
    assert rows[-1] == "7/2: 2 accumulate+apply+fetch, 01 fetch"
    assert all("apply" not in row for row in rows[:-1])
    near(run.server.center, (0.805556, -0.444444))


@pytest.mark.parametrize(
    ("gradients", "order", "applied"),
    [
        (2, (0, 0, 0, 1), 4),  # all have one
        (3, (0, 0, 1, 0), 4),  # with (2, 1) 1.33 < 3/2; (mean of 1/3 and 1)^-1 = 3/2
        (4, (0, 0, 1, 1), 4),  # (1/2)^-1 = 2 = 4/2
        (4, (0, 0, 0, 0, 1, 1), 6),  # 1.6 with (4, 1), 2.67 with (4, 2)
    ],
)
def test_malenias_condition(gradients, order, applied):
    policy = collected(batch_size=8, gradients=gradients, per_worker=True)
    rows = follow(policy, infos(1.0, 1.0), order)
    assert [k for k, row in enumerate(rows) if DONE in row] == [applied]


def test_one_gradient_is_ringmaster_with_a_bound_of_one():
    class Alone(Pushed):
        def accumulate(self, k, difference, staleness, applies):
            self.push(k, difference, staleness)

        def apply(self):
            pass

    for stop in ("cancel", "ignore"):
        one = play(collected(batch_size=1, gradients=1, stop=stop), Alone(), 20)
        bound = bounded_delay(batch_size=1, max_delay=1, stop=stop)
        bounded = play(bound, Pushed(), 20)
        assert one.reports == bounded.reports
        near(one.server.center, bounded.server.center)


@pytest.mark.parametrize("per_worker", [False, True])
def test_equal_speeds_and_one_gradient_each_are_synchronous(per_worker):
    policy = collected(batch_size=8, gradients=3, per_worker=per_worker)
    assert follow(policy, infos(1.0, 1.0, 1.0), (0, 1, 2)) == [
        ALL,
        "merge 0 accumulate 0:1x8",
        "merge 1 accumulate 1:1x8",
        f"cancel 0 cancel 1 merge 2 {DONE} merge 01 fetch 2:1x8 0:1x8 1:1x8",
    ]


def test_the_fields_of_the_merges():
    run = play(collected(batch_size=8, gradients=2), Sums(), 2, (1, 2, 3))
    merges = [m for _, actions in run.actions for m in actions.merges]
    both = MergeOp.ACCUMULATE | MergeOp.APPLY | MergeOp.FETCH
    assert merges == [
        MergeAction((0,), op=MergeOp.ACCUMULATE, transfers=1),
        MergeAction((0,), op=both, transfers=2),
        MergeAction((1, 2), op=MergeOp.FETCH, transfers=1),
    ]


def test_malenia_goes_on_without_a_lost_worker():
    """Worker 2 was the last one without a gradient; nobody's report completes it."""
    policy = collected(batch_size=8, gradients=2, per_worker=True)
    events = (0, 1, Leave(2, 2.0, lost=True), Join(2, 3.0), 0, 1, 2)
    assert follow(policy, infos(1.0, 1.0, 1.0), events) == [
        ALL,
        "merge 0 accumulate 0:1x8",
        "merge 1 accumulate 1:1x8",
        "cancel 0 cancel 1 merge apply merge 01 fetch 0:1x8 1:1x8",
        "2:1x8",
        "merge 0 accumulate 0:1x8",
        "merge 1 accumulate 1:1x8",
        f"cancel 0 cancel 1 merge 2 {DONE} merge 01 fetch 2:1x8 0:1x8 1:1x8",
    ]


def test_gradients_of_a_worker_that_is_lost_still_count():
    policy = collected(batch_size=8, gradients=2)
    events = (0, Leave(0, 2.0, lost=True), 1)
    assert follow(policy, infos(1.0, 1.0), events)[-1] == f"merge 1 {DONE} 1:1x8"


def test_a_stopped_workers_late_gradient_is_dropped_without_a_fetch():
    policy = collected(batch_size=8, gradients=1, stop="ignore")
    events = (Leave(1, 1.0), 0, 1, Join(1, 3.0), 1)
    assert follow(policy, infos(1.0, 1.0), events) == [
        "0:1x8 1:1x8",
        "",
        f"merge 0 {DONE} 0:1x8",
        "",
        "1:1x8",
        f"merge 1 {DONE} 1:1x8",
    ]


def test_refusals():
    with pytest.raises(ValueError, match="gradients=0: pass a whole number of at l"):
        collected(batch_size=8, gradients=0)
    with pytest.raises(ValueError, match="stop=True: choose one of cancel, ignore"):
        collected(batch_size=8, gradients=2, stop=True)
    with pytest.raises(ValueError, match="collected: there are no workers"):
        collected(batch_size=8, gradients=2).init((), 100)
