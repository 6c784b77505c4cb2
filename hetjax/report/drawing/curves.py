"""Curves of the main metric over time, examples, bytes...: medians over seeds.

Up to `MANY` strategies share a panel, with a label at the end of every line. More are
drawn in one small panel each, with the other strategies in gray behind.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from hetjax.engine.records.history import History
from hetjax.report.drawing.line_labels import label_ends
from hetjax.report.drawing.panels import (
    X_LABELS,
    Picture,
    darker,
    strategy_styles,
    tidy,
)

MANY = 8  # strategies that fit into one panel
OTHERS = "0.82"  # the color of the other strategies in a small panel


class Curve(NamedTuple):
    """The values of one strategy, at the points where all of its runs have values."""

    name: str
    note: str  # such as "(stopped early)"
    points: np.ndarray  # [P] of the horizontal axis
    values: np.ndarray  # [runs, P]
    color: str
    dash: str


class Chart(NamedTuple):
    """Curves of a metric over `x` to be drawn, and their runs."""

    curves: list[Curve]
    histories: Sequence[History]
    metric: str
    x: str
    target: float | None
    smooth: int


def time_to_accuracy(
    histories: Sequence[History],
    metric: str,
    x: str,
    target: float | None,
    smooth: int = 1,
) -> Figure:
    """Plot a metric over seconds, examples, ...: median and band over the seeds.

    The metric is interpolated between evaluations, as seeds may differ in examples and
    updates. A line ends where the first of its seeds ends: beyond that, a median would
    leave out the runs that stopped. Every value is the median of `smooth` evaluations
    around it.
    """
    if x not in X_LABELS:
        raise ValueError(f"x is {x!r}, not one of {', '.join(X_LABELS)}")
    for h in histories:
        if any(x not in point for point in h.evals):
            raise ValueError(
                f"x is {x!r}, which the evaluations of {h.strategy}, seed {h.seed}, do "
                'not have: an earlier version made them; use "seconds" or "examples"'
            )
    if isinstance(smooth, bool) or not isinstance(smooth, int) or smooth < 1:
        raise ValueError(f"smooth={smooth!r}: pass a number of evaluations, at least 1")
    curves = [
        _curve([h for h in histories if h.strategy == name], metric, x, smooth, *style)
        for name, style in strategy_styles(histories).items()
    ]
    if target is not None and not math.isfinite(target):
        target = None
    draw = _draw_facets if len(curves) > MANY else _draw_panel
    return draw(Chart(curves, histories, metric, x, target, smooth))


def _draw_panel(chart: Chart) -> Figure:
    """Draw all curves in one panel."""
    figure = Picture(figsize=(8, 4.8), layout="constrained")
    ax = figure.add_subplot()
    for curve in chart.curves:
        _draw_curve(ax, curve, alpha=0.15 if len(chart.curves) <= 4 else 0.1)
    _finish_panel(ax, chart)
    ax.set_xlabel(_x_label(chart))
    ax.set_ylabel(_y_label(chart))
    ax.set_title(_notes(ax, chart), fontsize=9, loc="left", color="0.35")
    ends = [(c.name, c.note, *_end(c), c.color) for c in chart.curves]
    if chart.target is not None:
        text, right = f"target {chart.target:g}", ax.get_xlim()[1]
        ends.append((text, "", right, chart.target, "0.35"))
    label_ends(ax, ends)
    return figure


def _draw_facets(chart: Chart) -> Figure:
    """Draw a small panel for every curve, with shared axes."""
    curves = chart.curves
    columns = 3 if len(curves) <= 12 else 4 if len(curves) <= 24 else 5
    rows = math.ceil(len(curves) / columns)
    size = (2.65 * columns + 0.4, 1.85 * rows + 0.8)
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    axes = axes.ravel()
    for ax in axes[len(curves) :]:
        ax.set_visible(False)
    for i, (ax, curve) in enumerate(zip(axes, curves, strict=False)):
        for other in curves:
            if other is not curve:
                middle = np.median(other.values, axis=0)
                ax.plot(other.points, middle, color=OTHERS, linewidth=0.7, zorder=1)
        _draw_curve(ax, curve._replace(dash="-"), alpha=0.25)
        title = "\n".join(
            textwrap.wrap(curve.name, 36) + [curve.note] * bool(curve.note)
        )
        ax.set_title(title, fontsize=9, loc="left", color=darker(curve.color))
        if i + columns >= len(curves):  # the lowest panel of its column
            ax.tick_params(labelbottom=True)
    # the axes are shared: settings of one apply to all
    for ax in axes[: len(curves)]:
        _finish_panel(ax, chart)
        ax.tick_params(labelsize=8)
        ax.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
    figure.supxlabel(_x_label(chart), fontsize=10)
    figure.supylabel(_y_label(chart), fontsize=10)
    dashed = "" if chart.target is None else f"dashed: target {chart.target:g}"
    notes = _notes(axes[0], chart, "gray: the other strategies", dashed)
    figure.suptitle(notes, fontsize=9, color="0.35", x=0.01, ha="left")
    return figure


def _notes(ax: Axes, chart: Chart, *others: str) -> str:
    """Notes on bands, if there are any, `others`, and values that are not shown."""
    several = len(chart.histories) > len(chart.curves)
    band = "median over seeds, band from lowest to highest" if several else ""
    return "; ".join(filter(None, [band, *others, _hidden_values(ax, chart.curves)]))


def _curve(
    runs: Sequence[History], metric: str, x: str, smooth: int, color: str, dash: str
) -> Curve:
    points, values = _over_seeds(runs, metric, x, smooth)
    return Curve(runs[0].strategy, _note(runs), points, values, color, dash)


def _draw_curve(ax: Axes, curve: Curve, alpha: float) -> None:
    """Draw the median of the values, and the band of several runs."""
    if len(curve.values) > 1:
        low, high = curve.values.min(0), curve.values.max(0)
        ax.fill_between(
            curve.points, low, high, color=curve.color, alpha=alpha, linewidth=0
        )
    ax.plot(
        curve.points,
        np.median(curve.values, axis=0),
        color=curve.color,
        linestyle=curve.dash,
        linewidth=1.8,
        marker="o" if len(curve.points) <= 12 else "",
        markersize=3.5,
        label=curve.name,
    )


def _finish_panel(ax: Axes, chart: Chart) -> None:
    """Draw the target, and choose the ranges of the axes."""
    if chart.target is not None:
        dashed = (0, (5, 3))
        ax.axhline(
            chart.target, color="0.35", linestyle=dashed, linewidth=1, zorder=1.5
        )
    tidy(ax)
    _show_where_runs_differ(ax, chart)
    ends = [c.points[-1] for c in chart.curves if len(c.points)]
    ax.set_xlim(0, max(ends, default=0.0) or None)


def _show_where_runs_differ(ax: Axes, chart: Chart) -> None:
    """Fit the vertical axis to trained models; values of untrained ones may be hidden.

    The panel shows all values after the first tenth of every run, the best ones, and
    the target. If these differ by more than a factor of two, the axis begins at the
    smallest value of all. If they differ by more than fifty, and smaller is better, it
    is logarithmic.
    """
    histories, metric = chart.histories, chart.metric
    shown = [h.best() for h in histories if h.metric == metric]
    shown += [p[metric] for h in histories for p in h.evals[1 + len(h.evals) // 10 :]]
    shown += [] if chart.target is None else [chart.target]
    late = [v for v in shown if math.isfinite(v)]
    if len(late) < 2 or max(late) <= 0:
        return
    close = min(late) >= max(late) / 2
    margin = 0.08 * (max(late) - min(late)) or 0.01
    if histories[0].mode == "min" and min(late) > 0:
        if max(late) > 50 * min(late):
            ax.set_yscale("log")
            ax.yaxis.set_minor_formatter(NullFormatter())
            return
        ax.set_ylim(top=max(late) + margin)
    if close:
        ax.set_ylim(bottom=max(0.0, min(late) - margin), top=max(late) + margin)


def _hidden_values(ax: Axes, curves: Sequence[Curve]) -> str:
    """A note on values outside the vertical axis; empty if there are none."""
    low, high = ax.get_ylim()
    every = np.concatenate([c.values.ravel() for c in curves])
    sides = [f"below {low:.3g}"] * bool(np.any(every < low))
    sides += [f"above {high:.3g}"] * bool(np.any(every > high))
    return f"axis cut: values {' and '.join(sides)} are not shown" if sides else ""


def _over_seeds(
    runs: Sequence[History], metric: str, x: str, smooth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the points where all runs have values [P], and the metric [runs, P]."""
    if not all(h.evals for h in runs):
        return np.empty(0), np.empty((len(runs), 0))
    xs = [np.array([p[x] for p in h.evals], float) for h in runs]
    ys = [
        _smoothed(np.array([p[metric] for p in h.evals], float), smooth) for h in runs
    ]
    start, end = max(v[0] for v in xs), min(v[-1] for v in xs)
    grid = np.unique(np.concatenate(xs))
    grid = grid[(grid >= start) & (grid <= end)]
    values = [np.interp(grid, a, b) for a, b in zip(xs, ys, strict=True)]
    return grid, np.stack(values)


