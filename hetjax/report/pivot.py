"""Pivot tables: one number of each strategy over two of the strategies' settings."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetjax.engine.records.history import History
from hetjax.report.record import plain
from hetjax.report.runs import first_seeds
from hetjax.report.summary import decimals
from hetjax.report.table import Table

# the numbers of a summary: their titles, and the mode in which values are better
VALUES = {
    "best": ("best {metric}", "mode"),
    "final": ("final {metric}", "mode"),
    "at_end": ("{metric} at the end, on the whole test split", "mode"),
    "seconds_to_target": ("{unit} to {target:g}", "min"),
    "waiting_share": ("share of time waiting", "min"),
    "updates": ("updates", "max"),
    "examples": ("examples", "max"),
    "merges": ("merges", "min"),
    "mb_per_worker": ("MB per worker", "min"),
    "padding_share": ("share of padding", "min"),
    "compilations": ("compilations", "min"),
}


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
        known = [abs(v) for v in self.cells.values() if v]
        known = [v for v in known if math.isfinite(v)]
        # three digits of the smallest, but not more than four of the largest
        digits = decimals(max(min(known), max(known) / 10)) if known else 0
        whole = all(v == int(v) for v in known)
        return "never" if value is None else f"{value:,.{0 if whole else digits}f}"

    def table(self) -> Table:
        """The cells as a table; blank if no strategy has this combination."""
        header = (
            f"{self.rows} \\ {self.columns}",
            *(setting_text(v) for v in self.column_values),
        )
        columns = range(len(self.column_values))
        rows = tuple(
            (setting_text(value), *(self.text(i, j) for j in columns))
            for i, value in enumerate(self.row_values)
        )
        return Table(header, rows, (self.title, *self.notes))


def pivot(
    histories: Sequence[History],
    summary: Sequence[Mapping[str, Any]],
    rows: str,
    columns: str,
    value: str,
    where: Mapping[str, Any],
    title_words: Mapping[str, Any],
) -> Pivot:
    """Arrange the `value` of every row of a summary; `title_words` fill in titles.

    "strategy" is a setting, too: the strategy's name without its settings. Errors: a
    ValueError for unknown names, and for strategies of one name that differ in settings
    other than `rows` and `columns`.
    """
    if value not in VALUES:
        raise ValueError(f"value is {value!r}, not one of {', '.join(VALUES)}")
    if rows == columns:
        raise ValueError(f"rows and columns are both {rows!r}: pass two settings")
    settings = {h.strategy: plain(h.settings) for h in first_seeds(histories)}
    if "strategy" in (rows, columns, *where):
        for h in first_seeds(histories):
            settings[h.strategy] = {**settings[h.strategy], "strategy": _algorithm(h)}
    for name in (rows, columns, *where):
        _check_known(name, settings)
    chosen = {
        strategy: found
        for strategy, found in settings.items()
        if all(found.get(name) == plain(v) for name, v in where.items())
    }
    if not chosen:
        raise ValueError(f"no strategy has the settings where={dict(where)}")
    _check_others(chosen, rows, columns)
    row_values = _values(s[rows] for s in chosen.values())
    column_values = _values(s[columns] for s in chosen.values())
    by_name = {row["strategy"]: row for row in summary}
    cells = {
        (row_values.index(s[rows]), column_values.index(s[columns])): by_name[strategy][
            value
        ]
        for strategy, s in chosen.items()
    }
    if value == "at_end" and None in cells.values():
        raise ValueError(
            "value='at_end' is known only with eval_examples: otherwise use 'final'"
        )
    title, mode = VALUES[value]
    mode = title_words["mode"] if mode == "mode" else mode
    notes = [f"{name}={setting_text(v)}" for name, v in where.items()]
    if len(histories) > len(settings):
        notes.append(
            "sum over seeds" if value == "compilations" else "medians over seeds"
        )
    title = title.format(**title_words)
    return Pivot(
        rows, columns, row_values, column_values, cells, title, mode, tuple(notes)
    )


def setting_text(value: Any) -> str:
    """A setting's value as text, as in the names of `hetjax.sweep`."""
    return str(tuple(value) if isinstance(value, list) else value)


def _check_known(name: str, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise a ValueError for a setting that a strategy does not have."""
    lacking = [strategy for strategy, found in settings.items() if name not in found]
    if lacking:
        shared = set.intersection(*(set(found) for found in settings.values()))
        raise ValueError(
            f"{lacking[0]!r} has no setting {name!r}: settings of all strategies are "
            f"{', '.join(sorted(shared)) or 'none'}"
        )


def _check_others(
    settings: Mapping[str, Mapping[str, Any]], rows: str, columns: str
) -> None:
    """Raise a ValueError if strategies differ in other settings, or in none."""
    names = dict.fromkeys(n for found in settings.values() for n in found)
    differing = {}
    of_one: dict[str, list[Mapping[str, Any]]] = {}  # by the name without settings
    for found in settings.values():
        of_one.setdefault(str(found.get("strategy")), []).append(found)
    for name, several in itertools.product(names, of_one.values()):
        values = _values(found.get(name) for found in several)
        if name not in (rows, columns) and len(values) > 1:
            differing[name] = values
    if differing:
        name, values = next(iter(differing.items()))
        raise ValueError(
            f"the strategies differ in {', '.join(differing)}, too: select some with, "
            f"for example, where={{{name!r}: {values[0]!r}}}"
        )
    seen: dict[tuple[str, str], str] = {}
    for strategy, found in settings.items():
        cell = repr(found[rows]), repr(found[columns])
        if cell in seen:
            raise ValueError(
                f"{seen[cell]!r} and {strategy!r} have the same settings: omit one"
            )
        seen[cell] = strategy


def _algorithm(history: History) -> str:
    """The strategy's name without settings: "sma" for "sma, local_steps=8"."""
    return history.algorithm or history.strategy.partition(", ")[0]


def _values(found: Any) -> tuple[Any, ...]:
    """The distinct values: numbers by size, others in the order of appearance."""
    values: list[Any] = []
    for value in found:
        if value not in values:
            values.append(value)
    numbers = all(isinstance(v, int | float) for v in values)
    return tuple(sorted(values) if numbers else values)
