"""Gantt charts of runs, one below the other."""

from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hetjax.engine.records.history import History
from hetjax.report.drawing import gantt
from hetjax.report.drawing.panels import (
    X_LABELS,
    Picture,
    mark_strategy,
    strategy_styles,
)
from hetjax.report.runs import check_timelines, first_seeds


def timeline(
    histories: Sequence[History],
    workers: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    *,
    every: bool = False,
    styles: Mapping[str, tuple[str, str]] | None = None,
) -> Figure:
    """Draw a Gantt chart per strategy (first seed, or `every` run), and shares.

    By default all `workers` are drawn, or some of many, spread evenly. The default
    `window` is the end of every run, with about 40 segments per worker and the same
    length in all runs. `styles` are the strategies' colours in other plots.
    """
    if window and not window[0] < window[1]:
        raise ValueError(f"the window {window} is empty: it is (start, finish) [s]")
    shown = list(histories) if every else first_seeds(histories)
    check_timelines(shown)
    most = max(8, 36 // len(shown))  # rows of a run: the figure fits on two screens
    rows = [gantt.chosen_workers(h, workers, most) for h in shown]
    length = median(gantt.busy_length(h) for h in shown)
    styles = styles or strategy_styles(histories)
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
    handles += [
        Line2D([], [], ls="", marker=marker, color=colour, **gantt.MARK, label=what)
        for what, (marker, colour) in gantt.marks(shown).items()
    ]
    columns = len(handles)
    figure.legend(
        handles=handles, loc="outside upper right", ncols=columns, frameon=False
    )
    return figure
