"""An invalid or endless calibration, and invalid advice, are refused at once."""

import pytest
from tiny_runs import counting_data, counting_task, nothing_compiled

import hetjax as hj
from hetjax.api.advise import Advice, Choice
from hetjax.api.calibrate import MOST_ROUNDS, MOST_STEPS

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"local_steps": (1, 1_000_000)},
            "local_steps=.*1000000.: pass numbers from 1 to 1,000",
        ),
        ({"local_steps": (MOST_STEPS + 1,)}, "local_steps=.1001,.: .* together"),
        ({"local_steps": (0,)}, "local_steps=.0,.: pass a sequence of whole numbers"),
        ({"local_steps": (1.5,)}, r"local_steps=.1\.5"),
        ({"local_steps": ()}, r"local_steps=\(\): pass numbers"),
        ({"local_steps": 8}, "local_steps=8: pass a sequence"),
        (
            {"batch_sizes": (INF,)},
            "batch_sizes=.inf,.: pass a sequence of whole numbers",
        ),
        ({"batch_sizes": (4, NAN)}, "batch_sizes=.*nan"),
        (
            {"batch_sizes": (25,)},
            "batch_sizes=.25,.: pass numbers from 1 to 24; the tr",
        ),
        (
            {"batch_sizes": (10**30,)},
            "batch_sizes=.10{30},.: pass a sequence of whole numbers",
        ),
        ({"batch_sizes": "16"}, "batch_sizes='16': pass a sequence"),
        ({"repeats": 0}, "repeats=0: pass a whole number of at least 1"),
        ({"repeats": 2.5}, r"repeats=2\.5"),
        ({"repeats": 10**12}, "repeats=1000000000000: pass a whole number"),
        (
            {"repeats": MOST_ROUNDS, "batch_sizes": (4, 8)},
            "repeats=100000: these are 400000 rounds for each worker, pass at most",
        ),
    ],
)
def test_invalid_calibrations(options, message):
    options = {"batch_sizes": (4,), "progress": False} | options
    with nothing_compiled(), pytest.raises(ValueError, match=message):
        hj.calibrate(counting_task(), counting_data(), ["cpu:0"], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"machine": "v100x4"}, "machine='v100x4': pass a Machine"),
        ({"strategies": [hj.sma]}, "strategies must be a dictionary"),
        ({"batch_size": 25}, "a batch of 25 is larger than the 24 examples"),
        ({"seconds": NAN}, "seconds"),
        ({"target": NAN}, "target"),
        ({"seed": 1.5}, "seed"),
        ({"data": None}, "data=None: pass a Dataset"),
    ],
)
def test_invalid_requests_for_advice(options, message):
    machine = hj.machine.preset("uniform:2")
    given = {"task": counting_task(), "data": counting_data(), "machine": machine}
    given |= {"batch_size": 4, "progress": False} | options
    with pytest.raises(ValueError, match=message):
        hj.advise(**given)


def test_the_loss_of_advice_is_one_of_each_example():
    task = counting_task()
    mean = task._replace(loss=lambda *a: (task.loss(*a)[0].mean(), ()))
    machine = hj.machine.preset("uniform:2")
    with pytest.raises(ValueError, match="not their mean"):
        hj.advise(mean, counting_data(), machine, batch_size=4, progress=False)


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ((1.0, 2.0), "sma on a + b against sma on a: 1 s to 0.9 against 2 s: worth it"),
        (
            (2.0, 1.0),
            "sma on a + b against sma on a: 2 s to 0.9 against 1 s: not worth it",
        ),
        ((INF, INF), "neither sma on a + b nor sma on a reaches 0.9"),
    ],
)
def test_the_verdict_says_whether_more_workers_are_worth_it(seconds, verdict):
    several, one = (
        Choice("sma", w, 1.0, 0.1, 0.5, s, 0.9, 0.9, {})
        for w, s in zip((("a", "b"), ("a",)), seconds, strict=True)
    )
    assert Advice((several, one), 0.9, "accuracy", "m").verdict == verdict


def test_where_two_speeds_are_possible_a_round_is_a_range():
    """Rounds of two workers that contend for half, or for twice their seconds more."""
    cost, link = hj.machine.Cost(1.0, 0.0), hj.machine.Link(latency=0.0, bandwidth=1e9)

    def advice(*between):
        workers = tuple(
            hj.machine.Profile(
                name, "cpu", cost, contention=2.0, contention_range=between
            )
            for name in "ab"
        )
        m = hj.machine.Machine("m", workers, {"": link})
        strategies = {
            "local_sgd": hj.local_sgd(batch_size=4, learning_rate=0.1, local_steps=1)
        }
        given = {"strategies": strategies, "subsets": [["a", "b"]], "seconds": 50.0}
        return hj.advise(counting_task(), counting_data(), m, **given, progress=False)

    found = advice(1.5, 3.0)
    assert found.best.round_range == pytest.approx((1.5, 3.0), rel=1e-3)
    assert found.best.round_seconds == pytest.approx(2.0, rel=1e-3)
    assert "1.5e+03 to 3e+03" in str(found)
    assert advice().best.round_range == ()
    assert " to " not in str(advice().table().rows)
