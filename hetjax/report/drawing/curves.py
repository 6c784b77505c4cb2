"""Pictures of a metric over time, examples, bytes, ...: medians over seeds.

Up to `MANY` strategies share a panel, with a label at the end of every line. More are
drawn in one small panel each, with the other strategies in gray behind.
"""

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from scipy.optimize import isotonic_regression

from hetjax.engine.records.history import History
from hetjax.report.drawing.panels import Picture, darker, tidy
from hetjax.report.plot_data import Curve, curves_of, value_range, x_label, y_label

SIZE = 9  # [points] of the labels' text
MANY = 8  # strategies that fit into one panel
OTHERS = "0.82"  # the color of the other strategies in a small panel
QUIET = "0.35"  # of notes and of the target


class Chart(NamedTuple):
    """Curves to be drawn, and their runs."""

    curves: list[Curve]
    histories: Sequence[History]
    labels: tuple[str, str]  # of the axes
    target: float | None


def time_to_accuracy(
    histories: Sequence[History],
    metric: str,
    x: str,
    target: float | None,
    smooth: int = 1,
) -> Figure:
    """Plot a metric over seconds, examples, ...: median and band over the seeds."""
    curves = curves_of(histories, metric, x, smooth)
    if target is not None and not math.isfinite(target):
        target = None
    labels = x_label(histories, x), y_label(histories, smooth)
    draw = _draw_facets if len(curves) > MANY else _draw_panel
    return draw(Chart(curves, histories, labels, target))


def _draw_panel(chart: Chart) -> Figure:
    """Draw all curves in one panel."""
    figure = Picture(figsize=(8, 4.8), layout="constrained")
    ax = figure.add_subplot()
    for curve in chart.curves:
        _draw_curve(ax, curve, alpha=0.15 if len(chart.curves) <= 4 else 0.1)
    _finish_panel(ax, chart)
    ax.set(xlabel=chart.labels[0], ylabel=chart.labels[1])
    ax.set_title(_notes(ax, chart), fontsize=9, loc="left", color=QUIET)
    ends = [
        (f"{c.name}\n{c.note}" if c.note else c.name, *c.end, c.color)
        for c in chart.curves
    ]
    if chart.target is not None:
        right = ax.get_xlim()[1]
        ends.append((f"target {chart.target:g}", right, chart.target, QUIET))
    _label_ends(ax, ends)
    return figure


def _label_ends(ax: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Write labels (text, x, y, color) of line ends to the right of a panel.

    A thin line leads from a line's end to its label. Lines that end nowhere (NaN) have
    their labels at the bottom.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # so that the panel has its size
    height = ax.get_window_extent().height * 72 / figure.dpi  # [points]
    to_panel = ax.transData + ax.transAxes.inverted()

    def place(end: tuple[str, float, float, str]) -> tuple[float, float]:
        x, y = to_panel.transform(end[1:3])
        return (float(x), min(1.0, max(0.0, float(y)))) if math.isfinite(y) else (1, 0)

    # from the bottom up; of equal ends, the first one is on top
    ends = sorted(ends, key=lambda end: -place(end)[1])[::-1]
    heights = [1.3 * SIZE * len(text.splitlines()) / height for text, *_ in ends]
    middles = spread([place(end)[1] for end in ends], heights)
    for end, middle in zip(ends, middles, strict=True):
        text, _, value, color = end
        arrow = {
            "arrowstyle": "-",
            "color": color,
            "linewidth": 0.7,
            # long lines are dotted, unlike curves
            "linestyle": "-" if place(end)[0] > 0.97 else (0, (1, 3)),
            "shrinkA": 1,
            "shrinkB": 0,
            "relpos": (0, 0.5),
        }
        ax.annotate(
            text,
            place(end),
            (1.035, middle),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            color=darker(color),
            fontsize=SIZE,
            linespacing=1.15,
            annotation_clip=False,
            arrowprops=arrow if math.isfinite(value) else None,
        )


def spread(wanted: Sequence[float], heights: Sequence[float]) -> np.ndarray:
    """Move boxes apart as little as possible, in their order, within 0 and 1.

    `wanted` are the centers of the boxes, rising; the result minimizes the sum of the
    squared moves, if all boxes fit. (adjustText 1.4, which also moves labels, leaves
    some on top of each other if one has two lines.)
    """
    steps = [(a + b) / 2 for a, b in pairwise(heights)]
    offsets = np.cumsum([0.0, *steps])
    apart = isotonic_regression(np.asarray(wanted) - offsets).x
    low, high = heights[0] / 2, 1 - heights[-1] / 2 - offsets[-1]
    return np.clip(apart, min(low, high), high) + offsets


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
                ax.plot(other.points, other.median, color=OTHERS, lw=0.7, zorder=1)
        _draw_curve(ax, curve._replace(dash="-"), alpha=0.25)
        lines = textwrap.wrap(curve.name, 36) + [curve.note] * bool(curve.note)
        ax.set_title(
            "\n".join(lines), fontsize=9, loc="left", color=darker(curve.color)
        )
        if i + columns >= len(curves):  # the lowest panel of its column
            ax.tick_params(labelbottom=True)
    # the axes are shared: settings of one apply to all
    for ax in axes[: len(curves)]:
        _finish_panel(ax, chart)
        ax.tick_params(labelsize=8)
        ax.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
    figure.supxlabel(chart.labels[0], fontsize=10)
    figure.supylabel(chart.labels[1], fontsize=10)
    dashed = "" if chart.target is None else f"dashed: target {chart.target:g}"
    notes = _notes(axes[0], chart, "gray: the other strategies", dashed)
    figure.suptitle(notes, fontsize=9, color=QUIET, x=0.01, ha="left")
    return figure


def _draw_curve(ax: Axes, curve: Curve, alpha: float) -> None:
    """Draw the median of the values, and the band of several runs."""
    if len(curve.values) > 1:
        low, high = curve.values.min(0), curve.values.max(0)
        ax.fill_between(curve.points, low, high, color=curve.color, alpha=alpha, lw=0)
    ax.plot(
        curve.points,
        curve.median,
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
        ax.axhline(chart.target, color=QUIET, ls=(0, (5, 3)), lw=1, zorder=1.5)
    tidy(ax)
    shown = value_range(chart.histories, chart.target)
    if shown.logarithmic:
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim(shown.low, shown.high)
    ends = [c.points[-1] for c in chart.curves if len(c.points)]
    ax.set_xlim(0, max(ends, default=0.0) or None)


def _notes(ax: Axes, chart: Chart, *others: str) -> str:
    """Notes on bands, if there are any, `others`, and values that are not shown."""
    several = len(chart.histories) > len(chart.curves)
    band = "median over seeds, band from lowest to highest" if several else ""
    low, high = ax.get_ylim()
    every = np.concatenate([c.values.ravel() for c in chart.curves])
    sides = [f"below {low:.3g}"] * bool(np.any(every < low))
    sides += [f"above {high:.3g}"] * bool(np.any(every > high))
    cut = f"axis cut: values {' and '.join(sides)} are not shown" if sides else ""
    return "; ".join(filter(None, [band, *others, cut]))
