"""Rounds: all workers compute, then all merge. Tables, and laws on any clock."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import arrivals, follow, infos, machine

from hetjax.machine import Arrival, LocalRound, WorkerInfo
from hetjax.schedule import PUSH_FETCH, ROOT, Actions, MergeAction, fastest, rounds

WORKERS = infos(1.0, 3.0, 2.0)


# Tables for three workers


def test_no_worker_goes_on_before_the_last_one_arrived():
    all_workers = "0:2x8 1:2x8 2:2x8"
    assert follow(
        rounds(local_steps=2, batch_size=8), WORKERS, (1, 2, 0, 2, 0, 1, 0)
    ) == [
        all_workers,
        "",  # 1
        "",  # 2
        f"merge 012 {all_workers}",  # 0 was the last
        "",  # 2
        "",  # 0
        f"merge 012 {all_workers}",  # 1 was the last
        "",  # 0
    ]


def test_each_worker_has_its_own_steps_and_batches():
    policy = rounds(local_steps=(4, 1, 2), batch_size=(8, 2, 4.5))
    all_workers = "0:4x8 1:1x2 2:2x4.5"
    table = follow(policy, WORKERS, (0, 1, 2))
    assert table == [all_workers, "", "", f"merge 012 {all_workers}"]
    _, actions = policy.init(WORKERS, 1000)
    local_rounds = [local_round for _, local_round in actions.dispatch]
    assert local_rounds == [
        LocalRound(4, 8, 1.0),
        LocalRound(1, 2, 0.25),
        LocalRound(2, 4.5, 4.5 / 8),
    ]


def test_only_chosen_workers_take_part():
    policy = rounds(local_steps=(3, 1), batch_size=4, workers=lambda infos: (2, 0))
    both = "2:3x4 0:1x4"
    assert follow(policy, WORKERS, (0, 2, 2, 0)) == [
        both,
        "",
        f"merge 20 {both}",
        "",
        f"merge 20 {both}",
    ]


def test_the_fastest_worker_alone():
    policy = rounds(batch_size=4, workers=fastest(4))
    assert follow(policy, infos(2.0, 1.0, 3.0), (1, 1)) == [
        "1:1x4",
        "merge 1 1:1x4",
        "merge 1 1:1x4",
    ]


def test_numbers_may_be_numpy_s():
    policy = rounds(local_steps=np.array([4, 1, 2]), batch_size=np.array([8, 2, 4]))
    assert follow(policy, WORKERS, ()) == ["0:4x8 1:1x2 2:2x4"]


def test_steps_may_depend_on_the_workers_that_take_part():
    seen = []

    def local_steps(taking_part):
        seen.extend(w.index for w in taking_part)
        return [w.index + 1 for w in taking_part]

    policy = rounds(local_steps=local_steps, batch_size=4, workers=lambda infos: (1, 2))
    assert follow(policy, WORKERS, ()) == ["1:2x4 2:3x4"]
    assert seen == [1, 2]


@pytest.mark.parametrize("blocking", [True, False])
def test_the_action_says_whether_members_wait_for_the_merge(blocking):
    policy = rounds(batch_size=4, blocking=blocking)
    *_, last = arrivals(policy, machine(1.0, 3.0, 2.0), 3)
    assert last.actions.merges == (MergeAction((0, 1, 2), ROOT, PUSH_FETCH, blocking),)


# The fastest


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [((2.0, 1.0, 3.0), 1), ((1.0, 1.0, 1.0), 0), ((3.0, 2.0, 2.0), 1), ((5.0,), 0)],
)
def test_fastest(seconds, chosen):
    assert fastest(1)(infos(*seconds)) == (chosen,)


def test_fastest_includes_the_fixed_cost_of_a_step():
    def info(index, fixed, per_example):
        return WorkerInfo(index, f"w{index}", "gpu", (), fixed, per_example)

    crossing = info(0, 5.0, 0.0), info(1, 1.0, 1.0)  # 5 s against 1 s + 1 s/example
    assert fastest(1)(crossing) == (1,)
    assert fastest(8)(crossing) == (0,)


# Laws, for any durations


@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data(), n=st.integers(1, 6), noise=st.floats(0.0, 2.0))
def test_laws(data, n, noise):
    def numbers(each):
        return data.draw(st.lists(each, min_size=n, max_size=n))

    local_steps, sizes = numbers(st.integers(1, 5)), numbers(st.integers(1, 64))
    seconds = numbers(st.floats(0.1, 10.0))
    policy = rounds(local_steps=local_steps, batch_size=sizes)
    entries = arrivals(policy, machine(*seconds, noise=noise), 200)
    for number, entry in enumerate(entries):
        if number % n:  # the round is not over
            assert entry.actions == Actions()
            continue
        assert entry.busy == set(range(n))  # a new round: no worker idles
        assert [k for k, _ in entry.actions.dispatch] == list(range(n))
        assert [w.local_steps for _, w in entry.actions.dispatch] == local_steps
        assert [w.batch_size for _, w in entry.actions.dispatch] == sizes
        for _, local_round in entry.actions.dispatch:  # linear scaling
            assert local_round.lr_scale / local_round.batch_size == pytest.approx(
                1 / max(sizes)
            )
        merges = [merge.members for merge in entry.actions.merges]
        assert merges == ([tuple(range(n))] if number else [])


def test_old_states_stay_valid():
    """`react` changes no state in place: an old state gives the old answers."""
    policy = rounds(batch_size=4)
    state, actions = policy.init(WORKERS, 1000)
    assert actions.dispatch == tuple((k, LocalRound(1, 4)) for k in range(3))
    arrival = Arrival(0, LocalRound(1, 4), 0.0, 1.0)
    first = policy.react(state, arrival)
    policy.react(first[0], arrival)
    assert policy.react(state, arrival) == first


# Errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_steps": (1, 2)}, "local_steps has 2 entries for 3 workers"),
        (
            {"local_steps": lambda infos: (1,) * 4},
            "local_steps has 4 entries for 3 workers",
        ),
        ({"batch_size": (8, 8, 8, 8)}, "batch_size has 4 entries for 3 workers"),
        ({"local_steps": 0}, "local_steps=0: pass a whole number of at least"),
        (
            {"local_steps": (1, 0, 1)},
            r"local_steps=\(1, 0, 1\): pass a whole number",
        ),
        ({"local_steps": -2}, "local_steps=-2: pass a whole number of at least"),
        ({"batch_size": 0}, "batch_size=0: pass a number above 0 or a seq"),
        ({"batch_size": (8, -8, 8)}, "pass a number above 0 or a seq"),
        ({"batch_size": lambda: 8}, "batch_size=.*: pass a number above 0 or a seq"),
        (
            {"batch_size": float("nan")},
            "batch_size=nan: pass a number above 0 or a seq",
        ),
        ({"local_steps": float("inf")}, "local_steps=inf: pass a whole number of"),
        (
            {"local_steps": lambda infos: float("inf")},
            "local_steps=inf: pass a number above 0 .*, finite in float32",
        ),
        # half a step would be no step, which takes no time: an endless loop
        ({"local_steps": 0.5}, "local_steps=0.5: pass a whole number of at least"),
        (
            {"local_steps": (1, 1.5, 1)},
            "pass a whole number of at least 1 or a sequence",
        ),
        (
            {"local_steps": lambda infos: (1, 1.5, 1)},
            r"local_steps=\(1, 1.5, 1\): every entry must be a whole number",
        ),
        ({"workers": lambda infos: ()}, "no workers take part"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        rounds(**({"batch_size": 8} | settings)).init(WORKERS, 1000)


@pytest.mark.parametrize("workers", [None, fastest(4)])
def test_no_workers(workers):
    with pytest.raises(ValueError, match="rounds: there are no workers"):
        rounds(batch_size=8, workers=workers).init((), 1000)
