"""The result of a comparison: the runs of all strategies, summary, plots and files."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetjax.atomic_files import naming
from hetjax.engine.records.history import History
from hetjax.metric_mode import best_of, better, score, worst
from hetjax.report.pivot import pivot
from hetjax.report.reading import read_document
from hetjax.report.record import COMMON, metric_names, plain, run_record
from hetjax.report.runs import check_runs, check_same, strategy_names
from hetjax.report.summary import (
    TARGET_SHARE,
    median_or_nan,
    summary_row,
    summary_table,
)
from hetjax.report.table import Table, Tabular
from hetjax.report.tuning import joined_tuning
from hetjax.report.versions import installed_versions, joined_versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _learned(history: History) -> bool:
    """Whether the metric ended better than that of the initial model."""
    first = history.evals[0] if history.evals else None
    if first is None or first["seconds"] > 0:  # the initial metric is not known
        return True
    return better(history.final(), first[history.metric], history.mode)


class Comparison(Tabular):
    """Histories of several strategies and seeds on the same data and machine.

    The numbers of a strategy are medians over its seeds. Its final metric is the mean
    over the last tenth of the evaluations, the value that a user ends with; its best
    one may come from a single evaluation, before a collapse. By default the target is
    97 % of the best final median of any strategy, to three significant digits: rounding
    changes it by half a percent at most, so that at least one strategy reaches it. A
    target counts as reached when it is held from then on (`History.seconds_to`).

    `a + b` has the runs of both; a ValueError names the difference between them (data,
    machine, metric, target), or a run that is in both.
    """

    def __init__(
        self,
        histories: list[History],
        *,
        data: dict[str, Any],
        machine: dict[str, Any],
        target: float | None = None,
        tuning: dict[str, Any] | None = None,
        signal: str = "",
        versions: dict[str, str] | None = None,
        constant: float | None = None,
    ):
        """`tuning`: the choice of learning rates; `signal`: the interrupting signal.

        `versions`: of the packages that made the runs; by default the installed ones.
        `constant`: the metric of a constant prediction, if known.
        """
        check_runs(histories)
        self.histories = list(histories)
        self.data = data
        self.machine = machine
        self.tuning = tuning
        self.signal = signal
        self.constant = constant
        self.versions = installed_versions() if versions is None else versions
        self.metric, self.mode = histories[0].metric, histories[0].mode
        self.target_is_default = target is None
        self.target = self._default_target() if target is None else float(target)

    @classmethod
    def from_json(cls, path: str | Path) -> "Comparison":
        """Read a results.json written by `to_json`, without timelines and models.

        `path` may be the folder of the file. NaN and infinity are read as NaN. Errors:
        those of opening the file; a ValueError that names the file and the field that
        is missing or of another type.
        """
        return cls(**read_document(path))

    def __add__(self, other: "Comparison") -> "Comparison":
        if not isinstance(other, Comparison):
            return NotImplemented
        check_same("data", self.data, other.data)
        check_same("machine", self.machine, other.machine)
        budgets = [c.budget for c in (self, other) if c.budget is not None]
        if len(set(budgets)) > 1:
            raise ValueError(
                f"comparisons of different runs cannot be added: runs of one took "
                f"{budgets[0]:g} {self.unit}, runs of the other {budgets[1]:g}"
            )
        given = [c.target for c in (self, other) if not c.target_is_default]
        if len(set(given)) > 1:
            raise ValueError(
                f"comparisons with the targets {given[0]:g} and {given[1]:g} cannot be "
                "added: use the same target for both, or none"
            )
        return Comparison(
            self.histories + other.histories,
            data=self.data,
            machine=self.machine,
            target=given[0] if given else None,
            tuning=joined_tuning(self.tuning, other.tuning),
            signal=self.signal or other.signal,
            versions=joined_versions(self.versions, other.versions),
            constant=other.constant if self.constant is None else self.constant,
        )

    @property
    def budget(self) -> float | None:
        """The seconds of every run; None if all runs ended early."""
        whole = [h.duration for h in self.histories if not h.stopped]
        return max(whole, default=None)

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended it, so that runs are missing."""
        return bool(self.signal)

    @property
    def strategies(self) -> list[str]:
        """The names of the strategies, in the order of their first runs."""
        return strategy_names(self.histories)

    def of(self, strategy: str) -> list[History]:
        """The runs of one strategy, one per seed."""
        return [h for h in self.histories if h.strategy == strategy]

    def _default_target(self) -> float:
        finals = (median_or_nan(h.final() for h in self.of(n)) for n in self.strategies)
        best = best_of(finals, self.mode)
        if not any(map(_learned, self.histories)):
            return -worst(self.mode)  # no strategy learned, so none reaches it
        # 0.97 best; 1.03 best if the metric is negative, or if smaller is better
        less = (1 - TARGET_SHARE) * abs(best)
        return float(f"{best - score(less, self.mode):.3g}")

    def summary(self, target: float | None = None) -> list[dict[str, Any]]:
        """Return one dictionary per strategy: metric, seconds to the target, costs."""
        target = self.target if target is None else target
        return [summary_row(name, self.of(name), target) for name in self.strategies]

    def table(self, target: float | None = None) -> Table:
        """Return the summary as a table."""
        default = target is None and self.target_is_default
        target = self.target if target is None else target
        return summary_table(self, self.summary(target), target, default)

    @property
    def unit(self) -> str:
        """The unit of time: "seconds" on real devices, else "virtual seconds"."""
        real = any(history.real for history in self.histories)
        return "seconds" if real else "virtual seconds"

    def pivot(
        self,
        rows: str,
        columns: str,
        value: str = "best",
        *,
        where: Mapping[str, Any] | None = None,
    ) -> Table:
        """Return one number of every strategy as a table over two of their settings.

        `value`: "best", "final", "at_end", "seconds_to_target", or another number of
        the summary; a cell is blank if no strategy has both settings. `rows` or
        `columns` may be "strategy": pivot("strategy", "learning_rate"). All strategies,
        or else all of one kind, must agree in their other settings; `where` selects
        strategies by their settings: {"momentum": 0.9}. Errors: a ValueError that names
        a setting that differs, or is unknown.
        """
        return pivot(self, rows, columns, value, dict(where or {})).table()

    def plot_heat_map(
        self,
        x: str,
        y: str,
        value: str = "best",
        *,
        where: Mapping[str, Any] | None = None,
    ) -> "Figure":
        """Draw `pivot(y, x, value)`: the better a value, the darker its cell."""
        from hetjax.report.drawing.heat_map import heat_map

        return heat_map(pivot(self, y, x, value, dict(where or {})))

    def plot(self, x: str = "seconds", *, smooth: int = 1) -> "Figure":
        """Plot the main metric over `x`.

        x: "seconds", "examples", "updates", "merges", or "bytes" from and to all
        workers. Every value is the median of `smooth` evaluations around it. More than
        eight strategies are drawn in small panels, one for each.
        """
        from hetjax.report.drawing import curves  # here, since it imports matplotlib

        return curves.time_to_accuracy(
            self.histories, self.metric, x, self.target, smooth
        )

    def plot_batch_sizes(self) -> "Figure":
        """Plot the batch size of every worker over time, if it changed."""
        from hetjax.report.drawing.batch_sizes import batch_sizes

        return batch_sizes(self.histories)

    def plot_timeline(
        self,
        workers: Sequence[int] | None = None,
        window: tuple[float, float] | None = None,
    ) -> "Figure":
        """Plot when each worker computed, merged and waited, in a window of seconds.

        A ValueError for runs from a results.json, which has no timelines.
        """
        from hetjax.report.drawing.gantt import timeline

        return timeline(self.histories, workers, window)

    def to_csv(self, path: str | Path) -> None:
        """Write one row per evaluation."""
        names = metric_names(p for h in self.histories for p in h.evals)
        header = ["strategy", "seed", *COMMON, *names]
        with naming(path), open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, header, lineterminator="\n")
            writer.writeheader()
            for h in self.histories:
                for point in h.evals:
                    writer.writerow({"strategy": h.strategy, "seed": h.seed, **point})

    def to_json(self, path: str | Path, version: str | None = None) -> None:
        """Write everything except timelines and models; `version` is hetjax's."""
        text = json.dumps(self.document(version), indent=1, allow_nan=False)
        with naming(path):
            Path(path).write_text(text + "\n", encoding="utf-8")

    def document(self, version: str | None = None) -> dict[str, Any]:
        """Return the content of results.json; NaN and infinity are None."""
        return {
            "hetjax": version or self.versions["hetjax"],
            "versions": {k: v for k, v in self.versions.items() if k != "hetjax"},
            "data": plain(self.data),
            "machine": plain(self.machine),
            "tuning": plain(self.tuning),
            "target": plain(self.target),
            "target_is_default": self.target_is_default,
            "signal": self.signal,
            "constant": plain(self.constant),
            "metric": self.metric,
            "mode": self.mode,
            "runs": [run_record(h) for h in self.histories],
            "summary": [
                {name: plain(value) for name, value in row.items()}
                for row in self.summary()
            ],
        }

    def report(self, path: str | Path, *, command: str = "") -> None:
        """Write one HTML page with the results, plots, settings and versions.

        It needs no other file and no network; the same comparison gives the same bytes.
        `command`: the command that made the comparison, to be shown on the page.
        """
        from hetjax.report.page import page

        text = page(self, command)
        with naming(path):
            Path(path).write_text(text, encoding="utf-8")
