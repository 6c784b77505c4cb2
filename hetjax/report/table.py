"""A table of texts that prints aligned columns and displays in Jupyter."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True, repr=False)
class Table:
    """Rows under a header; the first column holds names, the others numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: tuple[str, ...] = ()  # lines below the table

    @classmethod
    def of(
        cls, columns: Mapping[str, Sequence[str]], caption: Sequence[str]
    ) -> "Table":
        """A table of columns, given by their headers."""
        rows = tuple(zip(*columns.values(), strict=True))
        return cls(tuple(columns), rows, tuple(caption))

    def __str__(self) -> str:
        lines = (self.header, *self.rows)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        head, *body = (_aligned(line, widths) for line in lines)
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        return "\n".join((head, rule, *body, *self.caption))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        table: Any = template("table.html").module
        return table.table(self.header, self.rows, self.caption)


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    """One line: the name aligned to the left, the numbers to the right."""
    name, *numbers = map(str.rjust, cells, widths)
    return "  ".join((cells[0].ljust(len(name)), *numbers)).rstrip()


class Tabular(ABC):
    """Results that are printed, and displayed in Jupyter, as a table."""

    @abstractmethod
    def table(self) -> Table:
        """Return the results as a table."""

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def number(value: float) -> str:
    """A number with at most six digits, and commas between thousands."""
    small = isinstance(value, float) and 0 < abs(value) < 1e-3
    return f"{value:.4g}" if small else f"{float(f'{value:.6g}'):,.10g}"


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


@functools.cache
def template(name: str) -> "Template":
    """A template of this package; all texts in it are escaped."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        autoescape=True, loader=PackageLoader("hetjax.report"), trim_blocks=True
    )
    environment.filters |= {"number": number, "listed": listed}
    return environment.get_template(name)
