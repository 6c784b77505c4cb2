"""The plots show the histories' numbers, with units and a color per strategy."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text

from hetjax.engine.records.history import WorkerEvent
from hetjax.report import Comparison, plot
from hetjax.report.drawing.batch_sizes import batch_sizes
from hetjax.report.drawing.curves import OTHERS, spread, time_to_accuracy
from hetjax.report.drawing.gantt import timeline
from hetjax.report.plot_data import COLORS, KINDS, X_LABELS, strategy_styles


def bars(collection):
    """(start, finish, y of the middle) of each bar."""
    boxes = [path.get_extents() for path in collection.get_paths()]
    return [(b.x0, b.x1, (b.y0 + b.y1) / 2) for b in boxes]


def spans(ax, row, kind):
    """The bars of one kind in one worker's row."""
    drawn = [b for c in ax.collections if c.get_label() == kind for b in bars(c)]
    return [(start, finish) for start, finish, y in drawn if y == pytest.approx(row)]


def test_curves_are_medians_and_bands(runs):
    figure = runs.plot()
    assert isinstance(figure, Figure)
    (ax,) = figure.axes
    sync, alone, target = ax.get_lines()
    np.testing.assert_array_equal(sync.get_xdata(), [0, 1, 2, 3])
    np.testing.assert_array_equal(sync.get_ydata(), [0.1, 0.4, 0.6, 0.9])
    np.testing.assert_array_equal(alone.get_ydata(), [0.1, 0.7, 0.8, 0.85])
    assert set(target.get_ydata()) == {runs.target}
    (band,) = ax.collections  # of "sync": a single run has none
    corners = band.get_paths()[0].vertices
    for t, low, high in [(0, 0, 0.2), (1, 0.3, 0.5), (2, 0.5, 0.9), (3, 0.8, 0.94)]:
        ys = corners[corners[:, 0] == t, 1]
        assert (ys.min(), ys.max()) == (low, high)
    assert ax.get_xlabel() == "virtual time [s]"
    assert ax.get_ylabel() == "accuracy"
    # at the ends of the lines, from the bottom up
    labels = sorted(ax.texts, key=lambda text: text.get_position()[1])
    assert [t.get_text() for t in labels] == ["async", "target 0.873", "sync"]


def test_labels_of_equal_ends_do_not_overlap(make):
    last = (0.5, 0.9, 0.9, 0.9, 0.9, 0.2, 0.9, 0.9)
    histories = [make(f"s{k}", 0, (0.1, value)) for k, value in enumerate(last)]
    figure = time_to_accuracy(histories, "accuracy", "seconds", 0.9)
    (ax,) = figure.axes
    figure.draw_without_rendering()
    labels = sorted(ax.texts, key=lambda text: text.get_position()[1])
    texts = [t.get_text() for t in labels]
    assert texts[:2] == ["s5", "s0"]
    assert set(texts) == {f"s{k}" for k in range(8)} | {"target 0.9"}
    # without the lines that lead to them
    boxes = [Text.get_window_extent(t) for t in labels]
    for below, above in pairwise(boxes):
        assert below.y1 <= above.y0 + 0.5
    assert all(box.x0 > ax.get_window_extent().x1 for box in boxes)
    assert max(box.x1 for box in boxes) <= figure.bbox.x1


