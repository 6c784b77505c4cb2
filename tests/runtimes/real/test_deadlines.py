"""Deadlines from measured times: of unknown, steady, irregular and slow workers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.machine import LocalRound, WorkerInfo
from hetjax.runtimes.real.deadlines import Deadlines

STEP = LocalRound(1, 4)  # 1 + 4 / 4 = 2 s of worker 0, 6 s of worker 1
RATIO = st.floats(0.01, 100.0)
RATIOS = st.lists(RATIO, min_size=5, max_size=80)
# 5, 15, ... 45 rounds: the limit was just updated, from all of them
JUDGED = st.sampled_from(range(5, 50, 10)).flatmap(
    lambda n: st.lists(RATIO, min_size=n, max_size=n)
)


def deadlines():
    return Deadlines(
        [
            WorkerInfo(0, "w0", "gpu", (), fixed=1.0, per_example=0.25),
            WorkerInfo(1, "w1", "cpu", (), fixed=2.0, per_example=1.0),
        ]
    )


def observed(*ratios):
    """Deadlines after worker 0 took these multiples of the expected time."""
    p = deadlines()
    for ratio in ratios:
        p.observe(0, STEP, 2.0 * ratio)
    return p


def limit(p):
    """The multiple of the expected time that worker 0 may currently take."""
    return (p.allowed(0, STEP) - 1.0) / 2.0


def test_seconds_of_a_round_are_its_steps_and_its_copy():
    p = deadlines()
    assert p.expected(0, STEP) == 2.0
    assert p.expected(1, LocalRound(3, 4, seconds=0.5)) == 18.5
    assert p.expected(0, LocalRound(2, 3.6)) == 4.0  # dispatched as 4


def test_an_unknown_worker_is_given_twenty_times_as_long():
    p = deadlines()
    assert p.allowed(0, STEP) == 20 * 2 + 1
    assert p.allowed(1, STEP) == 20 * 6 + 1
    assert limit(observed(1, 1, 1, 1)) == 20


def test_a_round_of_no_duration_is_given_a_second():
    """Such rounds say nothing about the worker."""
    p = deadlines()
    for _ in range(9):
        p.observe(0, LocalRound(0, 8), 3.0)
    assert p.allowed(0, LocalRound(0, 8)) == 1.0
    assert limit(p) == 20


def test_a_slow_first_round_lengthens_the_deadline():
    assert limit(observed(1, 7)) == 20 * 7
    assert limit(observed(0.5)) == 20  # but not shorter


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((3, 3, 3, 3, 3), 5 * 3),  # steady: the floor
        ((1, 2, 3, 4, 5), 5 * 3),  # 3 + 8 * 1 = 11 is below it
        ((1, 2, 5, 8, 9), 5 + 8 * 3),  # deviations 4, 3, 0, 3, 4
        ((3, 3, 3, 3, 300), 5 * 3),  # one hiccup changes nothing
    ],
)
def test_a_known_worker_is_given_eight_deviations_or_five_times(ratios, expected):
    assert limit(observed(*ratios)) == expected


def test_each_worker_is_judged_by_its_own_rounds():
    p = observed(3, 3, 3, 3, 3)
    assert p.allowed(1, STEP) == 20 * 6 + 1


def test_deadlines_grow_with_the_round():
    p = observed(3, 3, 3, 3, 3)
    assert p.allowed(0, LocalRound(10, 4)) == 15 * 20 + 1


def test_the_limit_is_updated_every_ten_rounds():
    ones = (1,) * 5
    assert limit(observed(*ones, *(4,) * 9)) == 5
    assert limit(observed(*ones, *(4,) * 10)) == 5 * 4


def test_old_rounds_are_forgotten():
    """Most of the rounds took nine times as long, but none of the last 50 did."""
    assert limit(observed(*(9,) * 65, *(1,) * 50)) == 5
    assert limit(observed(*(9,) * 75, *(1,) * 10)) == 5 * 9


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ratios=RATIOS, factor=st.sampled_from((0.25, 2.0, 64.0)))
def test_the_limit_scales_with_the_ratios(ratios, factor):
    """A worker that always takes c times as long gets a deadline c times as long."""
    slower = limit(observed(*(factor * r for r in ratios)))
    assert slower == pytest.approx(factor * limit(observed(*ratios)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ratios=JUDGED, order=st.randoms(use_true_random=False))
def test_half_of_the_rounds_are_always_in_time(ratios, order):
    """The limit is at least five times their median, in any order."""
    allowed = limit(observed(*ratios))
    assert allowed >= 5 * sorted(ratios)[len(ratios) // 2] * (1 - 1e-12)
    order.shuffle(ratios)
    assert limit(observed(*ratios)) == pytest.approx(allowed)
