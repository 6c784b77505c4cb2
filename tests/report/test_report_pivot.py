"""Tables and heat maps of one number over two settings."""

import math

import numpy as np
import pytest

from hetjax.report import Comparison

# accuracies of (local_steps, learning_rate): (8, 1.0) was not run, (1, 1.0) was poor
BESTS = {(8, 0.1): 0.9, (1, 0.1): 0.8, (1, 0.01): 0.6, (8, 0.01): 0.7, (1, 1.0): 0.2}


def grid(make, bests=BESTS, seeds=(0,), first=0.1, **changes):
    histories = [
        make(
            f"{steps}, {rate}",
            seed,
            (first, best + seed / 100),
            settings={"local_steps": steps, "learning_rate": rate, "momentum": 0.9},
            **changes,
        )
        for (steps, rate), best in bests.items()
        for seed in seeds
    ]
    return Comparison(histories, data={}, machine={})


def cells(figure):
    """Color and text of every cell, by column and row; None for a blank one."""
    (ax,) = figure.axes
    (image,) = ax.images
    found = {}
    for text in ax.texts:
        x, y = text.get_position()
        score = image.get_array()[y, x]
        color = None if np.ma.is_masked(score) else image.cmap(image.norm(score))
        found[x, y] = color, text.get_text()
    return found


def test_values_are_in_the_order_of_the_settings(make):
    assert str(grid(make).pivot("local_steps", "learning_rate")).splitlines() == [
        r"local_steps \ learning_rate   0.01    0.1    1.0",
        "-" * 48,
        "1                            0.600  0.800  0.200",
        "8                            0.700  0.900",
        "best accuracy",
    ]


def test_a_target_that_is_not_reached_is_never(make):
    table = grid(make).pivot("local_steps", "learning_rate", "seconds_to_target")
    assert table.rows == (("1", "never", "never", "never"), ("8", "never", "1", ""))
    assert table.caption == ("virtual seconds to 0.873",)


def test_other_numbers_of_the_summary(make):
    runs = grid(make, seeds=(0, 1, 2))
    table = runs.pivot("learning_rate", "local_steps", "compilations")
    assert table.rows == (("0.01", "9", "9"), ("0.1", "9", "9"), ("1.0", "9", ""))
    assert table.caption == ("compilations", "sum over seeds")
    best = runs.pivot("learning_rate", "local_steps")
    assert best.rows[0] == ("0.01", "0.610", "0.710")  # of seed 1
    assert best.caption == ("best accuracy", "medians over seeds")
    for h in runs.histories:
        h.at_end = {"examples": 9, "accuracy": h.best() - 0.05}
    ends = runs.pivot("learning_rate", "local_steps", "at_end")
    assert ends.rows[0] == ("0.01", "0.560", "0.660")


def test_settings_that_are_texts_or_tuples(make):
    histories = [
        make(f"{a}{b}", 0, (0.5,), settings={"a": a, "b": b})
        for a in ("z", "cosine")
        for b in ((2, 4), None)
    ]
    table = Comparison(histories, data={}, machine={}).pivot("a", "b")
    assert table.header == (r"a \ b", "(2, 4)", "None")
    assert [row[0] for row in table.rows] == ["z", "cosine"]


def test_runs_that_differ_in_other_settings(make):
    runs = grid(make)
    other = grid(make, {(1, 0.1): 0.5})
    other.histories[0].strategy = "other"
    other.histories[0].settings["momentum"] = 0.0
    both = runs + other
    with pytest.raises(ValueError, match=r"differ in momentum, too.*'momentum': 0.0}"):
        both.pivot("local_steps", "learning_rate")
    chosen = both.pivot("local_steps", "learning_rate", where={"momentum": 0.0})
    assert chosen.rows == (("1", "0.500"),)
    assert chosen.caption == ("best accuracy", "momentum=0.0")
    with pytest.raises(ValueError, match="no strategy has the settings where"):
        both.pivot("local_steps", "learning_rate", where={"momentum": 0.5})
    other.histories[0].settings["momentum"] = 0.9
    with pytest.raises(ValueError, match="'1, 0.1' and 'other' have the same settings"):
        (runs + other).pivot("local_steps", "learning_rate")


def test_strategies_are_rows(make):
    """Strategies of one kind agree in their settings; different kinds have others."""
    histories = [
        make(f"{name}, learning_rate={rate}", 0, (0.1, best), settings=settings)
        for name, own in (("sma", {"momentum": 0.9}), ("sync", {}))
        for rate, best in ((0.1, 0.5), (1.0, 0.6))
        for settings in ({"learning_rate": rate, **own},)
    ]
    runs = Comparison(histories, data={}, machine={})
    table = runs.pivot("strategy", "learning_rate")
    assert table.rows == (("sma", "0.500", "0.600"), ("sync", "0.500", "0.600"))
    for h in histories[:2]:
        h.strategy, h.algorithm = f"{h.settings['learning_rate']}", "sma"
    again = runs.pivot("strategy", "learning_rate", where={"strategy": "sma"})
    assert again.rows == (("sma", "0.500", "0.600"),)
    histories[1].settings["momentum"] = 0.0
    with pytest.raises(ValueError, match="differ in momentum, too"):
        runs.pivot("strategy", "learning_rate")


def test_unknown_names_are_refused(make):
    runs = grid(make)
    for arguments, message in (
        (
            ("steps", "learning_rate"),
            "no setting 'steps': settings of all .* are learning",
        ),
        (("local_steps", "local_steps"), "are both 'local_steps'"),
        (("local_steps", "learning_rate", "seeds"), "'seeds', not one of best, final"),
        (
            ("local_steps", "learning_rate", "at_end"),
            "known only with eval_examples",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            runs.pivot(*arguments)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_better_cells_are_darker(make, mode):
    runs = grid(make, mode=mode, first=0.1 if mode == "max" else 1.0)
    figure = runs.plot_heat_map("local_steps", "learning_rate")
    found = cells(figure)
    ordered = sorted(found.values(), key=lambda cell: sum(cell[0]))  # dark first
    texts = [text for _, text in ordered]
    rising = ["0.200", "0.600", "0.700", "0.800", "0.900"]
    assert texts == (rising if mode == "min" else rising[::-1])
    assert len(found) == 5  # (8, 1.0) is blank
    assert figure.axes[0].get_xlabel() == "local_steps"
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["1", "8"]


def test_never_has_no_color_and_few_seconds_are_dark(make):
    runs = grid(make)
    for seconds, h in enumerate(runs.histories, start=1):
        h.evals[1]["seconds"] = float(seconds)
    runs.target = 0.65
    figure = runs.plot_heat_map("learning_rate", "local_steps", "seconds_to_target")
    found = {text: color for color, text in cells(figure).values()}
    assert found["never"] is None
    shades = [sum(found[text]) for text in ("1", "2", "4")]
    assert shades == sorted(shades)
    assert shades[0] < shades[2] < sum((0.95, 0.95, 1.0, 1.0))


@pytest.mark.filterwarnings("error")
def test_maps_without_numbers_or_differences_draw(make):
    equal = grid(make, dict.fromkeys(BESTS, 0.5))
    unknown = grid(make, dict.fromkeys(BESTS, math.nan))
    for runs in (equal, unknown):
        for value in ("best", "seconds_to_target"):
            figure = runs.plot_heat_map("learning_rate", "local_steps", value)
            figure.draw_without_rendering()
