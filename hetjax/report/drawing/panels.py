"""Shared parts of all plots: figures, the style of panels, colors of strategies."""

import base64
import io
from collections.abc import Sequence
from html import escape

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hetjax.engine.records.history import History
from hetjax.report.runs import strategy_names

# Okabe and Ito's colors for color-blind readers, with violet instead of yellow
COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    "#7A4EA3",
)
DASHES = ("-", "--", ":", "-.")  # the next one when the colors are used up


X_LABELS = {
    "seconds": "virtual time [s]",
    "examples": "examples processed",
    "updates": "local updates",
    "merges": "merges",
    "bytes": "bytes from and to all workers",
}


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


def strategy_styles(histories: Sequence[History]) -> dict[str, tuple[str, str]]:
    """A color and a dash per strategy, the same in every plot of these histories."""
    names, n = strategy_names(histories), len(COLORS)
    return {
        name: (COLORS[i % n], DASHES[i // n % len(DASHES)])
        for i, name in enumerate(names)
    }


def darker(color: str) -> tuple[float, ...]:
    """The color for texts, which need more contrast than lines."""
    return tuple(0.72 * part for part in to_rgb(color))


def grouped(value: float) -> str:
    """Format a number for an axis or a title, with commas between thousands."""
    return f"{value:,.10g}"


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


LARGEST_SVG = 120_000  # bytes; a larger figure is a PNG
DPI = 130  # of a PNG


def figure_html(figure: Figure, caption: str) -> str:
    """A <figure> with an embedded picture: SVG, or PNG if that would be large.

    The same figure gives the same text.
    """
    kind, data = "svg+xml", _saved(figure, "svg", metadata={"Date": None})
    if len(data) > LARGEST_SVG:
        kind, data = "png", _saved(figure, "png", dpi=DPI)
    width, height = (round(96 * size) for size in figure.get_size_inches())
    text = escape(caption)
    return (
        f'<figure><img alt="{text}" width="{width}" height="{height}" '
        f'src="data:image/{kind};base64,{base64.b64encode(data).decode()}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def _saved(figure: Figure, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "hetjax"}):  # else ids are random
        figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()
