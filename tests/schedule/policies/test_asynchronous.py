"""Asynchronous policies: no worker waits, unless it is too far ahead. Tables."""

import itertools
from collections import Counter
from functools import partial

import pytest
from policy_driver import arrivals, follow, infos, machine, timeline

from hetjax.engine.decisions import decisions
from hetjax.machine import Cost, Link, LocalRound, Machine, Profile, SimulatedClock
from hetjax.schedule import MergeAction, asynchronous, linear_scaling, random_partner

WORKERS = infos(1.0, 3.0, 2.0)
ALL = "0:1x8 1:1x8 2:1x8"


def test_an_arriving_worker_merges_alone_and_goes_on():
    policy = asynchronous(batch_size=8, local_steps=2)
    assert follow(policy, WORKERS, (2, 2, 0, 1)) == [
        "0:2x8 1:2x8 2:2x8",
        "merge 2 2:2x8",
        "merge 2 2:2x8",
        "merge 0 0:2x8",
        "merge 1 1:2x8",
    ]


def test_on_a_clock_workers_wait_for_the_link_only():
    """A merge occupies the link for 0.5 s; at 2 s worker 1 comes first, since worker 0
    began its round when its merge was done."""
    policy = asynchronous(batch_size=8)
    assert timeline(policy, machine(1.0, 2.0, 2.25, latency=0.25), 8) == [
        ALL,
        "1 w0 from 0 > merge 0 0:1x8",
        "1.5 merged 0",
        "2 w1 from 0 > merge 1 1:1x8",
        "2.25 w2 from 0 > merge 2 2:1x8",  # the link is free at 2.5
        "2.5 merged 1",
        "2.5 w0 from 1.5 > merge 0 0:1x8",  # the link is free at 3
        "3 merged 2",
        "3.5 merged 0",
    ]


def test_shared_memory_needs_no_link():
    policy = asynchronous(batch_size=8, transfers=0)
    assert timeline(policy, machine(1.0, 2.0, latency=9.0), 5) == [
        "0:1x8 1:1x8",
        "1 w0 from 0 > merge 0 0:1x8",
        "1 merged 0",
        "2 w0 from 1 > merge 0 0:1x8",
        "2 merged 0",
        "2 w1 from 0 > merge 1 1:1x8",
    ]


# Bounded staleness: a worker more than s rounds ahead of the slowest one is held back


def test_one_round_ahead_is_allowed_two_are_not():
    policy = asynchronous(batch_size=8, max_staleness=1)
    assert follow(policy, WORKERS, (0, 0, 2, 1, 2, 0, 2, 1)) == [
        ALL,
        "merge 0 0:1x8",  # rounds (1, 0, 0)
        "merge 0 push",  # (2, 0, 0): 0 is held
        "merge 2 2:1x8",  # (2, 0, 1)
        "merge 1 merge 0 fetch 0:1x8 1:1x8",  # (2, 1, 1): 0 goes on
        "merge 2 2:1x8",  # (2, 1, 2)
        "merge 0 push",  # (3, 1, 2): 0 is held
        "merge 2 push",  # (3, 1, 3): 2 too
        "merge 1 merge 0 fetch merge 2 fetch 0:1x8 2:1x8 1:1x8",  # (3, 2, 3)
    ]


def test_no_staleness_is_lockstep():
    policy = asynchronous(batch_size=8, max_staleness=0)
    assert follow(policy, WORKERS, (0, 2, 1, 1, 0, 2)) == [
        ALL,
        "merge 0 push",
        "merge 2 push",
        "merge 1 merge 0 fetch merge 2 fetch 0:1x8 2:1x8 1:1x8",
        "merge 1 push",
        "merge 0 push",
        "merge 2 merge 1 fetch merge 0 fetch 1:1x8 0:1x8 2:1x8",
    ]


def test_workers_own_models_are_not_fetched_again():
    policy = asynchronous(batch_size=8, max_staleness=0, refetch=False)
    assert follow(policy, WORKERS, (0, 2, 1)) == [
        ALL,
        "merge 0",
        "merge 2",
        "merge 1 0:1x8 2:1x8 1:1x8",
    ]


def test_a_push_and_a_later_fetch_take_the_link_as_long_as_both_together():
    """A transfer takes 0.5 s; 0 arrives at 1 s and waits until 1 arrives at 3 s."""
    policy = asynchronous(batch_size=8, max_staleness=0)
    assert timeline(policy, machine(1.0, 3.0, latency=0.5), 6) == [
        "0:1x8 1:1x8",
        "1 w0 from 0 > merge 0 push",
        "1.5 merged 0",
        "3 w1 from 0 > merge 1 merge 0 fetch 0:1x8 1:1x8",
        "4 merged 1",
        "4.5 merged 0",
        "5.5 w0 from 4.5 > merge 0 push",
    ]


# Partners


