"""A table of texts that prints aligned columns and displays in Jupyter."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


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
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        head, *body = (_aligned(line, widths) for line in lines)
        return "\n".join((head, rule, *body, *self.caption))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        body = "".join(_html_row(row, "td") for row in self.rows)
        caption = "<br>".join(map(escape, self.caption))
        return (
            "<table>"
            '<caption style="caption-side: bottom; text-align: left">'
            f"{caption}</caption>"
            f"<thead>{_html_row(self.header, 'th')}</thead>"
            f"<tbody>{body}</tbody></table>"
        )


class Tabular(ABC):
    """Results that are printed, and displayed in Jupyter, as a table."""

    @abstractmethod
    def table(self) -> Table:
        """Return the results as a table."""

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    """Return one line: the name aligned to the left, the numbers to the right."""
    name, *numbers = zip(cells, widths, strict=True)
    texts = [name[0].ljust(name[1]), *(cell.rjust(width) for cell, width in numbers)]
    return "  ".join(texts).rstrip()


def _html_row(cells: tuple[str, ...], tag: str) -> str:
    """Return one row of an HTML table, aligned like the text."""
    sides = ("left", *("right" for _ in cells[1:]))
    return "<tr>{}</tr>".format(
        "".join(
            f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )
    )
