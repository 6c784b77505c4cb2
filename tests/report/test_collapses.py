"""Runs that collapse: the end counts, and a target must be held."""

import math

import pytest

from hetjax.report import Comparison

# at 0.9 from the fourth evaluation on, with one bad evaluation that is held against it
NOISY = (0.1, 0.5, 0.8, 0.9, 0.91, 0.2, 0.92, 0.9, 0.91, 0.9)
COLLAPSED = (0.1, 0.9, 0.95, 0.96, 0.8, 0.5, 0.3, 0.2, 0.1, 0.1)
RECOVERED = (0.1, 0.9, 0.9, 0.3, 0.3, 0.3, 0.7, 0.9, 0.9, 0.9)
LUCKY = (0.1, 0.2, 0.95, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 0.9)


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize(
    ("accuracies", "seconds"),
    [
        (NOISY, 3.0),
        (COLLAPSED, math.inf),
        (RECOVERED, 7.0),
        (LUCKY, 8.0),
        ((0.1, 0.5, 0.9), 2.0),  # such as a run that ends at its target
        ((0.1, 0.9, math.nan), math.inf),
        ((0.1, 0.9, 0.88, 0.88, 0.88), 1.0),  # less than 3 % of 0.8 below it
        ((0.1, 0.9, 0.87, 0.87, 0.87), math.inf),  # more
        # 3 % of the distance from the start: chance is at 0.88 here
        ((0.88, 0.9, 0.89, 0.89, 0.89), math.inf),
        ((0.9, 0.95, 0.9), 0.0),
        # the last tenth, 6 values, has a mean of 0.67
        ((0.1, *[0.95] * 57, 0.1, 0.1), math.inf),
        ((), math.inf),
    ],
)
def test_a_target_counts_when_it_is_held(make, accuracies, seconds, mode):
    if mode == "min":
        accuracies = [1.8 - a for a in accuracies]  # mirrored at the target
    run = make(accuracies=accuracies, mode=mode)
    assert run.seconds_to(0.9) == seconds


def test_the_line_to_the_target_begins_at_the_evaluation_before(make):
    run = make(accuracies=LUCKY)
    assert run.seconds_to(0.8, interpolated=True) == pytest.approx(7.5)
    assert make(accuracies=NOISY).seconds_to(0.85, interpolated=True) == pytest.approx(
        2.5
    )


def test_the_end_is_the_mean_of_the_last_tenth(make):
    curve = [k / 40 for k in range(40)]
    assert make(accuracies=curve).final() == pytest.approx((36 + 37 + 38 + 39) / 160)
    assert make(accuracies=(0.1, 0.4)).final() == 0.4
    assert math.isnan(make().final())


def test_a_collapse_is_far_below_the_best(make):
    assert make(accuracies=COLLAPSED).collapsed
    assert not make(accuracies=NOISY).collapsed
    assert not make(accuracies=(0.1, 0.9, 0.83)).collapsed  # 7 of 80 points lost
    assert make(accuracies=(0.1, 0.9, 0.81)).collapsed  # 9
    assert not make(accuracies=(0.970, 0.971, 0.970)).collapsed  # nothing was learned
    assert make(accuracies=(0.5, 0.97, 0.9), mode="max").collapsed
    assert make(accuracies=(1.0, 0.9, 3.0), mode="min").collapsed
    assert not make(accuracies=(2.0, 1.0, 1.05), mode="min").collapsed
    assert not make().collapsed


def test_the_collapsed_run_does_not_win(make, tmp_path):
    """Its best point is the best of all, and the first at the target."""
    runs = Comparison(
        [make("steady", 0, NOISY), make("fallen", 0, COLLAPSED)], data={}, machine={}
    )
    assert runs.target == 0.873  # 97 % of 0.9, where the steady run ends
    steady, fallen = runs.summary()
    assert (steady["final"], fallen["final"]) == (0.9, 0.1)
    assert (steady["collapsed"], fallen["collapsed"]) == ([], [0])
    assert (steady["seconds_to_target"], fallen["seconds_to_target"]) == (3.0, None)
    line = "fallen ended far worse than its best accuracy: 0.1 after 0.96"
    assert line in str(runs.table()).splitlines()
    figure = runs.plot()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "fallen\n(ended far worse than its best)" in texts
    assert "steady" in texts
    runs.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert (
        "fallen, seed 0, ended far worse than its best accuracy: 0.1 after 0.96" in page
    )
    assert "steady: 0.900" in page


def tuned(scores, chosen, tune="each"):
    return {"tune": tune, "held_out": 9, "scores": scores, "chosen": chosen}


@pytest.mark.parametrize(
    ("scores", "chosen", "expected"),
    [
        (
            {"0.1": 0.5, "1": 0.6, "10": 0.61},
            10.0,
            [
                "the learning rate 10 is the largest that was tried: try larger "
                "ones, too"
            ],
        ),
        (
            {"0.1": 0.6, "1": 0.59, "10": None},
            0.1,
            [
                "the learning rate 0.1 is the smallest that was tried: try smaller "
                "ones, too"
            ],
        ),
        (
            {"0.1": 0.3, "1": 0.6, "10": None},
            1.0,
            [
                "the learning rates 0.1 and 10 are much worse than 1: try finer steps "
                "around it, such as 0.3 and 3"
            ],
        ),
        ({"0.1": 0.59, "1": 0.6, "10": 0.1}, 1.0, []),  # it is flat on one side
        ({"0.3": 0.3, "1": 0.6, "3": 0.4}, 1.0, []),  # half decades already
        ({"1": 0.6}, 1.0, []),
    ],
)
def test_what_is_said_of_a_grid_of_learning_rates(make, scores, chosen, expected):
    tuning = tuned({"sync": scores}, {"sync": chosen})
    runs = Comparison([make(accuracies=NOISY)], data={}, machine={}, tuning=tuning)
    caption = runs.table().caption
    assert [line for line in caption if "the learning rate" in line] == [
        f"sync: {line}" for line in expected
    ]


def test_of_one_rate_for_all_it_is_said_once(make, tmp_path):
    scores = {name: {"0.1": 0.5, "1": 0.51} for name in ("a", "b")}
    tuning = tuned(scores, {"a": 1.0, "b": 1.0}, "common")
    runs = Comparison(
        [make("a", 0, NOISY), make("b", 0, NOISY)], data={}, machine={}, tuning=tuning
    )
    line = (
        "all: the learning rate 1 is the largest that was tried: try larger ones, too"
    )
    assert runs.table().caption.count(line) == 1
    runs.report(tmp_path / "report.html")
    assert line in (tmp_path / "report.html").read_text()
