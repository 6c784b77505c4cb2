"""The batch size of every worker over the merges of a run."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hetjax.engine.records.history import History
from hetjax.report.drawing.panels import Picture, mark_strategy, note, tidy
from hetjax.report.plot_data import grouped, sizes_over_merges, strategy_styles
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
    lines = sizes_over_merges(history)
    few = len(lines) <= 10
    colors = colormaps["viridis"](np.linspace(0, 0.9, len(lines)))
    # earlier lines are thicker, to be visible below later lines of the same sizes
    widths = np.linspace(2.8, 1.2, len(lines)) if few else np.ones(len(lines))
    for (name, merges, sizes), color, width in zip(lines, colors, widths, strict=True):
        ax.step(merges, sizes, where="post", color=color, linewidth=width, label=name)
    values = np.concatenate([sizes for _, _, sizes in lines])
    tidy(ax)
    ax.set_xlim(left=0)
    if values.max() > 16 * max(values.min(), 1e-9):
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: grouped(value)))
    else:
        ax.set_ylim(0, 1.05 * values.max())
    ax.set_ylabel("batch size [examples]")
    if few:
        ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        note = f"{len(lines)} workers, first dark to last light"
        ax.text(1, 1.02, note, ha="right", fontsize=8, transform=ax.transAxes)
