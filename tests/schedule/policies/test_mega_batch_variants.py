"""Mega-batches: the public code's rule for their end, warm-up, scaling. Tables."""

import pytest
from policy_driver import arrivals, follow, infos, machine

from hetjax.machine import Arrival, LocalRound
from hetjax.schedule import Scaling, fixed_scaling, mega_batch

WORKERS = infos(1.0, 3.0, 2.0)
ALL = "0:1x8 1:1x8 2:1x8"


def test_the_codes_rule_counts_completed_examples():
    """docs/algorithms A.4: a batch is dispatched while completed - 8 < 24 examples. The
    mega-batch is 48 examples, where the paper's rule makes it 24."""
    policy = mega_batch(examples=24, batch_size=8, rule="hgpu_code")
    assert follow(policy, WORKERS, (0, 0, 1, 2, 0, 1, 2)) == [
        ALL,
        "0:1x8",  # 8
        "0:1x8",  # 16
        "1:1x8",  # 24 - 8 is below 24
        "",  # 32 - 8 is not
        "",
        f"merge 012 {ALL}",  # 48, and no worker is busy
        "2:1x8",
    ]


def test_the_codes_rule_subtracts_the_largest_size():
    """b = (8, 4, 4) and M = 16: no worker gets more once 24 are completed."""
    policy = mega_batch(
        examples=16,
        batch_size=8,
        rule="hgpu_code",
        scaling=lambda sizes, updates: (8.0, 4.0, 4.0),
    )
    assert follow(policy, WORKERS, (0, 1, 2, 0, 1, 1, 1, 2, 0, 2, 1)) == [
        ALL,
        "0:1x8",  # 8
        "1:1x8",  # 16
        "",  # 24
        "",
        "merge 012 0:1x8 1:1x4 2:1x4",
        "1:1x4",  # 4
        "1:1x4",  # 8
        "2:1x4",  # 12
        "0:1x8",  # 20
        "",  # 24
        "",
    ]


# Warm-up


def test_warm_up_has_small_batches_for_some_passes():
    """Half a pass over 40 examples: 20, of which a mega-batch of 12 does 12."""
    calls = []

    def rule(sizes, updates):
        calls.append((sizes, updates))
        return (8.0, 4.0, 4.0)

    policy = mega_batch(
        examples=12, batch_size=8, scaling=rule, warmup_epochs=0.5, warmup_size=4
    )
    small, large = "0:1x4 1:1x4 2:1x4", "0:1x8 1:1x8"
    assert follow(policy, WORKERS, (0, 1, 2, 0, 1, 2, 0, 1), num_examples=40) == [
        small,
        "",
        "",
        f"merge 012 {small}",  # 12 of 20
        "",
        "",
        f"merge 012 {large}",  # 24: starts at b_max, as without a warm-up
        "",
        "merge 012 0:1x8 1:1x4",  # from now on the rule applies
    ]
    assert calls == [((8.0, 8.0, 8.0), (1, 1, 0))]


def test_learning_rates_in_the_warm_up_follow_the_sizes():
    policy = mega_batch(examples=12, batch_size=16, warmup_epochs=1, warmup_size=4)
    _, actions = policy.init(WORKERS, 40)
    assert actions.dispatch[0] == (0, LocalRound(1, 4.0, 0.25))


def test_the_warm_up_is_no_larger_than_b_max():
    policy = mega_batch(examples=12, batch_size=8, warmup_epochs=1)  # default: 32
    _, actions = policy.init(WORKERS, 40)
    assert actions.dispatch[0] == (0, LocalRound(1, 8.0, 1.0))


# Rules that measure


def test_a_measuring_rule_sees_every_round_and_its_seconds():
    seen = []

    def observe(state, worker, local_round, seconds):
        seen.append((worker, local_round.batch_size, seconds))
        return state + 1

    def scale(state, sizes, updates, here):
        return tuple(b - state for b in sizes)

    policy = mega_batch(
        examples=24, batch_size=8, scaling=Scaling(lambda workers: 0, observe, scale)
    )
    state, actions = policy.init(WORKERS, 1000)
    for worker, finish in ((2, 1.5), (0, 2.0), (1, 4.0)):
        local_round = dict(actions.dispatch).get(worker, LocalRound(1, 8.0))
        state, given = policy.react(state, Arrival(worker, local_round, 1.0, finish))
    assert seen == [(2, 8.0, 0.5), (0, 8.0, 1.0), (1, 8.0, 3.0)]
    assert [w.batch_size for _, w in given.dispatch] == [5.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("sizes", "updates", "expected"),
    [
        # docs/algorithms A.2: one step of 32 down or up, comparing u_i with the mean
        ((512,) * 4, (28, 26, 24, 22), (544, 544, 480, 480)),
        ((512,) * 3, (20, 20, 20), (512, 512, 512)),
        ((512,) * 3, (30, 20, 10), (544, 512, 480)),
        ((1024, 32), (30, 10), (1024, 32)),  # at the bounds
        ((1024, 32), (10, 30), (992, 64)),
        ((1000, 50), (30, 10), (1024, 32)),  # a step ends at the bound
        ((512, 512), (0, 1), (480, 544)),
    ],
)
def test_fixed_scaling(sizes, updates, expected):
    assert fixed_scaling(sizes, updates) == expected


def test_fixed_scaling_on_a_machine_without_speed_differences():
    """Six batches of three equal workers, two each: sizes stay."""
    policy = mega_batch(examples=48, batch_size=8, scaling=fixed_scaling)
    entries = arrivals(policy, machine(1.0, 1.0, 1.0), 100)
    assert {w.batch_size for e in entries for _, w in e.actions.dispatch} == {8.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "paper"}, "rule='paper': choose one of"),
        ({"warmup_epochs": -1}, "warmup_epochs=-1: pass a number of at least 0"),
        ({"warmup_size": 0}, "warmup_size=0: pass a number above 0"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        mega_batch(**({"examples": 40, "batch_size": 8} | settings))
