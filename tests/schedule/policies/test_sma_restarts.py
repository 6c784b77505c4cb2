"""When merges restart: when the learning rate drops, or when nothing improves."""

import pytest
from policy_driver import follow, infos

from hetjax.machine import Arrival, Evaluated, Merged
from hetjax.schedule import (
    LearningRate,
    Progress,
    hierarchical,
    on_plateau,
    on_rate_drop,
    rounds,
    sma_restarts,
)
from hetjax.schedule.policies.sma_restarts import Condition

WORKERS = infos(1.0, 3.0)
BOTH = "0:1x8 1:1x8"
START = Progress(0, 0.0, 0, 0.0)


def due_at(*updates):
    """A condition that is due after that many updates."""
    return Condition(
        init=lambda: (),
        observe=lambda memory, progress, event: (
            memory,
            isinstance(event, Arrival) and progress.updates in updates,
        ),
    )


def test_the_next_merge_restarts_and_only_that():
    policy = sma_restarts(rounds(batch_size=8), due_at(3))
    assert follow(policy, WORKERS, (0, 1, 1, 0, 1, 0)) == [
        BOTH,
        "",
        f"merge 01 {BOTH}",
        "",  # due, but no worker merges
        f"merge 01 push+fetch+reset_to_center {BOTH}",
        "",
        f"merge 01 {BOTH}",
    ]


def test_a_merge_at_the_same_event_restarts():
    policy = sma_restarts(rounds(batch_size=8), due_at(2))
    last = follow(policy, WORKERS, (0, 1))[-1]
    assert last == f"merge 01 push+fetch+reset_to_center {BOTH}"


def test_only_the_root_restarts():
    policy = sma_restarts(
        hierarchical(rounds(batch_size=8), sizes=1, broadcast=False), due_at(1)
    )
    assert follow(policy, WORKERS, (0, 1)) == [
        BOTH,
        "merge group0: 0",
        f"merge group1: 1 merge group0+group1 push+fetch+reset_to_center {BOTH}",
    ]


def test_progress_counts_arrivals():
    seen = []

    def note(memory, progress, event):
        seen.append(progress)
        return memory, False

    policy = sma_restarts(
        rounds(batch_size=(8, 2), local_steps=3), Condition(tuple, note)
    )
    state, actions = policy.init(WORKERS, 100)
    local_rounds = dict(actions.dispatch)
    for event in (
        Arrival(1, local_rounds[1], 0.0, 2.0),
        Merged("root", 2.5),
        Arrival(0, local_rounds[0], 0.0, 4.0),
    ):
        state, _ = policy.react(state, event)
    assert seen == [
        Progress(examples=6, epochs=0.06, updates=3, seconds=2.0),
        Progress(examples=6, epochs=0.06, updates=3, seconds=2.5),
        Progress(examples=30, epochs=0.30, updates=6, seconds=4.0),
    ]


# Drops of the learning rate


def dues(condition, events):
    """Whether the condition is due at each of (progress, event)."""
    memory, found = condition.init(), []
    for progress, event in events:
        memory, due = condition.observe(memory, progress, event)
        found.append(due)
    return found


def arrivals(*examples):
    return [(START._replace(examples=e), Arrival(0, None, 0.0, 1.0)) for e in examples]


@pytest.mark.parametrize(
    ("learning_rate", "examples", "expected"),
    [
        (lambda e: 1.0 if e < 10 else 0.1, (4, 8, 12, 16), [0, 0, 1, 0]),
        (lambda e: 1.0 if e < 10 else 0.1, (12, 16), [1, 0]),  # from that at 0
        (lambda e: 1.0 if e < 10 else 0.75, (8, 12), [0, 0]),  # not below 3/4
        (lambda e: 1.0 if e < 10 else 0.74, (8, 12), [0, 1]),
        (lambda e: 0.9**e, (1, 2, 3, 4, 50), [0, 0, 0, 0, 1]),  # slow, then fast
        (lambda e: e, (0, 1, 2), [0, 0, 0]),  # a warm-up from zero
        (0.1, (4, 8), [0, 0]),
    ],
)
def test_on_rate_drop(learning_rate, examples, expected):
    assert dues(on_rate_drop(learning_rate), arrivals(*examples)) == list(
        map(bool, expected)
    )


def test_on_rate_drop_looks_at_arrivals_only():
    condition = on_rate_drop(
        LearningRate(lambda s: 1.0 if s < 5 else 0.1, over="seconds")
    )
    late = START._replace(seconds=6.0)
    assert dues(
        condition, [(late, Merged("root", 6.0)), (late, arrivals(1)[0][1])]
    ) == [
        False,
        True,
    ]


def test_a_stepped_learning_rate_restarts_once_in_a_run():
    """10 examples are reached by the first arrival of the second round, of worker 0."""
    policy = sma_restarts(
        rounds(batch_size=4), on_rate_drop(lambda e: 1.0 if e < 10 else 0.1)
    )
    table = follow(policy, WORKERS, (0, 1) * 5)
    assert [k for k, line in enumerate(table) if "reset_to_center" in line] == [4]


# Plateaus


def evaluated(*losses):
    return [(START, Evaluated({"train_loss": loss}, 1.0)) for loss in losses]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((1.0, 0.9, 0.8, 0.7), [0, 0, 0, 0]),
        ((1.0, 1.0, 1.0, 0.5), [0, 0, 1, 0]),
        ((1.0, 0.995, 0.991, 0.5), [0, 0, 1, 0]),  # less than 1 % in two evaluations
        ((1.0, 1.2, 0.98, 1.2, 1.2), [0, 0, 0, 0, 1]),  # 0.98 is an improvement
        ((1.0, *(1.0,) * 6), [0, 0, 1, 0, 1, 0, 1]),  # again, after two more
        ((float("nan"), float("nan")), [0, 1]),
    ],
)
def test_on_plateau(losses, expected):
    condition = on_plateau(patience=2, improvement=0.01)
    assert dues(condition, evaluated(*losses)) == list(map(bool, expected))


def test_on_plateau_looks_at_training_losses_only():
    other = [
        (START, Evaluated({"loss": 1.0}, 1.0)),
        (START, Merged("root", 1.0)),
        *arrivals(1, 2),
    ]
    condition = on_plateau(patience=1)
    assert dues(condition, evaluated(1.0) + other * 3) == [False] * 13


def test_a_plateau_restarts_the_next_merge():
    policy = sma_restarts(rounds(batch_size=8), on_plateau(patience=1))
    seen = [event for _, event in evaluated(1.0, 1.0)]
    assert follow(policy, WORKERS, (0, *seen, 1)) == [
        BOTH,
        "",
        "",
        "",
        f"merge 01 push+fetch+reset_to_center {BOTH}",
    ]


@pytest.mark.parametrize(
    ("message", "build"),
    [
        (
            "drop=1.0: pass a number above 0 and below",
            lambda: on_rate_drop(0.1, drop=1.0),
        ),
        (
            "drop=0.0: pass a number above 0 and below",
            lambda: on_rate_drop(0.1, drop=0.0),
        ),
        ("patience=0: pass a whole number", lambda: on_plateau(patience=0)),
        ("improvement=1.0: pass", lambda: on_plateau(improvement=1.0)),
        ("improvement=-0.1: pass", lambda: on_plateau(improvement=-0.1)),
    ],
)
def test_refusals(message, build):
    with pytest.raises(ValueError, match=message):
        build()