def _smoothed(values: np.ndarray, count: int) -> np.ndarray:
    """The median of `count` values around each [P]; fewer at both ends."""
    before, after = (count - 1) // 2, count // 2
    windows = [values[max(0, i - before) : i + after + 1] for i in range(len(values))]
    return np.array([np.median(window) for window in windows])


def _end(curve: Curve) -> tuple[float, float]:
    """The last point of a median; NaN without any."""
    if not len(curve.points):
        return math.nan, math.nan
    return float(curve.points[-1]), float(np.median(curve.values[:, -1]))


def _note(runs: Sequence[History]) -> str:
    """A note on runs of a strategy that stopped early or collapsed; else empty."""
    if not all(h.evals for h in runs):
        return "(a run was never evaluated)"
    counts = {
        "stopped early": sum(h.ended_early for h in runs),
        "ended far worse than its best": sum(h.collapsed for h in runs),
    }
    of = f" of {len(runs)} seeds"
    notes = [
        f"{what}: {count}{of}" if len(runs) > 1 else what
        for what, count in counts.items()
        if count
    ]
    return f"({', '.join(notes)})" if notes else ""


def _x_label(chart: Chart) -> str:
    real = chart.x == "seconds" and any(h.real for h in chart.histories)
    return "time [s]" if real else X_LABELS[chart.x]


def _y_label(chart: Chart) -> str:
    """The metric, whether lower is better, and the examples of the evaluations."""
    histories, label = chart.histories, chart.metric
    label += "" if histories[0].mode == "max" else " (lower is better)"
    if chart.smooth > 1:
        label += f", median of {chart.smooth} evaluations"
    parts = {h.eval_examples for h in histories}
    if parts == {0}:
        return label
    if len(parts) > 1:
        return f"{label}\non different parts of the test split"
    wholes = {int(h.at_end["examples"]) for h in histories if h.at_end}
    of = f" of {max(wholes):,}" if wholes else ""
    return f"{label}\non {max(parts):,}{of} test examples"
