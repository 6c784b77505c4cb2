"""Rounds whose workers join and leave, and the steps that each worker gets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import follow, infos, machine, timeline

from hetjax.machine import Join, Leave, WorkerInfo, preset
from hetjax.schedule import Actions, equal_time, one_per_device, rounds

WORKERS = infos(1.0, 3.0, 2.0)
ALL = "0:1x8 1:1x8 2:1x8"


def test_a_leaving_worker_finishes_its_round_and_a_joining_one_waits():
    policy = rounds(batch_size=8)
    events = (0, Leave(2, 1.0), 2, 1, 1, Join(2, 2.0), 0, 2, 0, 1)
    assert follow(policy, WORKERS, events) == [
        ALL,
        "",
        "",  # 2 leaves: it is busy
        "",
        "merge 012 0:1x8 1:1x8",  # with 2's round
        "",
        "",  # 2 joins: it is not in this round
        f"merge 01 {ALL}",
        "",
        "",
        f"merge 012 {ALL}",
    ]


def test_a_worker_that_leaves_and_joins_in_one_round_stays():
    policy = rounds(batch_size=8)
    events = (0, Leave(0, 1.0), Join(0, 1.0), 1, 2)
    assert follow(policy, WORKERS, events)[-1] == f"merge 012 {ALL}"


def test_a_worker_that_was_not_chosen_begins_when_it_joins():
    policy = rounds(
        batch_size=(8, 4, 2), local_steps=(1, 2, 3), first=lambda infos: (1,)
    )
    assert follow(policy, WORKERS, (1, Join(0, 1.0), Join(2, 1.0), 1, 0)) == [
        "1:2x4",
        "merge 1 1:2x4",
        "",
        "",
        "merge 1 0:1x8 1:2x4 2:3x2",  # each with its own steps and size
        "",
    ]


def test_workers_that_do_not_take_part_may_join_and_leave():
    policy = rounds(batch_size=8, workers=lambda infos: (0, 1))
    state, _ = policy.init(WORKERS, 1000)
    for event in (Leave(2, 1.0), Join(2, 1.0)):
        state, actions = policy.react(state, event)
        assert actions == Actions()
        assert state.members == (0, 1)


def test_after_the_last_worker_left_a_joining_one_begins_a_round():
    policy = rounds(batch_size=8)
    events = (0, 1, Leave(0, 1.0), Leave(1, 1.0), 0, 1, Join(1, 2.0), 1)
    assert follow(policy, infos(1.0, 1.0), events) == [
        "0:1x8 1:1x8",
        "",
        "merge 01 0:1x8 1:1x8",
        "",
        "",
        "",
        "merge 01",
        "1:1x8",
        "merge 1 1:1x8",
    ]


def test_a_worker_alone_sends_nothing():
    """A merge takes 0.5 s, but a merge of one worker takes no time."""
    m = machine(1.0, latency=0.25)
    assert timeline(rounds(batch_size=8), m, 3) == [
        "0:1x8",
        "1 w0 from 0 > merge 0 0:1x8",
        "1 merged 0",
        "2 w0 from 1 > merge 0 0:1x8",
    ]


@pytest.mark.parametrize(("blocking", "start"), [(True, 2.5), (False, 2.0)])
def test_the_next_round_may_overlap_with_the_merge(blocking, start):
    policy = rounds(batch_size=8, blocking=blocking)
    table = timeline(policy, machine(1.0, 2.0, latency=0.25), 4)
    assert table == [
        "0:1x8 1:1x8",
        "1 w0 from 0",
        "2 w1 from 0 > merge 01 0:1x8 1:1x8",
        "2.5 merged 01",
        f"{start + 1:g} w0 from {start:g}",
    ]


# Workers that begin


def on_devices(*devices):
    return tuple(
        WorkerInfo(k, f"w{k}", "gpu", (), 1.0, 0.0, device)
        for k, device in enumerate(devices)
    )


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        ("aabb", (0, 2)),
        ("abab", (0, 1)),
        ("aaaa", (0,)),
        (("", "", ""), (0, 1, 2)),  # each has its own device
        (("a", "", "a"), (0, 1)),
    ],
)
def test_one_per_device(devices, chosen):
    assert one_per_device(on_devices(*devices)) == chosen


# Equal time


def timed(*seconds):
    """Workers whose step takes these seconds with any batch."""
    return tuple(
        WorkerInfo(k, f"w{k}", "gpu", (), s, 0.0) for k, s in enumerate(seconds)
    )


@pytest.mark.parametrize(
    ("local_steps", "seconds", "expected"),
    [
        (32, (1.0, 2.0), (32, 16)),  # the settings of Biased Local SGD
        (32, (8.0, 1.0), (4, 32)),
        (32, (1.0, 33.6), (32, 1)),
        (32, (1.0, 100.0), (32, 1)),  # at least one
        (4, (3.0, 2.0, 1.0), (1, 2, 4)),  # 4 / 3 rounded
        (5, (1.0, 1.0), (5, 5)),
        (7, (2.0,), (7,)),
    ],
)
def test_equal_time(local_steps, seconds, expected):
    assert equal_time(local_steps, 8)(timed(*seconds)) == expected


def test_equal_time_of_a_gpu_and_a_cpu():
    """docs/algorithms E.1: 0.1940 s against 6.5230 s for 128 examples is 33.6."""
    workers = preset("rtx4090+epyc7543").worker_infos(0.0)
    assert equal_time(32, 128)(workers) == (32, 1)
    assert equal_time(336, 128)(workers) == (336, 10)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seconds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6),
    local_steps=st.integers(1, 100),
)
def test_equal_time_is_as_equal_as_whole_steps_allow(seconds, local_steps):
    tau = equal_time(local_steps, 8)(timed(*seconds))
    budget = local_steps * min(seconds)
    assert max(tau) == local_steps
    for t, count in zip(seconds, tau, strict=True):
        assert count == 1 or abs(count * t - budget) <= t * (0.5 + 1e-9)
