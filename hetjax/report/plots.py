"""Plots of histories: time to accuracy, batch sizes, timelines.

They use matplotlib's objects, not pyplot: no display, no global state.
"""

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from hetjax.engine.records.history import History
from hetjax.report import gantt
from hetjax.report.panels import (
    Picture,
    first_seeds,
    grouped,
    mark_strategy,
    note,
    strategy_names,
    strategy_styles,
    tidy,
)

MANY = 8  # strategies: with so many a legend would hide the curves

X_LABELS = {
    "seconds": "virtual time [s]",
    "examples": "examples processed",
    "updates": "local updates",
}


def time_to_accuracy(
    histories: Sequence[History], metric: str, x: str, target: float | None
) -> Figure:
    """Plot a metric over seconds, examples or updates: median and band over the seeds.

    The metric is interpolated between evaluations, as seeds may differ in examples and
    updates. A line ends where the first of its seeds ends: beyond that, a median would
    leave out the runs that stopped. Many strategies have their legend next to the
    panel, in the order of their last values, and no bands.
    """
    if x not in X_LABELS:
        raise ValueError(f"x is {x!r}, not one of {', '.join(X_LABELS)}")
    many = len(strategy_names(histories)) >= MANY
    size = (10.5, 6) if many else (8, 4.8)
    figure = Picture(figsize=size, layout="constrained")
    ax = figure.add_subplot()
    for name, style in strategy_styles(histories).items():
        runs = [h for h in histories if h.strategy == name]
        label = _curve_label(name, runs)
        _draw_curve(ax, *_over_seeds(runs, metric, x), style, label, band=not many)
    if target is not None and math.isfinite(target):
        _draw_target(ax, target)
    tidy(ax)
    _show_where_runs_differ(ax, histories, metric, target)
    ax.set_xlim(left=0)
    real = x == "seconds" and any(h.real for h in histories)
    ax.set_xlabel("time [s]" if real else X_LABELS[x])
    ax.set_ylabel(metric)
    if len(histories) > len(strategy_names(histories)):
        title = "median over seeds" + ("" if many else ", band from lowest to highest")
        ax.set_title(title, fontsize=10, loc="left")
    _add_legend(ax, many)
    return figure


def _add_legend(ax: Axes, many: bool) -> None:
    if not many:
        ax.legend(frameon=False, loc="best")
        return
    curves = [line for line in ax.get_lines() if str(line.get_label())[:1] != "_"]

    def last(curve: Line2D) -> float:
        return np.asarray(curve.get_ydata(), float)[-1:].sum()  # 0 without points

    ax.legend(
        handles=sorted(curves, key=last, reverse=True),
        frameon=False,
        loc="upper left",
        bbox_to_anchor=(1.07, 1.0),  # the target is labelled just beside the panel
        fontsize=9,
    )


def _draw_curve(
    ax: Axes,
    grid: np.ndarray,
    values: np.ndarray,
    style: tuple[str, str],
    label: str,
    *,
    band: bool,
) -> None:
    """Draw the median of `values` [runs, P], and their band if there are several."""
    colour, dash = style
    if band and len(values) > 1:
        low, high = values.min(0), values.max(0)
        ax.fill_between(grid, low, high, color=colour, alpha=0.15, linewidth=0)
    ax.plot(
        grid,
        np.median(values, axis=0),
        color=colour,
        linestyle=dash,
        linewidth=1.8,
        marker="o" if len(grid) <= 40 else "",
        markersize=3.5,
        label=label,
    )