def test_more_than_eight_strategies_have_panels_of_their_own(make):
    last = (0.5, 0.9, 0.7, 0.6, 0.8, 0.3, 0.4, 0.2, 0.1)
    histories = [
        make(f"s{k}", seed, (0.1, value + seed / 100))
        for k, value in enumerate(last)
        for seed in (0, 1, 2)
    ]
    histories[0].stopped = "loss is nan"
    figure = time_to_accuracy(histories, "accuracy", "seconds", 0.65)
    assert [ax.get_title("left") for ax in figure.axes] == [
        "s0\n(stopped early: 1 of 3 seeds)",
        *(f"s{k}" for k in range(1, 9)),
    ]
    styles = strategy_styles(histories)
    for k, ax in enumerate(figure.axes):
        *others, own, target = ax.get_lines()
        assert own.get_color() == styles[f"s{k}"][0]
        np.testing.assert_allclose(own.get_ydata(), [0.1, last[k] + 0.01])
        assert {line.get_color() for line in others} == {OTHERS}
        ends = [line.get_ydata()[-1] for line in others]
        expected = [value + 0.01 for value in last[:k] + last[k + 1 :]]
        np.testing.assert_allclose(ends, expected)
        assert set(target.get_ydata()) == {0.65}
        (band,) = ax.collections
        corners = band.get_paths()[0].vertices
        ys = corners[corners[:, 0] == 1, 1]
        np.testing.assert_allclose((ys.min(), ys.max()), (last[k], last[k] + 0.02))
        assert ax.get_ylim() == figure.axes[0].get_ylim()
    assert "dashed: target 0.65" in figure.get_suptitle()
    assert "band from lowest to highest" in figure.get_suptitle()


def test_smoothed_values_are_medians_of_evaluations(make):
    runs = Comparison([make(accuracies=(0.1, 0.9, 0.2, 0.3, 0.8))], data={}, machine={})
    (ax,) = runs.plot(smooth=3).axes
    found = ax.get_lines()[0].get_ydata()
    np.testing.assert_allclose(found, [0.5, 0.2, 0.3, 0.3, 0.55])
    assert ax.get_ylabel() == "accuracy, median of 3 evaluations"
    (ax,) = runs.plot(smooth=1).axes
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata()[:2], [0.1, 0.9])
    for wrong in (0, 2.5, True):
        with pytest.raises(ValueError, match=f"smooth={wrong}: pass a number"):
            runs.plot(smooth=wrong)


def test_the_axis_says_of_what_evaluations_are(make):
    def label(*parts):
        histories = [
            make(f"s{k}", 0, (0.1, 0.5), eval_examples=part, at_end=end)
            for k, (part, end) in enumerate(parts)
        ]
        figure = time_to_accuracy(histories, "accuracy", "seconds", None)
        return figure.axes[0].get_ylabel()

    end = {"examples": 153025.0, "accuracy": 0.5}
    assert label((0, {})) == "accuracy"
    assert label((1000, end), (1000, {})) == (
        "accuracy\non 1,000 of 153,025 test examples"
    )
    assert label((1000, {})) == "accuracy\non 1,000 test examples"
    assert label((1000, end), (0, {})) == (
        "accuracy\non different parts of the test split"
    )


def test_where_smaller_is_better_an_untrained_model_is_cut_off_at_the_top(make):
    values = (90.0, 0.5, 0.42, 0.4)
    runs = Comparison([make(accuracies=values, mode="min")], data={}, machine={})
    (ax,) = runs.plot().axes
    low, high = ax.get_ylim()
    assert 0.3 < low < 0.4
    assert 0.5 < high < 0.6
    assert ax.get_ylabel() == "accuracy (lower is better)"
    some = make(accuracies=(90.0, 5.0, 2.0, 1.8), mode="min")
    (ax,) = Comparison([some], data={}, machine={}).plot().axes
    assert 5.0 < ax.get_ylim()[1] < 6.0
    wide = make(accuracies=(90.0, 80.0, 8.0, 0.4), mode="min")
    (ax,) = Comparison([wide], data={}, machine={}).plot().axes
    assert ax.get_yscale() == "log"


@pytest.mark.parametrize(
    ("values", "mode", "said"),
    [
        ((0.1, 0.7, 0.8, 0.85), "max", "axis cut: values below 0.688 are not shown"),
        ((90.0, 5.0, 2.0, 1.8), "min", "axis cut: values above 5.26 are not shown"),
        ((0.1, 0.2, 0.8, 0.85), "max", ""),  # all are there
        ((90.0, 80.0, 8.0, 0.4), "min", ""),  # as the axis is logarithmic
    ],
)
def test_an_axis_that_is_cut_says_so(make, values, mode, said):
    runs = Comparison([make(accuracies=values, mode=mode)], data={}, machine={})
    assert runs.plot().axes[0].get_title("left") == said
    many = [make(f"s{k}", accuracies=values, mode=mode) for k in range(9)]
    title = Comparison(many, data={}, machine={}).plot().get_suptitle()
    assert title.count("axis cut") == bool(said)
    assert said in title


