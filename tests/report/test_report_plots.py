"""The plots show the histories' numbers, with units and a colour per strategy."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from hetjax.report import Comparison
from hetjax.report.panels import strategy_styles
from hetjax.report.plots import batch_sizes, time_to_accuracy, timeline


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
    texts = [t.get_text() for t in ax.get_legend().get_texts()]
    assert texts == ["sync", "async"]


def test_the_legend_of_many_strategies_is_beside_the_panel(make):
    """It is in the order of their last values, and there are no bands."""
    last = (0.5, 0.9, 0.7, 0.6, 0.8, 0.3, 0.4, 0.2)
    histories = [
        make(f"s{k}", seed, (0.1, value))
        for k, value in enumerate(last)
        for seed in (0, 1)
    ]
    figure = time_to_accuracy(histories, "accuracy", "seconds", 0.65)
    (ax,) = figure.axes
    assert not ax.collections
    figure.canvas.draw()
    box = ax.get_legend().get_window_extent()
    assert box.x0 > ax.get_window_extent().x1
    texts = [t.get_text() for t in ax.get_legend().get_texts()]
    assert texts == ["s1", "s4", "s2", "s3", "s0", "s6", "s5", "s7"]


@pytest.mark.parametrize("x", ["examples", "updates"])
def test_other_axes(runs, x):
    (ax,) = runs.plot(x).axes
    expected = [p[x] for p in runs.histories[0].evals]
    np.testing.assert_array_equal(ax.get_lines()[0].get_xdata(), expected)
    assert x in ax.get_xlabel()


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
    (text,) = ax.get_legend().get_texts()
    assert text.get_text() == "sync (stopped early: 1 of 2 seeds)"


def test_a_run_without_evaluations_is_named(make):
    figure = time_to_accuracy([make()], "accuracy", "seconds", float("nan"))
    (text,) = figure.axes[0].get_legend().get_texts()
    assert text.get_text() == "sync (a run was never evaluated)"
    figure.canvas.draw()


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
    colour = strategy_styles([fixed, moved])["moved"][0]
    assert ax.spines["left"].get_edgecolor() == to_rgba(colour)


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
        figure.canvas.draw()


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
