"""CROSSBOW's tuner: the number of learners that it finds for a curve, and its path."""

import itertools
from functools import partial

import pytest
from policy_driver import machine, timeline

from hetjax.engine.decisions import decisions
from hetjax.machine import Arrival, Cost, Link, Machine, Profile, SimulatedClock
from hetjax.schedule import one_per_device, rounds, tuned_workers

ROUNDS = rounds(batch_size=8, first=one_per_device)
# throughputs of 1, 2, ... learners, and the number that the code's rule finds: it adds
# learners while one more brings more than 10 %
CURVES = {
    (1.0, 1.12, 1.25, 1.4, 1.35): 4,
    (1.0, 1.3, 1.3): 2,
    (1.0, 1.2, 1.4, 1.4): 3,
    (1.0, 1.25, 1.25): 2,
    (1.0, 1.05, 2.0): 1,  # it does not look beyond the first drop
    (1.0, 1.5, 2.0): 3,  # there are no more
    (1.0,): 1,
}


def devices(curves, latency=0.0, noise=0.0):
    """A machine with a device per curve, and one learner per entry of the curve."""
    workers = tuple(
        Profile(f"d{d}/{k}", "gpu", Cost(1.0, 0.0), device=f"d{d}", curve=curve)
        for d, curve in enumerate(curves)
        for k in range(len(curve))
    )
    return Machine(
        "m", workers, {"": Link(latency=latency, bandwidth=1e9)}, noise=noise
    )


def numbers(policy, m, rounds=150):
    """The number of learners in each round."""
    run = decisions(policy, SimulatedClock(m, seed=0), num_examples=1)
    sizes = (len(actions.dispatch) for _, actions in run if actions.dispatch)
    return list(itertools.islice(sizes, rounds))


@pytest.mark.parametrize(("curve", "best"), CURVES.items())
@pytest.mark.parametrize("num_devices", [1, 2])
def test_the_first_drop_ends_the_tuning(curve, best, num_devices):
    m = devices([curve] * num_devices, latency=0.001)
    found = numbers(tuned_workers(ROUNDS, window=10, threshold=0.1), m)
    tried = min(best + 1, len(curve))
    assert max(found) == tried * num_devices
    assert found[-1] == best * num_devices
    assert len(set(found[tried * 11 + 2 :])) == 1  # it stays there


def test_threshold():
    """1.12 and 1.25 are gains of 12 and 11.6 %."""
    m = devices([(1.0, 1.12, 1.25, 1.4, 1.35)])
    assert numbers(tuned_workers(ROUNDS, threshold=0.118), m)[-1] == 2
    assert numbers(tuned_workers(ROUNDS, threshold=0.0), m)[-1] == 4


def test_an_absolute_threshold():
    """Two learners of 8 examples do 12 % more than one: 8 * 0.12 = 0.96 examples/s.

    Then 8 * 0.13 = 1.04, and 8 * 0.15 = 1.2 for the fourth.
    """
    m = devices([(1.0, 1.12, 1.25, 1.4, 1.35)])
    for threshold, best in ((0.95, 4), (0.97, 1), (0.0, 4)):
        policy = tuned_workers(ROUNDS, threshold=threshold, absolute=True)
        assert numbers(policy, m)[-1] == best


def test_the_papers_absolute_threshold_adds_no_smaller_gain():
    """(1, 1.3, 1.5): 8, 10.4 and 12 examples/s; the third gains 1.6, which is not 2."""
    m = devices([(1.0, 1.3, 1.5, 1.6)])
    for threshold, best in ((2.0, 3), (1.5, 4), (3.0, 2)):
        policy = tuned_workers(ROUNDS, rule="paper", threshold=threshold, absolute=True)
        found = numbers(policy, m)
        assert found[-1] == best
        assert found == sorted(found)  # a gain below the threshold is not a drop


