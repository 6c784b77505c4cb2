"""Heat maps: one number of each strategy over two settings."""

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from hetjax.metric_mode import score
from hetjax.report.drawing.panels import Picture
from hetjax.report.pivot import Pivot, setting_text

# no cell is as white as the paper, or too dark for its text
COLORS = ListedColormap(colormaps["Blues"](np.linspace(0.06, 0.92, 256)))


def heat_map(pivot: Pivot) -> Figure:
    """Draw a pivot: better values are darker, combinations without a number are blank.

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
    scores = np.full((rows, columns), np.nan)
    for place, value in pivot.cells.items():
        scores[place] = np.nan if value is None else score(value, pivot.mode)
    scores[~np.isfinite(scores)] = np.nan
    known = scores[np.isfinite(scores)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    if low == high:  # equal scores are in the middle
        low, high = low - 0.5, high + 0.5
    image = ax.imshow(scores, cmap=COLORS, vmin=low, vmax=high, aspect="auto")
    for row, column in pivot.cells:
        dark = scores[row, column] > low + 0.6 * (high - low)
        color = "white" if dark else "0.1"
        text = pivot.text(row, column)
        ax.text(column, row, text, ha="center", va="center", color=color, fontsize=10)
    ax.set_xticks(range(columns), names[rows:])
    ax.set_yticks(range(rows), names[:rows])
    ax.set_xticks(np.arange(1, columns) - 0.5, minor=True)
    ax.set_yticks(np.arange(1, rows) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=2)  # borders between the cells
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    image.set_gid("cells")
    ax.set_xlabel(pivot.columns)
    ax.set_ylabel(pivot.rows)
    better = "larger" if pivot.mode == "max" else "smaller"
    notes = "".join(f", {note}" for note in pivot.notes)
    ax.set_title(
        f"{pivot.title}{notes}\ndarker is better: {better} values", fontsize=10
    )
    return figure
