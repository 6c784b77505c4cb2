"""Gantt charts of runs: bars per worker, and each worker's shares of time."""

from collections.abc import Sequence
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hetjax.engine.records.history import History
from hetjax.report.drawing.panels import Picture, mark_strategy, tidy
from hetjax.report.plot_data import (
    KINDS,
    grouped,
    kinds_of,
    last_length,
    segments,
    spread_workers,
    strategy_styles,
    x_label,
)
from hetjax.report.runs import check_timelines, first_seeds

MARK = {"ls": "", "ms": 9, "mec": "white", "clip_on": False}
MARKS = {"lost": ("X", "#C0392B"), "left": ("v", "#8E5BA6"), "joined": ("^", "#2E8B57")}


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
    check_timelines(shown)
    most = max(8, 36 // len(shown))  # rows per run, so that the figure fits two screens
    rows = [_chosen_workers(h, workers, most) for h in shown]
    length = median(last_length(h) for h in shown)
    styles = strategy_styles(histories)
    heights = [0.3 * len(r) + 0.9 for r in rows]
    figure = Picture(figsize=(11, sum(heights) + 0.5), layout="constrained")
    axes = figure.subplots(
        len(shown), 2, squeeze=False, width_ratios=(5, 1), height_ratios=heights
    )
    for (left, right), h, row in zip(axes, shown, rows, strict=True):
        end = h.duration or 1.0  # 0 for a run without events: an empty panel
        shown_window = window or (max(0.0, end - length), end)
        _draw_gantt(left, h, row, *shown_window)
        _draw_shares(right, h, row)
        mark_strategy(left, _title(h, row, *shown_window), styles[h.strategy][0])
    axes[0, 1].set_title("whole run, busy %", fontsize=10, loc="right")
    axes[-1, 0].set_xlabel(x_label(shown[-1:]))
    axes[-1, 1].set_xlabel("share [%]")
    handles = [
        Patch(facecolor=color, edgecolor="0.6", label=kind)
        for kind, color in kinds_of(shown).items()
    ]
    happened = {e.what for h in shown for e in h.events}
    handles += [
        Line2D([], [], marker=marker, color=color, **MARK, label=what)
        for what, (marker, color) in MARKS.items()
        if what in happened
    ]
    columns = len(handles)
    figure.legend(
        handles=handles, loc="outside upper right", ncols=columns, frameon=False
    )
    return figure


def _chosen_workers(
    history: History, workers: Sequence[int] | None, at_most: int
) -> list[int]:
    """The indices of the workers to draw."""
    if workers is None:
        return spread_workers(history, at_most)
    n = len(history.workers)
    wrong = [k for k in workers if not 0 <= k < n]
    if wrong:
        raise ValueError(f"{history.strategy} has no workers {wrong}: it has {n}")
    return list(workers)


def _title(history: History, rows: list[int], start: float, finish: float) -> str:
    """The strategy, the window, and the number of workers shown."""
    times = (start, finish, history.duration)
    first, last, duration = (grouped(float(f"{t:.6g}")) for t in times)
    text = f"{history.strategy}: {first} to {last} s of {duration} s"
    if len(rows) < len(history.workers):
        text += f", {len(rows)} of {len(history.workers)} workers"
    if history.estimates_busy:
        text += ", busy estimated"
    return text + (", stopped early" if history.ended_early else "")


def _draw_gantt(
    ax: Axes, history: History, rows: list[int], start: float, finish: float
) -> None:
    """Draw a row per worker; time without a segment is waiting, unless idle.

    Marks show when a worker was lost, left or joined.
    """
    table = segments(history)
    table = table[(table[:, 3] > start) & (table[:, 2] < finish)]
    # white edges separate the segments, unless there are too many
    edge = 0.6 if len(table) <= 80 * max(1, len(history.workers)) else 0.0
    for i, k in enumerate(rows):
        if history.workers[k].idle < history.duration:
            _draw_bars(ax, i, [(start, min(finish, history.duration))], "waiting", 0.0)
        for number, kind in enumerate(history.timeline.kinds):
            mine = table[(table[:, 0] == k) & (table[:, 1] == number), 2:]
            _draw_bars(ax, i, np.clip(mine, start, finish), kind, edge)
    places = {history.workers[k].name: i for i, k in enumerate(rows)}
    for e in history.events:
        if e.what in MARKS and e.worker in places and start <= e.seconds <= finish:
            marker, color = MARKS[e.what]
            at = [e.seconds], [places[e.worker]]
            (mark,) = ax.plot(*at, marker=marker, color=color, **MARK)
            mark.set_in_layout(False)  # it may extend beyond the window
    tidy(ax)
    ax.grid(visible=False, axis="y")
    if finish > start:  # false for a run that was interrupted immediately
        ax.set_xlim(start, finish)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), [history.workers[k].name for k in rows])
    ax.tick_params(axis="y", length=0)


def _draw_bars(ax: Axes, row: int, intervals, kind: str, edge: float) -> None:
    """Draw bars from start to finish in one row."""
    bars = [(start, finish - start) for start, finish in intervals if finish > start]
    style = {"facecolor": KINDS[kind], "edgecolor": "white", "linewidth": edge}
    ax.broken_barh(bars, (row - 0.38, 0.76), label=kind, **style)


def _draw_shares(ax: Axes, history: History, rows: list[int]) -> None:
    """Draw each worker's share of every kind of time in the whole run."""
    left = np.zeros(len(rows))
    for kind, color in kinds_of([history]).items():
        seconds = [getattr(history.workers[k], kind) for k in rows]
        shares = 100 * np.array(seconds) / (history.duration or 1.0)
        ax.barh(range(len(rows)), shares, 0.76, left, color=color)
        left += shares
        if kind == "busy":
            for i, share in enumerate(shares):
                ax.text(103, i, f"{share:.0f}", va="center", fontsize=8)
    tidy(ax)
    ax.grid(visible=False)
    ax.set_xlim(0, 100)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
