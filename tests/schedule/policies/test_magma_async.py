"""MagmaDNN's policy: copies, gradients, and the steps of the master. Tables."""

import itertools

import pytest
from policy_driver import arrivals, follow, infos, machine, timeline

from hetjax.engine.decisions import decisions
from hetjax.machine import Arrival, EvaluationDue, Leave, LocalRound, SimulatedClock
from hetjax.schedule import Actions, MergeAction, MergeOp, magma_async

WORKERS = infos(1.0, 4.0, 2.0)  # 1 is the slowest, and so the master


def test_slaves_copy_then_compute_then_add():
    policy = magma_async(batch_size=8)
    assert follow(policy, WORKERS, (0, 2, 0, 0, 2)) == [
        "0:0x8 2:0x8",
        "merge 0 step+subtract+fetch 0:1x8",
        "merge 2 step+subtract+fetch 2:1x8",
        "merge 0 step+push 0:0x8",
        "merge 0 step+subtract+fetch 0:1x8",
        "merge 2 step+push 2:0x8",
    ]


def test_the_link_is_the_lock():
    """Copies take 1 s, gradients 2 and 3 s, an addition or a subtraction 0.25 s."""
    policy = magma_async(batch_size=8, server_step_seconds=0.5, copy_seconds=1.0)
    assert timeline(policy, machine(2.0, 8.0, 3.0, latency=0.25), 10) == [
        "0:0x8 2:0x8",
        "1 w0 from 0 > merge 0 step+subtract+fetch 0:1x8",
        "1 w2 from 0 > merge 2 step+subtract+fetch 2:1x8",  # waits for 0's copy
        "1.25 merged 0",
        "1.5 merged 2",
        "3.25 w0 from 1.25 > merge 0 step+push 0:0x8",
        "3.5 merged 0",
        "4.5 w0 from 3.5 > merge 0 step+subtract+fetch 0:1x8",
        "4.5 w2 from 1.5 > merge 2 step+push 2:0x8",
        "4.75 merged 0",
        "5 merged 2",
    ]


def test_a_copy_that_subtracts_nothing_needs_no_lock():
    """With "swap": at 4 s worker 2 adds, which holds the link from 7 to 11 s; worker 0
    copies in the meantime, and its gradient begins at 8 s."""
    policy = magma_async(
        batch_size=8, server_step_seconds=0.5, copy_seconds=1.0, subtract="swap"
    )
    assert timeline(policy, machine(2.0, 8.0, 3.0, latency=4.0), 10) == [
        "0:0x8 2:0x8",
        "1 w0 from 0 > merge 0 step+fetch 0:1x8",
        "1 merged 0",
        "1 w2 from 0 > merge 2 step+fetch 2:1x8",
        "1 merged 2",
        "3 w0 from 1 > merge 0 step+push 0:0x8",  # until 7
        "4 w2 from 1 > merge 2 step+push 2:0x8",  # from 7 to 11
        "7 merged 0",
        "8 w0 from 7 > merge 0 step+fetch 0:1x8",
        "8 merged 0",
        "10 w0 from 8 > merge 0 step+push 0:0x8",
    ]


def test_the_masters_steps_are_counted_before_an_evaluation():
    """A server step takes 0.5 s: 3 until 1.8 s, and 1 more until 0 arrives at 2 s."""
    policy = magma_async(batch_size=8, server_step_seconds=0.5, copy_seconds=2.0)
    state, actions = policy.init(WORKERS, 1000)
    before = MergeAction(
        (1,), op=MergeOp.STEP, server_steps=3, transfers=0, blocking=False
    )
    state, due = policy.react(state, EvaluationDue(1.8))
    assert due == Actions(merges=(before,))
    assert policy.react(state, EvaluationDue(1.9)) == (state, Actions())  # no new step
    arrival = Arrival(0, dict(actions.dispatch)[0], 0.0, 2.0)
    _, (merges, *_) = policy.react(state, arrival)
    assert [m.server_steps for m in merges] == [1]


