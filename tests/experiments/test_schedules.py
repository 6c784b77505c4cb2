"""Schedules from flags, against their formulas."""

import math

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments.common import schedules
from hetjax.schedule import Progress
from hetjax.schedule.learning_rates import learning_rate_at

PEAK = 0.4


@pytest.fixture(autouse=True)
def _parsed():
    flags.FLAGS.mark_as_parsed()


def given(**values):
    """The flags with these values, as if they were on the command line."""
    texts = [f"--{name}={value}" for name, value in values.items()]
    return flagsaver.as_parsed(
        **{t[2:].split("=", 1)[0]: t.split("=", 1)[1] for t in texts}
    )


def rate(epochs):
    progress = Progress(0, epochs, 0, 0.0)
    return learning_rate_at(schedules.learning_rate(PEAK), progress)


def test_constant_is_a_number():
    with given():
        assert schedules.learning_rate(PEAK) == PEAK


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [(0, 0.4), (59.9, 0.4), (60, 0.04), (79, 0.04), (80.1, 0.004), (1000, 0.004)],
)
def test_steps(epochs, expected):
    with given(schedule="steps", decay_at="60,80"):
        assert rate(epochs) == pytest.approx(expected)


def test_falls_that_never_come_are_named(capsys):
    with given(schedule="steps", decay_at="60,80", epochs="80"):
        assert rate(70) == pytest.approx(0.04)
    note = "--decay_at=60,80: 1 of 2 falls would come after --epochs=80\n"
    assert capsys.readouterr().err == note
    with given(schedule="steps", decay_at="60,80", epochs="81"):
        rate(70)
    assert capsys.readouterr().err == ""


def test_steps_by_a_factor():
    with given(schedule="steps", decay_at="20,40", decay_by="0.5"):
        assert [rate(e) for e in (0, 30, 50)] == pytest.approx([0.4, 0.2, 0.1])


@pytest.mark.parametrize("warmup", [0.0, 5.0])
def test_cosine(warmup):
    with given(schedule="cosine", epochs="25", warmup_epochs=str(warmup)):
        for epochs in (5.0, 10.0, 17.5, 25.0, 30.0):
            share = min(1.0, (epochs - warmup) / (25 - warmup))
            expected = PEAK * (1 + math.cos(math.pi * share)) / 2
            assert rate(epochs) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["constant", "steps", "cosine"])
def test_warm_up_is_linear(kind):
    more = {"steps": {"decay_at": "60"}, "cosine": {"epochs": "90"}}.get(kind, {})
    with given(schedule=kind, warmup_epochs="4", **more):
        assert [rate(e) for e in (0, 1, 3)] == pytest.approx([0.0, 0.1, 0.3])
        assert rate(4) == pytest.approx(PEAK)


def test_steps_count_from_the_beginning_with_a_warm_up_too():
    with given(schedule="steps", decay_at="60", warmup_epochs="5"):
        assert [rate(e) for e in (59.9, 60.1)] == pytest.approx([0.4, 0.04])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decay_at": "3"}, "--decay_at is for --schedule=steps, not constant"),
        ({"schedule": "cosine"}, "--schedule=cosine needs --epochs"),
        ({"schedule": "steps"}, "--schedule=steps needs --decay_at"),
        ({"schedule": "steps", "decay_at": "80,60"}, "rising epochs"),
        ({"schedule": "steps", "decay_at": "60,60"}, "rising epochs"),
        (
            {"schedule": "steps", "decay_at": "3", "warmup_epochs": "5"},
            "after the warm-up's 5",
        ),
        ({"schedule": "steps", "decay_at": "x"}, "--decay_at=x"),
        ({"warmup_epochs": "9", "epochs": "9"}, "pass less than --epochs"),
    ],
)
def test_flags_that_do_not_fit(values, message):
    with given(**values), pytest.raises(ValueError, match=message):
        schedules.learning_rate(PEAK)
