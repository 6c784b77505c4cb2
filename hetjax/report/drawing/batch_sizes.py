"""The batch size of every worker over the merges of a run."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hetjax.engine.records.history import History
from hetjax.report.drawing.panels import (
    Picture,
    grouped,
    mark_strategy,
    note,
    strategy_styles,
    tidy,
)
from hetjax.report.record import batch_sizes_changed
from hetjax.report.runs import first_seeds


def batch_sizes(histories: Sequence[History]) -> Figure:
    """Plot every worker's batch size over the merges, for the first seeds.

    Only strategies that change batch sizes are shown; they merge once per mega-batch.
    """
    moved = [h for h in first_seeds(histories) if batch_sizes_changed(h)]
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


def _draw_sizes(ax: Axes, history: History) -> None:
    """Draw the panel of one strategy: a step line per worker, up to the run's end."""
    done = np.array(history.merge_times)  # [s]; batch sizes change at merges
    shown = [w for w in history.workers if w.batch_size_over_time]
    colors = colormaps["viridis"](np.linspace(0, 0.9, len(shown)))
    # earlier lines are thicker, to be visible below later lines of the same sizes
    widths = np.linspace(2.8, 1.2, len(shown)) if len(shown) <= 10 else [1] * len(shown)
    for worker, color, width in zip(shown, colors, widths, strict=True):
        seconds, sizes = map(list, zip(*worker.batch_size_over_time, strict=True))
        end = max(history.duration, seconds[-1])
        ax.step(
            np.searchsorted(done, [*seconds, end], side="right"),
            [*sizes, sizes[-1]],
            where="post",
            color=color,
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