def _show_where_runs_differ(
    ax: Axes, histories: Sequence[History], metric: str, target: float | None
) -> None:
    """Cut off the first climb of an untrained model at the bottom of the panel.

    The panel shows all values after the first tenth of every run, the best ones, and
    the target. If these values differ by more than a factor of two, the axis is not
    changed.
    """
    best = [h.best() for h in histories if h.metric == metric]
    late = [p[metric] for h in histories for p in h.evals[1 + len(h.evals) // 10 :]]
    late = [v for v in [*late, *best, target] if v is not None and math.isfinite(v)]
    if len(late) < 2 or min(late) < max(late) / 2 or max(late) <= 0:
        return
    margin = 0.08 * (max(late) - min(late)) or 0.01
    ax.set_ylim(bottom=max(0.0, min(late) - margin), top=max(late) + margin)


def _draw_target(ax: Axes, target: float) -> None:
    """Draw the target as a dashed line, labelled next to the panel."""
    ax.axhline(target, color="0.35", linestyle=(0, (5, 3)), linewidth=1)
    ax.annotate(
        f"target\n{target:g}",
        (1, target),
        xytext=(4, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        color="0.35",
        fontsize=9,
    )


def _over_seeds(
    runs: Sequence[History], metric: str, x: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the points where all runs have values [P], and the metric [runs, P]."""
    if not all(h.evals for h in runs):
        return np.empty(0), np.empty((len(runs), 0))
    xs = [np.array([p[x] for p in h.evals], float) for h in runs]
    ys = [np.array([p[metric] for p in h.evals], float) for h in runs]
    start, end = max(v[0] for v in xs), min(v[-1] for v in xs)
    grid = np.unique(np.concatenate(xs))
    grid = grid[(grid >= start) & (grid <= end)]
    values = [np.interp(grid, a, b) for a, b in zip(xs, ys, strict=True)]
    return grid, np.stack(values)


def _curve_label(name: str, runs: Sequence[History]) -> str:
    """The name of the strategy, and whether runs stopped early."""
    if not all(h.evals for h in runs):
        return f"{name} (a run was never evaluated)"
    stopped = sum(bool(h.stopped) for h in runs)
    if not stopped:
        return name
    return f"{name} (stopped early" + (
        f": {stopped} of {len(runs)} seeds)" if len(runs) > 1 else ")"
    )


def batch_sizes(histories: Sequence[History]) -> Figure:
    """Plot every worker's batch size over the merges, for the first seeds.

    Only strategies that change batch sizes are shown; they merge once per mega-batch.
    """
    moved = [h for h in first_seeds(histories) if _sizes_moved(h)]
    if not moved:
        return note("No strategy changed its workers' batch sizes.")
    columns = min(2, len(moved))
    rows = math.ceil(len(moved) / columns)
    figure = Picture(figsize=(5.5 * columns + 1, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    for ax in axes[len(moved) :]:
        ax.set_visible(False)
    styles = strategy_styles(histories)
    for i, (ax, history) in enumerate(zip(axes, moved, strict=False)):
        _draw_sizes(ax, history)
        if i + columns >= len(moved):  # the lowest panel of its column
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("mega-batches merged")
        mark_strategy(ax, history.strategy, styles[history.strategy][0])
    return figure


def _sizes_moved(history: History) -> bool:
    """Did any worker have more than one batch size?"""
    sizes = ({size for _, size in w.batch_size_over_time} for w in history.workers)
    return any(len(s) > 1 for s in sizes)


def _draw_sizes(ax: Axes, history: History) -> None:
    """Draw one strategy's panel: a step line per worker, up to the end of the run."""
    done = np.array(history.merge_times)  # [s]; a size is valid from a merge on
    shown = [w for w in history.workers if w.batch_size_over_time]
    colours = colormaps["viridis"](np.linspace(0, 0.9, len(shown)))
    # the first lines are thicker, to be visible below later lines of the same sizes
    widths = np.linspace(2.8, 1.2, len(shown)) if len(shown) <= 10 else [1] * len(shown)
    for worker, colour, width in zip(shown, colours, widths, strict=True):
        seconds, sizes = map(list, zip(*worker.batch_size_over_time, strict=True))
        end = max(history.duration, seconds[-1])
        ax.step(
            np.searchsorted(done, [*seconds, end], side="right"),
            [*sizes, sizes[-1]],
            where="post",
            color=colour,
            linewidth=width,
            label=worker.name,
        )
    values = [size for w in shown for _, size in w.batch_size_over_time]
    tidy(ax)
    ax.set_xlim(left=0)
    if max(values) > 16 * max(min(values), 1e-9):
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: grouped(value)))
    else:
        ax.set_ylim(0, 1.05 * max(values))
    ax.set_ylabel("batch size [examples]")
    if len(shown) <= 10:
        ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        note = f"{len(shown)} workers, first dark to last light"
        ax.text(1, 1.02, note, ha="right", fontsize=8, transform=ax.transAxes)


def timeline(
    histories: Sequence[History],
    workers: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    *,
    every: bool = False,
) -> Figure:
    """Draw a Gantt chart per strategy (first seed, or `every` run), and shares.

    By default all `workers` are drawn, or some of many, spread evenly. The default
    `window` is the end of every run, with about 40 segments per worker and the same
    length in all runs.
    """
    if window and not window[0] < window[1]:
        raise ValueError(f"the window {window} is empty: it is (start, finish) [s]")
    shown = list(histories) if every else first_seeds(histories)
    most = max(8, 36 // len(shown))  # rows of a run: the figure fits on two screens
    rows = [gantt.chosen_workers(h, workers, most) for h in shown]
    length = median(gantt.busy_length(h) for h in shown)
    styles = strategy_styles(histories)
    heights = [0.3 * len(r) + 0.9 for r in rows]
    figure = Picture(figsize=(11, sum(heights) + 0.5), layout="constrained")
    axes = figure.subplots(
        len(shown), 2, squeeze=False, width_ratios=(5, 1), height_ratios=heights
    )
    for (left, right), h, row in zip(axes, shown, rows, strict=True):
        end = h.duration or 1.0  # 0 for a run without events: an empty panel
        shown_window = window or (max(0.0, end - length), end)
        gantt.draw_gantt(left, h, row, *shown_window)
        gantt.draw_shares(right, h, row)
        mark_strategy(
            left, gantt.panel_title(h, row, *shown_window), styles[h.strategy][0]
        )
    axes[0, 1].set_title("whole run, busy %", fontsize=10, loc="right")
    axes[-1, 0].set_xlabel("time [s]" if shown[-1].real else X_LABELS["seconds"])
    axes[-1, 1].set_xlabel("share [%]")
    handles = [
        Patch(facecolor=colour, edgecolor="0.6", label=kind)
        for kind, colour in gantt.kinds(shown).items()
    ]
    columns = len(handles)
    figure.legend(
        handles=handles, loc="outside upper right", ncols=columns, frameon=False
    )
    return figure
