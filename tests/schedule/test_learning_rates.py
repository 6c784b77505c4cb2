"""Learning rates over examples, epochs, updates and seconds."""

import numpy as np
import pytest

from hetjax.schedule import (
    LearningRate,
    Progress,
    check_learning_rate,
    learning_rate_at,
)

HERE = Progress(examples=500, epochs=0.5, updates=40, seconds=7.0)


@pytest.mark.parametrize(
    ("learning_rate", "expected"),
    [
        (0.1, 0.1),
        (1, 1.0),
        (lambda examples: examples / 1000, 0.5),
        (LearningRate(lambda x: 2 * x), 1000.0),  # over examples by default
        (LearningRate(lambda x: 2 * x, over="examples"), 1000.0),
        (LearningRate(lambda x: 2 * x, over="epochs"), 1.0),
        (LearningRate(lambda x: 2 * x, over="updates"), 80.0),
        (LearningRate(lambda x: 2 * x, over="seconds"), 14.0),
    ],
)
def test_rate_at(learning_rate, expected):
    value = learning_rate_at(learning_rate, HERE)
    assert type(value) is float
    assert value == pytest.approx(expected)


@pytest.mark.parametrize(
    "learning_rate",
    [0.1, 1, np.float32(0.1), abs, LearningRate(abs), LearningRate(abs, over="epochs")],
)
def test_valid_learning_rates(learning_rate):
    check_learning_rate(learning_rate)


@pytest.mark.parametrize(
    ("learning_rate", "message"),
    [
        (0, "learning_rate=0: pass a number above 0 or a function"),
        (-0.1, "learning_rate=-0.1: pass"),
        (float("nan"), "learning_rate=nan: pass"),
        (float("inf"), "learning_rate=inf: pass"),
    ],
)
def test_invalid_learning_rates(learning_rate, message):
    with pytest.raises(ValueError, match=message):
        check_learning_rate(learning_rate)


def test_invalid_schedules():
    with pytest.raises(ValueError, match="over='steps': choose one of examples, epo"):
        LearningRate(abs, over="steps")
    with pytest.raises(ValueError, match="schedule=0.1: pass a function"):
        LearningRate(0.1)
