"""Long tables of tests: a few rows are always tested, all others are marked full."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick(rows: Iterable[Any], *chosen: Any) -> list[Any]:
    """The rows for `pytest.mark.parametrize`; those not chosen are full."""
    rows = list(rows)
    unknown = [row for row in chosen if row not in rows]
    assert not unknown, f"no such rows: {unknown}"
    return quick_if(lambda row: row in chosen, rows)


def quick_if(is_quick: Callable[[Any], bool], rows: Iterable[Any]) -> list[Any]:
    """As `quick`, with the rows that a function chooses."""
    return [row if is_quick(row) else _full(row) for row in rows]


def _full(row: Any) -> Any:
    values = row if isinstance(row, tuple) else (row,)
    return pytest.param(*values, marks=pytest.mark.full)