def test_partners_go_on_and_depend_on_worker_and_merge():
    asked = []

    def partners(worker, merges, workers):
        asked.append((worker, merges, workers))
        return ((worker + 1) % workers,)

    policy = asynchronous(batch_size=8, partners=partners)
    assert follow(policy, WORKERS, (2, 0, 2)) == [
        ALL,
        "merge 2 with 0 2:1x8",  # 0 is busy, and goes on
        "merge 0 with 1 0:1x8",
        "merge 2 with 0 2:1x8",
    ]
    assert asked == [(2, 0, 3), (0, 1, 3), (2, 2, 3)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_partners_are_others_uniformly(seed):
    partners, n, draws = random_partner(seed), 5, 4000
    chosen = Counter(partners(2, merges, n) for merges in range(draws))
    assert set(chosen) == {(0,), (1,), (3,), (4,)}
    # binomial with p = 1/4: 4.5 standard deviations of sqrt(n p (1 - p)) = 27.4
    assert all(abs(count - draws / 4) < 123 for count in chosen.values())


def test_random_partners_depend_on_seed_and_merge_only():
    def some(seed):
        return [random_partner(seed)(0, merges, 100) for merges in range(20)]

    assert some(0) == some(0)
    assert some(0) != some(1)
    assert len(set(some(0))) > 10
    assert random_partner()(0, 7, 1) == ()  # there is no other worker
    assert random_partner()(1, 7, 2) == (0,)


# Scaling


def test_sizes_follow_the_rule_after_every_window():
    calls = []

    def rule(sizes, updates):
        calls.append((sizes, updates))
        return (8.0, 4.0, 6.0)

    policy = asynchronous(batch_size=8, local_steps=2, scaling=rule, window=48)
    assert follow(policy, WORKERS, (0, 0, 1, 1, 2)) == [
        "0:2x8 1:2x8 2:2x8",
        "merge 0 0:2x8",  # 16 examples
        "merge 0 0:2x8",  # 32
        "merge 1 1:2x4",  # 48: new sizes; busy workers keep their own
        "merge 1 1:2x4",
        "merge 2 2:2x6",
    ]
    assert calls == [((8.0, 8.0, 8.0), (4, 2, 0))]


def test_updates_are_counted_per_window():
    calls = []

    def rule(sizes, updates):
        calls.append(updates)
        return sizes

    policy = asynchronous(batch_size=8, scaling=rule, window=16)
    follow(policy, WORKERS, (0, 0, 1, 2, 0))
    assert calls == [(2, 0, 0), (0, 1, 1)]


@pytest.mark.parametrize(
    ("batch_size", "learning_rates"),
    [(8, [1.0, 0.5, 0.75]), ((8, 8, 6), [1.0, 0.5, 0.75])],
)
def test_learning_rates_follow_sizes(batch_size, learning_rates):
    """lr_scale is b_i / b, with one b for all; if sizes differ, b is the largest."""
    policy = asynchronous(
        batch_size=batch_size, scaling=lambda *_: (8.0, 4.0, 6.0), window=1
    )
    entries = arrivals(policy, machine(1.0, 1.0, 1.0), 3)
    local_rounds = dict(pair for e in entries[1:] for pair in e.actions.dispatch)
    assert local_rounds[1] == LocalRound(1, 4.0, 0.5)
    assert [local_rounds[k].lr_scale for k in range(3)] == learning_rates


def test_scaling_makes_equally_many_updates():
    """Step times b / 64 and b / 32 without fixed costs: 64 and 32 take equally long."""
    workers = tuple(
        Profile(f"w{k}", "gpu", Cost(0.0, c)) for k, c in enumerate((1 / 64, 1 / 32))
    )
    clock = SimulatedClock(
        Machine("m", workers, {"": Link(latency=0.0, bandwidth=1e9)}), seed=0
    )
    rule = partial(linear_scaling, min_batch_size=4, batch_size=64, beta=1.0)
    policy = asynchronous(batch_size=64, scaling=rule, window=64 * 20)
    sizes = [64.0, 64.0]
    for _, actions in itertools.islice(decisions(policy, clock, num_examples=1), 4000):
        for k, local_round in actions.dispatch:
            sizes[k] = local_round.batch_size
    # one update more or less in a window moves a size by half of beta
    assert sizes == pytest.approx([64.0, 32.0], abs=2)


# The fields of an action, and errors


def test_the_fields_of_merge_actions():
    policy = asynchronous(batch_size=(8, 4, 2), local_steps=3, transfers=1)
    state, actions = policy.init(WORKERS, 1000)
    assert [w for _, w in actions.dispatch] == [
        LocalRound(3, 8.0, 1.0),
        LocalRound(3, 4.0, 0.5),
        LocalRound(3, 2.0, 0.25),
    ]
    *_, last = arrivals(policy, machine(1.0, 3.0, 2.0), 1)
    assert last.actions.merges == (MergeAction((0,), transfers=1),)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scaling": linear_scaling}, "window=None: pass the number of examples per"),
        ({"scaling": linear_scaling, "window": 0}, "window=0: pass"),
        ({"max_staleness": -1}, "max_staleness=-1: pass a whole number of at least 0"),
        ({"max_staleness": 1, "transfers": 1}, "splits transfers=1 in half"),
        (
            {"max_staleness": 1, "partners": random_partner()},
            "no partners: pass refetch=False",
        ),
        ({"local_steps": 0}, "local_steps=0: pass a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size=0: pass a number above 0 or a seq"),
        ({"batch_size": (8, 8)}, "batch_size has 2 entries for 3 workers"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        asynchronous(**({"batch_size": 8} | settings)).init(WORKERS, 1000)


def test_no_workers():
    with pytest.raises(ValueError, match="asynchronous: there are no workers"):
        asynchronous(batch_size=8).init((), 1000)
