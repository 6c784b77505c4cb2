"""Ringmaster: gradients that are too old are dropped, or their rounds cancelled."""

import numpy as np
import pytest
from policy_driver import follow, infos
from small_server import Pushed, operations, play

from hetjax.machine import Join, Leave
from hetjax.schedule import MergeAction, MergeOp, asynchronous, bounded_delay

ALL = "0:1x8 1:1x8 2:1x8"


def near(values, expected):
    np.testing.assert_allclose(values, expected, atol=1e-6)


def test_old_gradients_are_dropped():
    policy = bounded_delay(batch_size=1, max_delay=2, stop="ignore")
    run = play(policy, Pushed(), 7)
    assert run.reports == ["2/0", "3/1", "4/0", "6/0", "6/1", "7/2", "8/0"]
    assert operations(run)[4:6] == ["6/1: 1 fetch", "7/2: 2 fetch"]
    assert run.staleness == [0, 1, 1, 0, 0]  # of those that were applied
    near(run.server.center, (0.4375, 0.8125))
    near(run.given[1:], [(0.875, 0.625)] * 2)


def test_old_rounds_are_cancelled():
    policy = bounded_delay(batch_size=1, max_delay=2)
    run = play(policy, Pushed())
    assert run.reports == ["2/0", "3/1", "4/0", "6/0", "8/0", "9/1"]
    assert operations(run) == [
        "2/0: 0 fetch+push",
        "3/1: 1 fetch+push, 2 fetch",  # worker 2 would be two updates late
        "4/0: 0 fetch+push",
        "6/0: 0 fetch+push, 12 fetch",
        "8/0: 0 fetch+push",
        "9/1: 1 fetch+push, 2 fetch",
    ]
    near(run.server.center, (-0.5, 1.0))
    near(run.given[0], (0.4375, 0.8125))


def test_a_larger_bound_cancels_less():
    run = play(bounded_delay(batch_size=1, max_delay=4), Pushed())
    near(run.server.center, (0.6875, -0.4375))
    near(run.given[1:], [(1.125, -0.625), (0.875, 0.625)])


@pytest.mark.parametrize("stop", ["cancel", "ignore"])
def test_a_bound_that_is_never_reached_is_asynchronous_sgd(stop):
    free = play(asynchronous(batch_size=1), Pushed(), 40)
    run = play(bounded_delay(batch_size=1, max_delay=99, stop=stop), Pushed(), 40)
    assert operations(run) == operations(free)
    near(run.server.center, free.server.center)


def test_the_fields_of_the_actions():
    run = play(bounded_delay(batch_size=8, max_delay=1), Pushed(), 1, (1, 2, 3))
    (_, first), (_, actions) = run.actions
    assert actions.cancel == (1, 2)
    assert actions.merges == (
        MergeAction((0,)),
        MergeAction((1, 2), op=MergeOp.FETCH, transfers=1),
    )
    assert actions.dispatch == first.dispatch


def test_the_adaptive_bound_is_the_root_of_the_updates():
    """R is 1 before and after update 1 to 3, and 2 after update 4 to 8."""
    policy = bounded_delay(batch_size=8)
    events = (0, 0, 0, 0, 0, 1)
    assert follow(policy, infos(1.0, 9.0), events) == [
        "0:1x8 1:1x8",
        "cancel 1 merge 0 merge 1 fetch 0:1x8 1:1x8",
        "cancel 1 merge 0 merge 1 fetch 0:1x8 1:1x8",
        "cancel 1 merge 0 merge 1 fetch 0:1x8 1:1x8",
        "merge 0 0:1x8",  # a delay of 1 is allowed now
        "cancel 1 merge 0 merge 1 fetch 0:1x8 1:1x8",
        "merge 1 1:1x8",
    ]


def test_a_stopped_worker_is_cancelled_and_does_not_begin_again():
    policy = bounded_delay(batch_size=8, max_delay=1)
    events = (Leave(2, 1.0), 0, Join(2, 2.0), 2)
    assert follow(policy, infos(1.0, 1.0, 1.0), events) == [
        ALL,
        "",
        "cancel 1 cancel 2 merge 0 merge 1 fetch 0:1x8 1:1x8",
        "2:1x8",
        "cancel 0 cancel 1 merge 2 merge 01 fetch 2:1x8 0:1x8 1:1x8",
    ]


def test_a_lost_worker_is_not_cancelled_and_begins_at_the_present_model():
    policy = bounded_delay(batch_size=8, max_delay=2, stop="ignore")
    events = (Leave(1, 1.0, lost=True), 0, 0, Join(1, 2.0), 0, 1)
    assert follow(policy, infos(1.0, 1.0), events) == [
        "0:1x8 1:1x8",
        "",
        "merge 0 0:1x8",
        "merge 0 0:1x8",
        "1:1x8",
        "merge 0 0:1x8",
        "merge 1 1:1x8",  # one update late; it was given the model of the second
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_delay": 0}, "max_delay=0: pass a whole number of at least 1 or"),
        ({"max_delay": "small"}, "max_delay='small': pass a whole number of at leas"),
        ({"stop": "wait"}, "stop='wait': choose one of cancel, ignore"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        bounded_delay(batch_size=8, **settings)
    with pytest.raises(ValueError, match="bounded_delay: there are no workers"):
        bounded_delay(batch_size=8).init((), 100)
