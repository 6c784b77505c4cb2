"""Gantt charts of runs: bars per worker, and each worker's shares of time."""

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hetjax.engine.records.history import History
from hetjax.report.drawing.panels import (
    X_LABELS,
    Picture,
    grouped,
    mark_strategy,
    strategy_styles,
    tidy,
)
from hetjax.report.runs import check_timelines, first_seeds

KINDS = {  # of a worker's time; their colors differ from those of strategies
    "busy": "#44546A",
    "merging": "#F2A541",
    "transfer": "#3C9D9B",
    "waiting": "#E3E6EA",
    "idle": "#FFFFFF",
}
MARK = {"ms": 9, "mec": "white", "clip_on": False}
MARKS = {"lost": ("X", "#C0392B"), "left": ("v", "#8E5BA6"), "joined": ("^", "#2E8B57")}


def kinds(histories: Sequence[History]) -> dict[str, str]:
    """The kinds and their colors; only real devices have transfers."""
    moved = any(w.transfer for h in histories for w in h.workers)
    return {k: c for k, c in KINDS.items() if moved or k != "transfer"}


def marks(histories: Sequence[History]) -> dict[str, tuple[str, str]]:
    """The marker and color of each kind of worker event in these runs."""
    happened = {e.what for h in histories for e in h.events}
    return {what: mark for what, mark in MARKS.items() if what in happened}


def panel_title(history: History, rows: list[int], start: float, finish: float) -> str:
    """The strategy, the window, and the number of workers shown."""
    times = (start, finish, history.duration)
    first, last, duration = (grouped(float(f"{t:.6g}")) for t in times)
    text = f"{history.strategy}: {first} to {last} s of {duration} s"
    if len(rows) < len(history.workers):
        text += f", {len(rows)} of {len(history.workers)} workers"
    if history.estimates_busy:
        text += ", busy estimated"
    return text + (", stopped early" if history.ended_early else "")


def chosen_workers(
    history: History, workers: Sequence[int] | None, at_most: int
) -> list[int]:
    """The indices of the workers to draw."""
    n = len(history.workers)
    if workers is None:
        return sorted({round(i) for i in np.linspace(0, n - 1, min(n, at_most))})
    wrong = [k for k in workers if not 0 <= k < n]
    if wrong:
        raise ValueError(f"{history.strategy} has no workers {wrong}: it has {n}")
    return list(workers)


def _segments(history: History) -> np.ndarray:
    """The timeline as [S, 4]: worker, kind, start, finish."""
    table = np.array(history.timeline.numbers).reshape(-1, 4)
    table[:, 1] %= len(history.timeline.kinds)  # a round that was lost is busy
    return table


def busy_length(history: History, count: int = 40) -> float:
    """Seconds from the last `count` segments of the busiest timeline to the end."""
    segments = _segments(history)
    if not len(segments):
        return history.duration or 1.0
    owners = segments[:, 0].astype(int)
    starts = segments[owners == np.bincount(owners).argmax(), 2]
    return history.duration - float(np.sort(starts)[-count:][0])


def draw_gantt(
    ax: Axes, history: History, rows: list[int], start: float, finish: float
) -> None:
    """Draw a row per worker; time without a segment is waiting, unless idle.

    Marks show when a worker was lost, left or joined.
    """
    segments = _segments(history)
    segments = segments[(segments[:, 3] > start) & (segments[:, 2] < finish)]
    # white edges separate the segments, unless there are too many
    edge = 0.6 if len(segments) <= 80 * max(1, len(history.workers)) else 0.0
    for i, k in enumerate(rows):
        if history.workers[k].idle < history.duration:
            _draw_bars(ax, i, [(start, min(finish, history.duration))], "waiting", 0.0)
        for number, kind in enumerate(history.timeline.kinds):
            mine = segments[(segments[:, 0] == k) & (segments[:, 1] == number), 2:]
            _draw_bars(ax, i, np.clip(mine, start, finish), kind, edge)
    _draw_marks(ax, history, rows, start, finish)
    tidy(ax)
    ax.grid(visible=False, axis="y")
    if finish > start:  # false for a run that was interrupted immediately
        ax.set_xlim(start, finish)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), [history.workers[k].name for k in rows])
    ax.tick_params(axis="y", length=0)


def _draw_marks(
    ax: Axes, history: History, rows: list[int], start: float, finish: float
) -> None:
    """Draw the marks of worker events in the workers' rows."""
    places = {history.workers[k].name: i for i, k in enumerate(rows)}
    for what, (marker, color) in marks([history]).items():
        happened = [
            (e.seconds, places[e.worker])
            for e in history.events
            if e.what == what and e.worker in places and start <= e.seconds <= finish
        ]
        x, y = np.reshape(happened, (-1, 2)).T
        (line,) = ax.plot(x, y, marker, color=color, **MARK)
        line.set_in_layout(False)  # they may extend beyond the window


def _draw_bars(ax: Axes, row: int, intervals, kind: str, edge: float) -> None:
    """Draw bars from start to finish in one row."""
    bars = [(start, finish - start) for start, finish in intervals if finish > start]
    ax.broken_barh(
        bars,
        (row - 0.38, 0.76),
        facecolor=KINDS[kind],
        edgecolor="white",
        linewidth=edge,
        label=kind,
    )


def draw_shares(ax: Axes, history: History, rows: list[int]) -> None:
    """Draw each worker's share of every kind of time in the whole run."""
    left = np.zeros(len(rows))
    for kind, color in kinds([history]).items():
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
    length in all runs. `styles` are the strategies' colors in other plots.
    """
    if window and not window[0] < window[1]:
        raise ValueError(f"the window {window} is empty: it is (start, finish) [s]")
    shown = list(histories) if every else first_seeds(histories)
    check_timelines(shown)
    most = max(8, 36 // len(shown))  # rows per run, so that the figure fits two screens
    rows = [chosen_workers(h, workers, most) for h in shown]
    length = median(busy_length(h) for h in shown)
    styles = styles or strategy_styles(histories)
    heights = [0.3 * len(r) + 0.9 for r in rows]
    figure = Picture(figsize=(11, sum(heights) + 0.5), layout="constrained")
    axes = figure.subplots(
        len(shown), 2, squeeze=False, width_ratios=(5, 1), height_ratios=heights
    )
    for (left, right), h, row in zip(axes, shown, rows, strict=True):
        end = h.duration or 1.0  # 0 for a run without events: an empty panel
        shown_window = window or (max(0.0, end - length), end)
        draw_gantt(left, h, row, *shown_window)
        draw_shares(right, h, row)
        mark_strategy(left, panel_title(h, row, *shown_window), styles[h.strategy][0])
    axes[0, 1].set_title("whole run, busy %", fontsize=10, loc="right")
    axes[-1, 0].set_xlabel("time [s]" if shown[-1].real else X_LABELS["seconds"])
    axes[-1, 1].set_xlabel("share [%]")
    handles = [
        Patch(facecolor=color, edgecolor="0.6", label=kind)
        for kind, color in kinds(shown).items()
    ]
    handles += [
        Line2D([], [], ls="", marker=marker, color=color, **MARK, label=what)
        for what, (marker, color) in marks(shown).items()
    ]
    columns = len(handles)
    figure.legend(
        handles=handles, loc="outside upper right", ncols=columns, frameon=False
    )
    return figure
