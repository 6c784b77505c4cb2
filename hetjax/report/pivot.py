"""Pivot tables: one number of each strategy over two of the strategies' settings."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hetjax.engine.records.history import History
from hetjax.report.record import plain
from hetjax.report.runs import first_seeds
from hetjax.report.summary import decimals
from hetjax.report.table import Table

# the numbers of a summary: their titles, and the mode in which values are better
VALUES = {
    "best": ("best {c.metric}", "{c.mode}"),
    "final": ("final {c.metric}", "{c.mode}"),
    "at_end": ("{c.metric} at the end, on the whole test split", "{c.mode}"),
    "seconds_to_target": ("{c.unit} to {c.target:g}", "min"),
    "waiting_share": ("share of time waiting", "min"),
    "updates": ("updates", "max"),
    "examples": ("examples", "max"),
    "merges": ("merges", "min"),
    "mb_per_worker": ("MB per worker", "min"),
    "padding_share": ("share of padding", "min"),
    "compilations": ("compilations", "min"),
}
Settings = dict[str, dict[str, Any]]  # of each strategy, by their names


@dataclass(frozen=True)
class Pivot:
    """A pivot table; `cells` has the combinations that were run, None is "never"."""

    rows: str  # the name of a setting
    columns: str
    row_values: tuple[Any, ...]  # rising, or in the order of the strategies
    column_values: tuple[Any, ...]
    cells: dict[tuple[int, int], float | None]  # by row and column
    title: str  # of the cells
    mode: str  # "max" if larger values are better, or "min"
    notes: tuple[str, ...]

    def text(self, row: int, column: int) -> str:
        """A cell's text: three digits of a typical value, "never", or an empty text."""
        if (row, column) not in self.cells:
            return ""
        value = self.cells[row, column]
        known = [abs(v) for v in self.cells.values() if v and math.isfinite(v)]
        # three digits of the smallest, but not more than four of the largest
        digits = decimals(max(min(known), max(known) / 10)) if known else 0
        whole = all(v == int(v) for v in known)
        return "never" if value is None else f"{value:,.{0 if whole else digits}f}"

    def table(self) -> Table:
        """The cells as a table; blank if no strategy has this combination."""
        columns = range(len(self.column_values))
        rows = tuple(
            (setting_text(value), *(self.text(i, j) for j in columns))
            for i, value in enumerate(self.row_values)
        )
        names = (f"{self.rows} \\ {self.columns}", *self.column_values)
        return Table(tuple(map(setting_text, names)), rows, (self.title, *self.notes))


def pivot(c: Any, rows: str, columns: str, value: str, where: dict[str, Any]) -> Pivot:
    """Arrange the `value` of every row of the summary of a `Comparison`.

    "strategy" is a setting, too: the strategy's name without its settings. Errors: a
    ValueError for unknown names, and for strategies of one name that differ in settings
    other than `rows` and `columns`.
    """
    if value not in VALUES:
        raise ValueError(f"value is {value!r}, not one of {', '.join(VALUES)}")
    if rows == columns:
        raise ValueError(f"rows and columns are both {rows!r}: pass two settings")
    names = (rows, columns, *where)
    settings = _chosen(c.histories, names, where)
    _check_others(settings, rows, columns)
    row_values = _values(s[rows] for s in settings.values())
    column_values = _values(s[columns] for s in settings.values())
    by_name = {row["strategy"]: row[value] for row in c.summary()}
    cells = {
        (row_values.index(s[rows]), column_values.index(s[columns])): by_name[strategy]
        for strategy, s in settings.items()
    }
    if value == "at_end" and None in cells.values():
        raise ValueError(
            "value='at_end' is known only with eval_examples: otherwise use 'final'"
        )
    title, mode = (text.format(c=c) for text in VALUES[value])
    notes = [f"{name}={setting_text(v)}" for name, v in where.items()]
    if len(c.histories) > len(c.strategies):
        what = "sum" if value == "compilations" else "medians"
        notes.append(f"{what} over seeds")
    axes = rows, columns, row_values, column_values
    return Pivot(*axes, cells, title, mode, tuple(notes))


def setting_text(value: Any) -> str:
    """A setting's value as text, as in the names of `hetjax.sweep`."""
    return str(tuple(value) if isinstance(value, list) else value)


def _chosen(
    histories: list[History], names: Iterable[str], where: Mapping[str, Any]
) -> Settings:
    """The settings of the strategies that `where` selects; all must have `names`."""
    settings: Settings = {}
    for h in first_seeds(histories):
        # "sma" for "sma, local_steps=8"
        algorithm = h.algorithm or h.strategy.partition(", ")[0]
        own = {"strategy": algorithm} if "strategy" in names else {}
        settings[h.strategy] = plain(h.settings) | own
    for name in names:
        lacking = [s for s, found in settings.items() if name not in found]
        if lacking:
            shared = set.intersection(*(set(found) for found in settings.values()))
            raise ValueError(
                f"{lacking[0]!r} has no setting {name!r}: settings of all strategies "
                f"are {', '.join(sorted(shared)) or 'none'}"
            )
    chosen = {
        strategy: found
        for strategy, found in settings.items()
        if all(found[name] == plain(v) for name, v in where.items())
    }
    if not chosen:
        raise ValueError(f"no strategy has the settings where={dict(where)}")
    return chosen


def _check_others(settings: Settings, rows: str, columns: str) -> None:
    """Raise a ValueError if strategies differ in other settings, or in none."""
    differing: dict[str, Any] = {}
    cells: dict[tuple[str, str], str] = {}
    for strategy, found in settings.items():
        kind = found.get("strategy")
        alike = [s for s in settings.values() if s.get("strategy") == kind]
        for name in dict.fromkeys(n for s in alike for n in s):
            values = _values(s.get(name) for s in alike)
            if name not in (rows, columns) and len(values) > 1:
                differing[name] = values[0]
        cell = repr(found[rows]), repr(found[columns])
        other = cells.setdefault(cell, strategy)
        if other != strategy and not differing:
            raise ValueError(
                f"{other!r} and {strategy!r} have the same settings: omit one"
            )
    if differing:
        name, value = next(iter(differing.items()))
        raise ValueError(
            f"the strategies differ in {', '.join(differing)}, too: select some with, "
            f"for example, where={{{name!r}: {value!r}}}"
        )


def _values(found: Iterable[Any]) -> tuple[Any, ...]:
    """The distinct values: numbers by size, others in the order of appearance."""
    values: list[Any] = []
    for value in found:
        if value not in values:
            values.append(value)
    numbers = all(isinstance(v, int | float) for v in values)
    return tuple(sorted(values) if numbers else values)