def test_equal_labels_are_around_their_line():
    assert spread([0.5] * 3, [0.1] * 3) == pytest.approx([0.4, 0.5, 0.6])
    assert spread([0.0, 0.9, 1.0], [0.1, 0.1, 0.3]) == pytest.approx([0.05, 0.65, 0.85])


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 0.06)), min_size=1, max_size=16)
)
def test_labels_move_apart_as_little_as_needed(boxes):
    boxes = sorted(boxes)
    wanted, heights = map(list, zip(*boxes, strict=True))
    found = spread(wanted, heights)
    edges = [(y - h / 2, y + h / 2) for y, h in zip(found, heights, strict=True)]
    for (_, below), (above, _) in pairwise(edges):
        assert below <= above + 1e-9
    assert edges[0][0] >= -1e-9
    assert edges[-1][1] <= 1 + 1e-9
    # labels that fit are not moved; a moved label touches a neighbor or a border
    for k, (y, goal) in enumerate(zip(found, wanted, strict=True)):
        free_below = edges[k][0] - (edges[k - 1][1] if k else 0.0) > 1e-6
        free_above = (edges[k + 1][0] if k + 1 < len(edges) else 1.0) - edges[k][1]
        assert not (y > goal + 1e-6 and free_below)
        assert not (y < goal - 1e-6 and free_above > 1e-6)


def lightness(color):
    """L* of CIELAB: 0 for black, 100 for white."""
    parts = np.array(to_rgb(color))
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    y = linear @ (0.2126, 0.7152, 0.0722)
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


@pytest.mark.parametrize(("colors", "apart"), [(COLORS, 6), (KINDS.values(), 8)])
def test_colors_differ_in_gray_too(colors, apart):
    found = sorted(map(lightness, colors))
    assert min(b - a for a, b in pairwise(found)) >= apart


@pytest.mark.parametrize("x", ["examples", "updates"])
def test_other_axes(runs, x):
    (ax,) = runs.plot(x).axes
    expected = [p[x] for p in runs.histories[0].evals]
    np.testing.assert_array_equal(ax.get_lines()[0].get_xdata(), expected)
    assert x in ax.get_xlabel()


@pytest.mark.parametrize("x", ["merges", "bytes"])
def test_axes_that_earlier_files_do_not_have(runs, x):
    with pytest.raises(ValueError, match=f"x is '{x}', which the evaluations of sync"):
        runs.plot(x)
    for history in runs.histories:
        for point in history.evals:
            point[x] = 7 * point["updates"]
    (ax,) = runs.plot(x).axes
    assert list(ax.lines[0].get_xdata()) == [0, 70, 140, 210]
    (own,) = plot.curve(runs.histories[0], x).axes
    assert list(own.lines[0].get_xdata()) == [0, 70, 140, 210]
    assert own.get_xlabel() == X_LABELS[x]


def test_an_unknown_axis_is_refused(runs):
    with pytest.raises(ValueError, match="'epochs', not one of seconds, examples, upd"):
        runs.plot("epochs")


def test_seeds_with_other_examples_are_interpolated(make):
    a, b = make(seed=0, accuracies=(0.0, 0.4)), make(seed=1, accuracies=(0.2, 0.6))
    a.evals[1]["examples"], b.evals[1]["examples"] = 100, 200
    (ax,) = time_to_accuracy([a, b], "accuracy", "examples", None).axes
    (line,) = ax.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), [0, 100])
    np.testing.assert_allclose(line.get_ydata(), [0.1, 0.4])  # of 0.4 and 0.2 + 0.2


def test_a_curve_ends_with_its_shortest_seed(make):
    a = make(seed=0, accuracies=(0.0, 0.2, 0.4))
    b = make(seed=1, accuracies=(0.0, 0.4), stopped="loss is not finite")
    (ax,) = time_to_accuracy([a, b], "accuracy", "seconds", None).axes
    np.testing.assert_array_equal(ax.get_lines()[0].get_xdata(), [0, 1])
    (text,) = ax.texts
    assert text.get_text() == "sync\n(stopped early: 1 of 2 seeds)"


