"""Two-line summaries of strategies, data sets, machines and tasks, for people to read.

The first line names the object, the second its parts; notebooks show the same as HTML.
"""

from collections.abc import Iterable
from functools import partial
from html import escape
from typing import Any

INDENT = "  "
_MOST = 200  # characters of a line


def two_lines(what: str, parts: Iterable[str]) -> str:
    """Return `what` above its parts; empty parts are omitted."""
    below = "; ".join(filter(None, parts))
    return (
        f"{_truncated(what)}\n{INDENT}{_truncated(below)}"
        if below
        else _truncated(what)
    )


def html_of(value: Any) -> str:
    """Return the two lines of an object as HTML, for `_repr_html_`."""
    first, _, second = repr(value).partition("\n")
    return (
        f"<div><b>{escape(first)}</b><br>"
        f'<span style="opacity: 0.75">{escape(second.strip())}</span></div>'
    )


def maker(function: Any) -> str:
    """Return the name of the function that made this one, or its own name.

    >>> from hetjax.merge import average
    >>> maker(average().apply)
    'average'
    """
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__name__)
    return name.split(".")[0].strip("_")


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as in a function call; those that are None are omitted.

    >>> settings_text({"batch_size": 8, "momentum": None, "order": "shuffled"})
    "batch_size=8, order='shuffled'"
    """
    given = (f"{k}={v!r}" for k, v in settings.items() if v is not None)
    return ", ".join(given)


def counted(number: int, thing: str) -> str:
    """Return a number with its noun: "1 worker", "1,200 workers"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _truncated(line: str) -> str:
    return line if len(line) <= _MOST else f"{line[: _MOST - 3]}..."
