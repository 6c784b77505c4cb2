"""Heat maps: one number of each strategy over two settings."""

import math

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hetjax.metric_mode import score
from hetjax.report.drawing.panels import Picture
from hetjax.report.pivot import Pivot, setting_text

COLORS = colormaps["Blues"]
WEAKEST, STRONGEST = 0.06, 0.92  # of the color map: no cell is as white as the paper


def heat_map(pivot: Pivot) -> Figure:
    """Draw a pivot: better values are darker, combinations without a run are blank.

    The rows of the pivot are the rows of the map, from the top down.
    """
    rows, columns = len(pivot.row_values), len(pivot.column_values)
    names = [setting_text(v) for v in (*pivot.row_values, *pivot.column_values)]
    width = max(0.95, 0.09 * max(map(len, names[rows:])) + 0.2)
    figure = Picture(
        figsize=(max(4.0, 1.6 + width * columns), max(2.2, 1.3 + 0.62 * rows)),
        layout="constrained",
    )
    ax = figure.add_subplot()
    norm = _norm(pivot)
    for (row, column), value in pivot.cells.items():
        color = None
        if value is not None and math.isfinite(value):
            color = COLORS(norm(score(value, pivot.mode)))
        _draw_cell(ax, row, column, color, pivot.text(row, column))
    ax.set_xlim(-0.5, columns - 0.5)
    ax.set_ylim(rows - 0.5, -0.5)
    ax.set_xticks(range(columns), names[rows:])
    ax.set_yticks(range(rows), names[:rows])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel(pivot.columns)
    ax.set_ylabel(pivot.rows)
    better = "larger" if pivot.mode == "max" else "smaller"
    notes = "".join(f", {note}" for note in pivot.notes)
    ax.set_title(
        f"{pivot.title}{notes}\ndarker is better: {better} values", fontsize=10
    )
    return figure


def _norm(pivot: Pivot) -> Normalize:
    """The scale from the worst to the best score; equal scores are in the middle."""
    known = [v for v in pivot.cells.values() if v is not None and math.isfinite(v)]
    scores = np.array([score(v, pivot.mode) for v in known] or [0.0])
    span = np.ptp(scores) / (STRONGEST - WEAKEST) or 1.0
    low = scores.min() - (WEAKEST * span if np.ptp(scores) else 0.5)
    return Normalize(low, low + span)


def _draw_cell(ax: Axes, row: int, column: int, color: tuple | None, text: str) -> None:
    """Draw a cell; one without a number has no color, a border, and gray text."""
    box = Rectangle(
        (column - 0.48, row - 0.47),
        0.96,
        0.94,
        facecolor=color or "white",
        edgecolor="none" if color else "0.8",
    )
    ax.add_patch(box)
    shade = "0.45"
    if color:
        red, green, blue = color[:3]
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.55
        shade = "white" if dark else "0.1"
    ax.text(column, row, text, ha="center", va="center", color=shade, fontsize=10)
