"""The schedule of a run as a table, known before anything is computed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetjax.report.table import Table, Tabular
from hetjax.runtimes.compiled.scheduled_run import ScheduleLine

SHOWN = 20  # lines of a schedule, at most


@dataclass(frozen=True, repr=False)
class Schedule(Tabular):
    """The schedule of a run, as arrays [N] in the order of the tape.

    It is printed, and displayed in Jupyter, as a table of its first and last lines.
    """

    seconds: np.ndarray  # float64, at its start
    what: np.ndarray  # "steps", "evaluation", "merge" or another operation of a node
    worker: np.ndarray  # the worker that takes the steps, or ""
    steps: np.ndarray  # int, local steps, or 0
    batch_size: np.ndarray  # int, examples of each step, or 0
    node: np.ndarray  # the node that merges or is evaluated, or ""
    members: np.ndarray  # tuples of the names of a merge's members

    @classmethod
    def of(cls, lines: Sequence[ScheduleLine]) -> "Schedule":
        """Return the schedule of these lines."""
        names = ScheduleLine._fields
        columns = {name: [getattr(line, name) for line in lines] for name in names}
        members = np.empty(len(lines), object)  # tuples of different lengths
        members[:] = columns.pop("members")
        return cls(**{k: np.array(v) for k, v in columns.items()}, members=members)

    def __len__(self) -> int:
        return len(self.seconds)

    def table(self) -> Table:
        """Return the first and last lines as a table."""
        shown = list(range(len(self)))
        if len(self) > SHOWN:
            shown = [*shown[: SHOWN // 2], *shown[-SHOWN // 2 :]]
        texts = {
            **{"what": str, "seconds": "{:.6g}".format, "worker": str},
            **{"steps": lambda n: str(n or ""), "batch_size": lambda n: str(n or "")},
            **{"node": str, "members": _few},
        }
        columns = {
            name.replace("_", " "): [text(getattr(self, name)[i]) for i in shown]
            for name, text in texts.items()
        }
        rounds = int(np.sum(self.what == "steps"))
        merges = sum(map(bool, self.members))
        caption = [f"{rounds:,} local rounds, {merges:,} merges and fetches"]
        if len(shown) < len(self):
            caption.append(f"(the first and the last of {len(self):,} lines)")
        return Table.of(columns, caption)


def _few(members: tuple[str, ...]) -> str:
    """Return the first names as text."""
    text = ", ".join(members[:4])
    return f"{text}, ... ({len(members)})" if len(members) > 4 else text
