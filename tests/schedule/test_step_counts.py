"""Local steps per worker: dynamic local updates, from expected and measured seconds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import follow, infos, timeline
from policy_driver import machine as machine_of

from hetjax.machine import LocalRound, WorkerInfo
from hetjax.schedule import (
    asynchronous,
    dynamic_local_updates,
    equal_time,
    measured_local_updates,
)


def timed(*seconds):
    return tuple(
        WorkerInfo(k, f"w{k}", "gpu", (), s, 0.0) for k, s in enumerate(seconds)
    )


@pytest.mark.parametrize(
    ("local_steps", "seconds", "expected"),
    [
        (7, (2.0, 3.0, 7.0), (7, 4, 2)),  # of docs/algorithms L.3
        (4, (3.0, 2.0, 1.0), (1, 2, 4)),
        (8, (1.0, 1.5), (8, 5)),  # 5.33; and `equal_time` agrees
        (7, (1.0, 1.5), (7, 4)),  # 4.67, which `equal_time` rounds to 5
        (5, (1.0, 100.0), (5, 1)),  # at least one
        (3, (0.1, 0.3, 0.1), (3, 1, 3)),  # 3 * 0.1 / 0.3 is 0.9999...
        (9, (4.0,), (9,)),
    ],
)
def test_dynamic_local_updates(local_steps, seconds, expected):
    assert dynamic_local_updates(local_steps, 8)(timed(*seconds)) == expected


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seconds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6),
    local_steps=st.integers(1, 100),
)
def test_no_round_is_longer_than_the_fastest_workers(seconds, local_steps):
    steps = dynamic_local_updates(local_steps, 8)(timed(*seconds))
    longest = local_steps * min(seconds) * (1 + 1e-6)
    assert max(steps) == local_steps
    assert all(n == 1 or n * t <= longest for n, t in zip(steps, seconds, strict=True))
    most = equal_time(local_steps, 8)(timed(*seconds))
    assert all(0 <= b - n <= 1 for n, b in zip(steps, most, strict=True))


def measured(rule, *rounds):
    """The rule's state for three workers after rounds (worker, steps, seconds)."""
    state = rule.init(infos(1.0, 1.0, 1.0))
    for worker, steps, seconds in rounds:
        state = rule.observe(state, worker, LocalRound(steps, 8), seconds)
    return state


def test_measured_seconds_replace_the_expected_ones():
    rule = measured_local_updates(8)
    state = measured(rule, (0, 8, 8.0), (1, 8, 24.0))
    everyone = (0, 1, 2)
    assert [rule.count(state, k, everyone) for k in everyone] == [8, 2, 8]
    # without worker 0, which has left, worker 1 is the fastest
    assert [rule.count(state, k, (1, 2)) for k in (1, 2)] == [8, 8]


@pytest.mark.parametrize(("share", "steps"), [(1.0, 2), (0.5, 4), (0.25, 5)])
def test_seconds_are_a_moving_average(share, steps):
    """Worker 1 took as long as worker 0, and now four times: (1 - a) 1 + a 4 s."""
    rule = measured_local_updates(10, share=share)
    state = measured(rule, (0, 1, 1.0), (1, 1, 1.0), (1, 2, 8.0))
    assert rule.count(state, 1, (0, 1, 2)) == steps


def test_rounds_that_take_no_time():
    rule = measured_local_updates(3)
    state = measured(rule, (0, 3, 0.0), (1, 3, 3.0))
    assert [rule.count(state, k, (0, 1, 2)) for k in range(3)] == [3, 1, 3]


def test_an_asynchronous_worker_gets_the_measured_number_of_steps():
    """Nobody is measured at the start: at 4 s worker 0 is the fastest so far."""
    policy = asynchronous(batch_size=8, local_steps=measured_local_updates(4))
    assert timeline(policy, machine_of(1.0, 3.0), 7) == [
        "0:4x8 1:4x8",
        "4 w0 from 0 > merge 0 0:4x8",
        "4 merged 0",
        "8 w0 from 4 > merge 0 0:4x8",
        "8 merged 0",
        "12 w0 from 8 > merge 0 0:4x8",
        "12 merged 0",
        "12 w1 from 0 > merge 1 1:1x8",  # 4 / 3 steps
    ]


@pytest.mark.parametrize(
    ("local_steps", "table"),
    [
        ((3, 1, 2), ["0:3x8 1:1x8 2:2x8", "merge 0 0:3x8"]),
        (
            lambda workers: [w.index + 1 for w in workers],
            ["0:1x8 1:2x8 2:3x8", "merge 0 0:1x8"],
        ),
        (lambda workers: 5, ["0:5x8 1:5x8 2:5x8", "merge 0 0:5x8"]),
    ],
)
def test_steps_per_worker(local_steps, table):
    policy = asynchronous(batch_size=8, local_steps=local_steps)
    assert follow(policy, infos(1.0, 1.0, 1.0), (0,)) == table


@pytest.mark.parametrize(
    ("local_steps", "message"),
    [
        ((1, 2), "local_steps has 2 entries for 3 workers"),
        ((1, 0, 2), r"local_steps=\(1, 0, 2\): pass"),
        (lambda workers: (1, 1.5, 2), "every entry must be a whole number"),
        ("many", "local_steps='many': pass a whole number of at least 1 or"),
    ],
)
def test_refusals(local_steps, message):
    with pytest.raises(ValueError, match=message):
        asynchronous(batch_size=8, local_steps=local_steps).init(infos(1, 1, 1), 100)
