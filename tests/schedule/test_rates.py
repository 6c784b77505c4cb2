"""Rates over examples, epochs, updates and seconds."""

import numpy as np
import optax
import pytest

from hetjax.schedule import Progress, Rate, check_rate, rate_at

HERE = Progress(examples=500, epochs=0.5, updates=40, seconds=7.0)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.1, 0.1),
        (1, 1.0),
        (lambda examples: examples / 1000, 0.5),
        (Rate(lambda x: 2 * x), 1000.0),  # over examples, unless it says
        (Rate(lambda x: 2 * x, over="examples"), 1000.0),
        (Rate(lambda x: 2 * x, over="epochs"), 1.0),
        (Rate(lambda x: 2 * x, over="updates"), 80.0),
        (Rate(lambda x: 2 * x, over="seconds"), 14.0),
        (Rate(optax.linear_schedule(1.0, 0.0, 80), over="updates"), 0.5),
    ],
)
def test_rate_at(rate, expected):
    value = rate_at(rate, HERE)
    assert type(value) is float
    assert value == pytest.approx(expected)


@pytest.mark.parametrize(
    "rate", [0.1, 1, np.float32(0.1), abs, Rate(abs), Rate(abs, over="epochs")]
)
def test_good_rates(rate):
    check_rate(rate)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (0, "rate=0: give a finite number above 0"),
        (-0.1, "rate=-0.1: give"),
        (float("nan"), "rate=nan: give"),
        (float("inf"), "rate=inf: give"),
        (Rate(abs, over="steps"), "a Rate over 'steps': choose one of"),
        (Rate(0.1), "a Rate of 0.1: give a function"),
    ],
)
def test_bad_rates(rate, message):
    with pytest.raises(ValueError, match=message):
        check_rate(rate)
