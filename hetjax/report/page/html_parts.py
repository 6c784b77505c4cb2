"""Parts of an HTML page: sections, tables, lists. They escape all texts."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def section(title: str, body: str) -> str:
    """A section with an HTML body; empty for an empty body."""
    return f"<h2>{escape(title)}</h2>\n{body}" if body else ""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """A list of plain texts."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def pairs(found: Iterable[tuple[str, str]]) -> str:
    """A list of names and values."""
    rows = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in found)
    return f"<dl>{rows}</dl>"


def html_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    kinds: Sequence[str],
    caption: str = "",
) -> str:
    """A table; `kinds` of the columns are "name", "text", "code" or "number"."""
    sides = ["right" if kind == "number" else "left" for kind in kinds]
    heads = "".join(
        f'<th style="text-align: {side}">{escape(cell)}</th>'
        for side, cell in zip(sides, header, strict=True)
    )
    lines = [
        "".join(
            f'<td class="{kind}" style="text-align: {side}">{escape(cell)}</td>'
            for kind, side, cell in zip(kinds, sides, row, strict=True)
        )
        for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    below = f'<caption style="caption-side: bottom">{escape(caption)}</caption>'
    return (
        f'<div class="wide"><table>{below if caption else ""}<thead><tr>{heads}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def details(summary: str, body: str) -> str:
    """HTML that is shown on a click, and in print."""
    return f"<details><summary>{escape(summary)}</summary>\n{body}</details>"


def number(value: float) -> str:
    """A number with at most six digits, and commas between thousands."""
    small = isinstance(value, float) and 0 < abs(value) < 1e-3
    return f"{value:.4g}" if small else f"{float(f'{value:.6g}'):,.10g}"


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def setting(value: Any) -> str:
    """A setting's value from JSON data, in Python's notation."""
    return repr(tuple(value)) if isinstance(value, list) else repr(value)