def test_when_learners_start_and_stop():
    """One device with curve (1, 1.25, 1.25): 8, then 10, then again 10 examples/s.

    A change is requested with a merge and counts from the next round on; the window of
    two rounds begins after that. A step of m learners takes m / curve(m) seconds: 1,
    1.6, 2.4, where m counts the active learners when it begins, with stopped ones.
    """
    policy = tuned_workers(ROUNDS, window=2)
    one, two = "0:1x8", "0:1x8 1:1x8"
    assert timeline(policy, devices([(1.0, 1.25, 1.25)]), 28) == [
        f"{one} stop 1 stop 2",
        "0 leave 1",
        "0 leave 2",
        "2.4 w0 from 0 > merge 0 0:1x8",  # begun before the others were stopped
        "2.4 merged 0",
        "3.4 w0 from 2.4 > merge 0 0:1x8",
        "3.4 merged 0",
        "4.4 w0 from 3.4 > merge 0 start 1 0:1x8",  # 16 examples in 2 s
        "4.4 merged 0",
        "4.4 join 1",
        f"6 w0 from 4.4 > merge 0 {two}",  # 1 takes part; the window begins
        "6 merged 0",
        "7.6 w0 from 6",
        f"7.6 w1 from 6 > merge 01 {two}",
        "7.6 merged 01",
        "9.2 w0 from 7.6",
        f"9.2 w1 from 7.6 > merge 01 start 2 {two}",  # 32 in 3.2 s: 25 % more
        "9.2 merged 01",
        "9.2 join 2",
        "11.6 w0 from 9.2",
        f"11.6 w1 from 9.2 > merge 01 {two} 2:1x8",
        "11.6 merged 01",
        *("14 w0 from 11.6", "14 w1 from 11.6"),
        f"14 w2 from 11.6 > merge 012 {two} 2:1x8",
        "14 merged 012",
        *("16.4 w0 from 14", "16.4 w1 from 14"),
        f"16.4 w2 from 14 > merge 012 {two} 2:1x8 stop 2",  # 48 in 4.8 s: no more
    ]


# The paper's rule: each device by itself, without an end


def test_the_papers_rule_cannot_step_back_from_a_plateau():
    """(1, 1.3, 1.3): the third learner gains nothing, but loses nothing either."""
    policy = tuned_workers(ROUNDS, rule="paper", window=10, threshold=0.1)
    assert numbers(policy, devices([(1.0, 1.3, 1.3)]))[-1] == 3


def test_the_papers_rule_steps_back_and_may_add_again():
    """(1, 1.5, 1.2): from three to two throughput grows, so the rule adds one again."""
    policy = tuned_workers(ROUNDS, rule="paper", window=2)
    found = numbers(policy, devices([(1.0, 1.5, 1.2)]), rounds=40)
    changes = [size for size, _ in itertools.groupby(found)]
    assert changes[:7] == [1, 2, 3, 2, 3, 2, 3]


def test_the_papers_rule_treats_each_device_by_itself():
    """Both should grow at first, but only the second has another learner. With it a
    round takes 2 / 1.6 s: the second does 2 * 8 / 1.25 instead of 8 examples/s, the
    first 8 / 1.25, a loss, but its last learner stays."""
    policy = tuned_workers(ROUNDS, rule="paper", window=4, threshold=0.1)
    m = devices([(1.0,), (1.0, 1.6)])
    run = decisions(policy, SimulatedClock(m, seed=0), num_examples=1)
    changes = [(o.start, o.stop) for _, o in itertools.islice(run, 90)]
    assert [c for c in changes if any(c)] == [((), (2,)), ((2,), ())]


def test_throughput_counts_the_wait_at_the_barrier():
    """The second device could double its throughput, but waits for the first."""
    policy = tuned_workers(ROUNDS, window=4)
    assert numbers(policy, devices([(1.0, 1.0), (1.0, 2.0)]))[-1] == 2


def test_noise_may_end_it_early_but_never_hangs():
    for rule in ("paper", "stop_at_first_drop"):
        m = devices([(1.0, 1.3, 1.3)] * 2, noise=0.2)
        found = numbers(tuned_workers(ROUNDS, rule=rule, window=3), m, rounds=300)
        assert set(found) <= {2, 3, 4, 5, 6}


def test_machines_with_learners():
    """`Machine.with_workers_per_device` is what the tuner needs."""
    m = machine(1.0, 1.0).with_workers_per_device(3, (1, 1.3, 1.3))
    assert numbers(tuned_workers(ROUNDS), m)[-1] == 4


def test_an_inner_policy_that_uses_all_workers_is_left_alone():
    """An inner policy that begins with all workers leaves none to add."""
    m = devices([(1.0, 1.0, 1.0)])
    assert set(numbers(tuned_workers(rounds(batch_size=8)), m, rounds=60)) == {3}


def test_throughput_is_of_examples():
    """Two devices, 8 and 4 examples per step: 12 examples/s."""
    policy = tuned_workers(
        rounds(batch_size=(8, 4), first=one_per_device), rule="paper", window=2
    )
    states = []

    def react(state, event):
        state, actions = policy.react(state, event)
        if isinstance(event, Arrival):
            states.append(state)
        return state, actions

    noting = policy._replace(react=react)
    assert numbers(noting, devices([(1.0,), (1.0,)]), rounds=4) == [2] * 4
    assert states[5].before == {"d0": 8.0, "d1": 4.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "guess"}, "rule='guess': choose one of"),
        ({"window": 0}, "window=0: pass a whole number of at least 1"),
        ({"threshold": -0.1}, "threshold=-0.1: pass a number of at least 0"),
        ({"threshold": float("nan")}, "threshold=nan"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        partial(tuned_workers, ROUNDS)(**settings)
