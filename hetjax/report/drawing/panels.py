"""Shared parts of all pictures: figures, and the style of panels."""

import io

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hetjax.report.plot_data import grouped


class Picture(Figure):
    """A figure that Jupyter shows even if pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def note(text: str) -> Figure:
    """A figure with only a text: the reason why there is nothing to plot."""
    figure = Picture(figsize=(6, 1.6), layout="constrained")
    ax = figure.add_subplot()
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", color="0.3")
    return figure


def darker(color: str) -> tuple[float, ...]:
    """The color for texts, which need more contrast than lines."""
    return tuple(0.72 * part for part in to_rgb(color))


def tidy(ax: Axes) -> None:
    """Set a panel's style: a light grid, no box, and commas between thousands."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: grouped(value)))


def mark_strategy(ax: Axes, title: str, color: str) -> None:
    """Add a title, and a thick left side in the strategy's color."""
    ax.set_title(title, loc="left", fontsize=10)
    ax.spines["left"].set(color=color, linewidth=4, position=("outward", 5))