def test_a_run_without_evaluations_is_named(make):
    figure = time_to_accuracy([make()], "accuracy", "seconds", float("nan"))
    (text,) = figure.axes[0].texts
    assert text.get_text() == "sync\n(a run was never evaluated)"
    figure.draw_without_rendering()


def test_sixteen_strategies_look_different(make):
    styles = strategy_styles([make(f"s{i}") for i in range(16)])
    assert len(set(styles.values())) == 16


def test_batch_sizes_are_steps_of_the_strategies_that_change_them(make):
    fixed, moved = make("fixed", accuracies=(0.1,)), make("moved", accuracies=(0.1,))
    for h in (fixed, moved):
        h.workers[0].batch_size_over_time = [(0.0, 32.0)]
        h.workers[1].batch_size_over_time = [(0.0, 32.0)]
    moved.workers[1].batch_size_over_time.append((4.0, 48.5))
    moved.merge_times.extend([2.0, 4.0, 8.0, 11.0])  # in a run of 10 s
    figure = batch_sizes([fixed, moved])
    (ax,) = figure.axes
    first, second = ax.get_lines()
    assert ax.get_title("left") == "moved"
    assert second.get_drawstyle() == "steps-post"
    np.testing.assert_array_equal(second.get_xdata(), [0, 2, 3])
    np.testing.assert_array_equal(second.get_ydata(), [32, 48.5, 48.5])
    np.testing.assert_array_equal(first.get_xdata(), [0, 3])
    assert ax.get_ylabel() == "batch size [examples]"
    assert ax.get_xlabel() == "mega-batches merged"
    assert ax.get_ylim()[0] == 0  # the axis starts at zero, so as not to exaggerate
    color = strategy_styles([fixed, moved])["moved"][0]
    assert ax.spines["left"].get_edgecolor() == to_rgba(color)


def test_very_different_sizes_get_a_logarithmic_axis(make):
    h = make(accuracies=(0.1,))
    h.workers[0].batch_size_over_time = [(0.0, 16.0), (1.0, 1024.0)]
    (ax,) = batch_sizes([h]).axes
    assert ax.get_yscale() == "log"


def test_fixed_batch_sizes_get_a_note(runs):
    (ax,) = runs.plot_batch_sizes().axes
    assert "No strategy changed" in ax.texts[0].get_text()


def gantt_history(make):
    h = make(waiting=(3.0, 10.0, 0.0))
    h.timeline.add(0, "merging", 7.0, 8.0)
    h.workers[0].waiting, h.workers[0].merging = 2.0, 1.0
    h.workers[1].waiting, h.workers[1].idle = 0.0, 10.0
    return h


def test_timeline_bars(make):
    left, right = timeline([gantt_history(make)], window=(6.0, 9.0)).axes
    assert spans(left, 0, "busy") == [(6, 7)]  # of 0 to 7, cut at the window
    assert spans(left, 0, "merging") == [(7, 8)]
    assert spans(left, 0, "waiting") == [(6, 9)]  # below the others
    assert spans(left, 1, "waiting") == []  # never used: idle
    assert spans(left, 2, "busy") == [(6, 9)]
    assert left.get_xlim() == (6.0, 9.0)
    assert left.get_title("left") == "sync: 6 to 9 s of 10 s"
    assert [t.get_text() for t in left.get_yticklabels()] == ["w0", "w1", "w2"]
    assert left.get_xlabel() == "virtual time [s]"
    # busy, merging, waiting, idle of the whole run, for any window; stacked
    shares = [[70, 0, 100], [10, 0, 0], [20, 0, 0], [0, 100, 0]]
    starts = [[0, 0, 0], [70, 0, 100], [80, 0, 100], [100, 0, 100]]
    widths = np.array([p.get_width() for p in right.patches]).reshape(4, 3)
    np.testing.assert_allclose(widths, shares)
    lefts = np.array([p.get_x() for p in right.patches]).reshape(4, 3)
    np.testing.assert_allclose(lefts, starts)


