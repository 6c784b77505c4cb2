"""The policy of a calibration: all rounds in order, and no worker alone by chance."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import follow, infos, machine, timeline

from hetjax.engine.decisions import decisions
from hetjax.machine import (
    ROOT,
    Arrival,
    Evaluated,
    Join,
    Leave,
    Merged,
    RunEnded,
    SimulatedClock,
    Timer,
)
from hetjax.schedule import Actions
from hetjax.schedule.policies.calibration_rounds import DONE, calibration_rounds


def played(policy, m):
    """All events with their actions; the run ends with `DONE`."""
    run = decisions(policy, SimulatedClock(m, seed=0), num_examples=1000)
    entries, end = [], None
    while end is None:
        try:
            entries.append(next(run))
        except RunEnded as ended:
            end = str(ended)
    assert end == DONE
    return entries


def rounds_of(entries):
    """(members, local round) of each round, once, in order."""
    actions = [o for _, o in entries if o.merges or o is entries[0][1]]
    return [(tuple(k for k, _ in o.dispatch), o.dispatch[0][1]) for o in actions]


# Tables


def test_each_alone_then_all_then_the_next_number_of_steps():
    policy = calibration_rounds(batch_sizes=(8, 16), local_steps=(1, 2), repeats=1)
    assert follow(policy, infos(1.0, 1.0), (0, 1, 0, 1, 0, 0, 1, 0, 1)) == [
        "0:1x8",
        "merge 0 1:1x8",
        "merge 1 0:1x8 1:1x8",
        "0:1x8",  # 1 has not arrived yet
        "",  # it has now, but 0 is busy
        "merge 01 0:1x8 1:1x8",
        "",  # once each: it waits
        "merge 01 0:2x8",
        "merge 0 1:2x8",
        "merge 1 0:2x8 1:2x8",
    ]


def test_the_faster_one_begins_again_until_the_slowest_has_arrived():
    """Steps of 1 and 2.5 s: worker 0 does three while worker 1 does one, twice."""
    policy = calibration_rounds(batch_sizes=(8,), local_steps=(1,), repeats=2)
    assert timeline(policy, machine(1.0, 2.5), 11) == [
        "0:1x8",
        "1 w0 from 0 > merge 0 1:1x8",
        "1 merged 0",
        "3.5 w1 from 1 > merge 1 0:1x8 1:1x8",
        "3.5 merged 1",
        "4.5 w0 from 3.5 > 0:1x8",
        "5.5 w0 from 4.5 > 0:1x8",
        "6 w1 from 3.5",
        "6.5 w0 from 5.5 > merge 01 0:1x8 1:1x8",
        "6.5 merged 01",
        "7.5 w0 from 6.5",  # it waits, as in a synchronous round
        "9 w1 from 6.5 > merge 01 0:1x8",
    ]


def test_a_single_worker_is_measured_alone():
    policy = calibration_rounds(batch_sizes=(8,), local_steps=(1, 3), repeats=2)
    with pytest.raises(RunEnded, match=DONE):
        follow(policy, infos(1.0), (0, 0, 0, 0))
    expected = ["0:1x8", "merge 0 0:3x8", "merge 0 0:1x8", "merge 0 0:3x8"]
    assert follow(policy, infos(1.0), (0, 0, 0)) == expected


def test_learning_rates_are_relative_to_the_largest_batch():
    policy = calibration_rounds(batch_sizes=(16, 64), local_steps=(1,), repeats=1)
    local_rounds = [
        local_round for _, local_round in rounds_of(played(policy, machine(1.0)))
    ]
    assert [(w.batch_size, w.lr_scale) for w in local_rounds] == [
        (16, 0.25),
        (64, 1.0),
    ]


def test_the_default_numbers_of_steps_and_repeats():
    """5 times 1 and 8 steps, for each of two workers and, twice, for both."""
    local_rounds = rounds_of(
        played(calibration_rounds(batch_sizes=(8,)), machine(1.0, 1.0))
    )
    assert len(local_rounds) == 5 * 2 * 4
    assert {local_round.local_steps for _, local_round in local_rounds} == {1, 8}


# Events that it ignores, and refusals


def test_other_events_change_nothing():
    policy = calibration_rounds(batch_sizes=(8,))
    state, _ = policy.init(infos(1.0, 1.0), 1000)
    for event in (
        Merged(ROOT, 1.0),
        Evaluated({"loss": 1.0}, 1.0),
        Timer("a", 1.0),
        Join(1, 1.0),
        Leave(1, 1.0),  # it was stopped: it finishes its round
    ):
        after, actions = policy.react(state, event)
        assert actions == Actions()
        # the policy notes who may be started, and does nothing else
        assert after.roster.working == state.roster.working
        assert after._replace(roster=state.roster) == state


def test_a_lost_worker_cannot_be_measured():
    policy = calibration_rounds(batch_sizes=(8,))
    state, _ = policy.init(infos(1.0, 1.0), 1000)
    name = infos(1.0, 1.0)[1].name
    with pytest.raises(ValueError, match=f"worker {name} was lost: no answer for 9 s"):
        policy.react(state, Leave(1, 1.0, True, "no answer for 9 s"))


@pytest.mark.parametrize("sizes", [(), (0,), (8, -1)])
def test_batch_sizes_are_positive(sizes):
    with pytest.raises(
        ValueError,
        match="batch_sizes=.*: pass (at least one|a sequence of whole) number",
    ):
        calibration_rounds(batch_sizes=sizes)


@pytest.mark.parametrize(
    "nothing", [{"local_steps": ()}, {"repeats": 0}, {"local_steps": (0,)}]
)
def test_an_empty_calibration_is_refused(nothing):
    """It would end before it began, and claim that everything was measured."""
    with pytest.raises(ValueError, match="steps|repeats"):
        calibration_rounds(batch_sizes=(8,), **nothing)


# Laws


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seconds=st.lists(st.floats(0.1, 3.0), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=3),
    local_steps=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    repeats=st.integers(1, 3),
    noise=st.floats(0.0, 1.0),
)
def test_every_round_is_measured_equally_often_and_never_half_alone(
    seconds, sizes, local_steps, repeats, noise
):
    """Until the last worker of a round has arrived once, every worker is busy.

    The exception is every other round of all workers, where each does one local round.
    """
    n = len(seconds)
    policy = calibration_rounds(
        batch_sizes=sizes, local_steps=local_steps, repeats=repeats
    )
    entries = played(policy, machine(*seconds, noise=noise))
    everybody = tuple(range(n))
    sets = [*((k,) for k in range(n)), *((everybody, everybody) if n > 1 else ())]
    kinds = list(itertools.product(sizes, local_steps))
    expected = [(m, *kind) for _ in range(repeats) for kind in kinds for m in sets]
    found = [(m, w.batch_size, w.local_steps) for m, w in rounds_of(entries)]
    assert found == expected
    members, busy, arrived, number = set(), set(), set(), -1
    for event, actions in entries:
        if isinstance(event, Arrival):
            busy.remove(event.worker)
            arrived.add(event.worker)
        if actions.merges or event is None:  # a round begins
            assert not busy
            members, arrived = {k for k, _ in actions.dispatch}, set()
            number += 1
        busy |= {k for k, _ in actions.dispatch}
        if number % len(sets) == n + 1:
            assert busy == members - arrived
        else:
            assert busy == members or arrived == members
