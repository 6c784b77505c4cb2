"""Figures as text within an HTML page: the same figure gives the same text."""

import base64
import io
from html import escape

from matplotlib import rc_context
from matplotlib.figure import Figure

LARGEST_SVG = 120_000  # bytes; a larger figure is a PNG
DPI = 130  # of a PNG


def embedded(figure: Figure, caption: str) -> str:
    """A <figure> with the picture in it: SVG, or PNG if that would be large."""
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
