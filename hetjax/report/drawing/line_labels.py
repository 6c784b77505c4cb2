"""Labels next to a panel, at the ends of its lines, without overlaps."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from hetjax.report.drawing.panels import darker

SIZE = 9  # [points] of the labels' text
LINE = 1.3 * SIZE  # [points] of a line of text
SMALLER = 0.85  # of the size, for notes


def spread(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Move boxes apart as little as possible, in their order, within 0 and 1.

    `wanted` are the centers of the boxes, rising; the result minimizes the sum of the
    squared moves, if all boxes fit (isotonic regression).
    """
    steps = [(a + b) / 2 for a, b in zip(heights, heights[1:], strict=False)]
    offsets = np.concatenate([[0.0], np.cumsum(steps)])
    groups: list[list[float]] = []  # mean and count of each group of touching boxes
    for value in np.asarray(wanted) - offsets:
        groups.append([value, 1])
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            value, count = groups.pop()
            before, number = groups[-1]
            mean = (before * number + value * count) / (number + count)
            groups[-1] = [mean, number + count]
    apart = np.array([value for value, count in groups for _ in range(int(count))])
    low, high = heights[0] / 2, 1 - heights[-1] / 2 - offsets[-1]
    return list(np.clip(apart, min(low, high), high) + offsets)


def label_ends(ax: Axes, ends: Sequence[tuple[str, str, float, float, str]]) -> None:
    """Write labels to the right of a panel: (name, note, x, y, color) of line ends.

    A thin line leads from a line's end to its label. Lines that end nowhere (NaN) have
    their labels at the bottom.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # so that the panel has its size
    height = ax.get_window_extent().height * 72 / figure.dpi  # [points]
    to_panel = ax.transData + ax.transAxes.inverted()

    def place(end: tuple[str, str, float, float, str]) -> tuple[float, float]:
        x, y = to_panel.transform(end[2:4])
        return (float(x), min(1.0, max(0.0, float(y)))) if math.isfinite(y) else (1, 0)

    # from the bottom up; of equal ends, the first one is on top
    ends = sorted(ends, key=lambda end: -place(end)[1])[::-1]
    heights = [(LINE + bool(end[1]) * SMALLER * LINE) / height for end in ends]
    middles = spread([place(end)[1] for end in ends], heights)
    for end, middle in zip(ends, middles, strict=True):
        name, note, _, y, color = end
        text = f"{name}\n{note}" if note else name
        x, _ = place(end)  # long leader lines are dotted, unlike curves
        arrow = {
            "arrowstyle": "-",
            "color": color,
            "linewidth": 0.7,
            "linestyle": "-" if x > 0.97 else (0, (1, 3)),
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
            arrowprops=arrow if math.isfinite(y) else None,
        )