def test_a_new_master_that_is_busy_steps_when_it_arrives():
    policy = magma_async(batch_size=8, server_step_seconds=0.5, copy_seconds=2.0)
    state, actions = policy.init(WORKERS, 1000)
    state, _ = policy.react(state, Leave(1, 1.0, lost=True))  # 2 is the master now
    assert policy.react(state, EvaluationDue(1.8)) == (state, Actions())
    arrival = Arrival(2, dict(actions.dispatch)[2], 0.0, 2.0)
    state, (merges, *_) = policy.react(state, arrival)
    assert [m.server_steps for m in merges] == [4]
    _, (merges, *_) = policy.react(state, EvaluationDue(2.6))
    assert [(m.members, m.server_steps) for m in merges] == [((2,), 1)]


def test_without_a_master_there_are_no_steps():
    policy = magma_async(batch_size=8, server_step_seconds=0.5)
    state, _ = policy.init(WORKERS, 1000)
    for k in range(3):
        state, _ = policy.react(state, Leave(k, 1.0, lost=True))
    assert policy.react(state, EvaluationDue(1.8)) == (state, Actions())


@pytest.mark.parametrize("subtract", ["before", "swap"])
def test_server_steps_are_those_since_the_last_action(subtract):
    """At each arrival there are floor(time / 0.5) server steps so far."""
    policy = magma_async(
        batch_size=8, server_step_seconds=0.5, copy_seconds=0.75, subtract=subtract
    )
    clock = SimulatedClock(machine(1.25, 8.0, 3.0), seed=0)
    table = [
        (event.time, merge.server_steps)
        for event, actions in itertools.islice(
            decisions(policy, clock, num_examples=1), 60
        )
        for merge in actions.merges
    ]
    # 0 copies from 0, 2, 4, ... and computes from 0.75, 2.75, ...; 2 from 0, 3.75, ...
    assert table[:7] == [
        (0.75, 1),
        (0.75, 0),
        (2.0, 3),
        (2.75, 1),
        (3.75, 2),  # 2's gradient
        (4.0, 1),
        (4.5, 1),  # 2's second copy
    ]
    so_far = 0
    for time, server_steps in table:
        so_far += server_steps
        assert so_far == time // 0.5


@pytest.mark.parametrize(
    ("seconds", "master"), [((1.0, 4.0, 2.0), 1), ((4.0, 1.0, 4.0), 0), ((1.0, 2.0), 1)]
)
def test_the_slowest_is_the_master_and_never_computes(seconds, master):
    """The first of several equally slow workers."""
    entries = arrivals(magma_async(batch_size=1), machine(*seconds, noise=0.5), 50)
    for entry in entries:
        assert entry.busy == set(range(len(seconds))) - {master}


def test_a_server_step_and_a_copy_take_a_tenth_of_the_masters_batch():
    """4 s for one example, half of it fixed: 2 + 2 * 9 = 20 s for nine."""
    policy = magma_async(batch_size=9)
    state, actions = policy.init(WORKERS, 1000)
    assert [local_round for _, local_round in actions.dispatch] == [
        LocalRound(0, 9, seconds=2.0)
    ] * 2
    assert state.tick == 2.0
    given = magma_async(batch_size=9, server_step_seconds=3.0, copy_seconds=5.0)
    state, actions = given.init(WORKERS, 1000)
    assert (state.tick, actions.dispatch[0][1].seconds) == (3.0, 5.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subtract": "never"}, "subtract='never': choose one of"),
        (
            {"server_step_seconds": 0.0},
            "server_step_seconds=0.0: pass a number above 0",
        ),
        ({"copy_seconds": -1.0}, "copy_seconds=-1.0: pass a number above 0"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        magma_async(batch_size=8, **settings)


@pytest.mark.parametrize("n", [0, 1])
def test_a_master_alone(n):
    with pytest.raises(ValueError, match=f"need 2 workers, not {n}"):
        magma_async(batch_size=8).init(infos(*(1.0,) * n), 1000)