def test_timeline_marks_what_happened_to_workers(make):
    h = gantt_history(make)
    h.events = [
        WorkerEvent(1.0, "w2", "lost", "before the window"),
        WorkerEvent(6.5, "w0", "lost", "it was killed"),
        WorkerEvent(6.5, "w0", "slow", "as scripted"),
        WorkerEvent(8.5, "w0", "joined", "a new process"),
    ]
    figure = timeline([h], window=(6.0, 9.0))
    found = [
        (line.get_marker(), *np.transpose(line.get_data()).tolist())
        for line in figure.axes[0].lines
        if len(line.get_xdata())
    ]
    assert found == [("X", [6.5, 0]), ("^", [8.5, 0])]
    legend = [t.get_text() for t in figure.legends[0].get_texts()]
    assert legend == ["busy", "merging", "waiting", "idle", "lost", "joined"]


def test_timeline_shows_the_last_segments(make):
    h = make(waiting=(0.0,), duration=100.0)
    h.timeline.numbers = type(h.timeline.numbers)("d")
    for i in range(100):
        h.timeline.add(0, "busy", float(i), i + 0.5)
    left, _ = timeline([h]).axes
    assert left.get_xlim() == (60.0, 100.0)  # 40 segments
    assert len(spans(left, 0, "busy")) == 40


def test_timeline_of_chosen_workers(make):
    h = gantt_history(make)
    left, _ = timeline([h], workers=[2, 0]).axes
    assert [t.get_text() for t in left.get_yticklabels()] == ["w2", "w0"]
    assert left.get_title("left").endswith("2 of 3 workers")
    with pytest.raises(ValueError, match=r"no workers \[3\]: it has 3"):
        timeline([h], workers=[0, 3])
    with pytest.raises(ValueError, match="window"):
        timeline([h], window=(2.0, 2.0))


def test_timeline_of_many_workers_shows_some(make):
    left, _ = timeline([make(waiting=(1.0,) * 1000)]).axes
    names = [t.get_text() for t in left.get_yticklabels()]
    assert (len(names), names[0], names[-1]) == (36, "w0", "w999")


def test_timeline_has_a_panel_per_strategy(runs):
    axes = runs.plot_timeline().axes[::2]
    assert [ax.get_title("left").split(":")[0] for ax in axes] == ["sync", "async"]
    assert spans(axes[0], 1, "busy") == [(0, 6)]  # of the first seed


@pytest.mark.filterwarnings("error")
def test_empty_histories_draw(make):
    runs = Comparison([make(waiting=(), duration=0.0)], data={}, machine={})
    for figure in (runs.plot(), runs.plot_batch_sizes(), runs.plot_timeline()):
        figure.draw_without_rendering()


def test_jupyter_gets_a_png(runs):
    for figure in (runs.plot(), runs.plot_batch_sizes(), runs.plot_timeline()):
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_axis_shows_the_range_where_runs_differ(make):
    late = Comparison([make(accuracies=(0.1, 0.90, 0.94, 0.92))], data={}, machine={})
    low, high = late.plot().axes[0].get_ylim()
    assert 0.8 < low < 0.90
    assert high > 0.94


def test_the_axis_shows_an_early_best_value(make):
    accuracies = (0.1, 0.97, 0.98, *[0.95] * 18)
    runs = Comparison([make(accuracies=accuracies)], data={}, machine={})
    low, high = runs.plot().axes[0].get_ylim()
    assert 0.8 < low < 0.95
    assert high > 0.98


@pytest.mark.parametrize("accuracies", [(0.1, 0.3, 0.6, 0.9), (0.0, 0.0, 0.0), (0.5,)])
def test_the_axis_keeps_a_run_that_climbs_or_stays(make, accuracies):
    figure = Comparison([make(accuracies=accuracies)], data={}, machine={}).plot()
    low, high = figure.axes[0].get_ylim()
    assert low <= min(accuracies[1:], default=0.5)
    assert high >= max(accuracies)
