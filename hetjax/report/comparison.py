"""The result of a comparison: the runs of all strategies, summary, plots and files."""

import csv
import json
import math
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from hetjax.engine.records.history import History
from hetjax.report import plots
from hetjax.report.panels import strategy_names
from hetjax.report.record import COMMON, metric_names, plain, run_record
from hetjax.report.table import Table

TARGET_SHARE = 0.97  # of the best median, if no target is given


class Comparison:
    """Histories of several strategies and seeds on the same data and machine.

    The numbers of a strategy are medians over its seeds. By default the target is 97 %
    of the best median that any strategy reached, to three significant digits: rounding
    changes it by half a percent at most, so that at least one strategy reaches it.
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
    ):
        """`tuning`: how learning rates were chosen; `signal`: what interrupted it."""
        _check(histories)
        self.histories = list(histories)
        self.data = data
        self.machine = machine
        self.tuning = tuning
        self.signal = signal
        self.metric = histories[0].metric
        self.target_is_default = target is None
        self.target = self._default_target() if target is None else float(target)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    @property
    def interrupted(self) -> bool:
        """Did a signal end it, so that runs are missing?"""
        return bool(self.signal)

    @property
    def strategies(self) -> list[str]:
        """The names of the strategies, in the order of their first runs."""
        return strategy_names(self.histories)

    def of(self, strategy: str) -> list[History]:
        """The runs of one strategy, one per seed."""
        return [h for h in self.histories if h.strategy == strategy]

    def _default_target(self) -> float:
        bests = [_median(h.best() for h in self.of(name)) for name in self.strategies]
        best = max((b for b in bests if not math.isnan(b)), default=float("nan"))
        # 0.97 best, but also below the best if the metric is negative
        return float(f"{best - (1 - TARGET_SHARE) * abs(best):.3g}")

    def summary(self, target: float | None = None) -> list[dict[str, Any]]:
        """Return one dictionary per strategy: metric, seconds to the target, costs."""
        target = self.target if target is None else target
        return [_summary_row(name, self.of(name), target) for name in self.strategies]

    def table(self, target: float | None = None) -> Table:
        """Return the summary as a table."""
        default = target is None and self.target_is_default
        target = self.target if target is None else target
        summary = self.summary(target)
        texts = _best_texts(summary), _seconds_texts(summary)
        ends = [[text] for text in _end_texts(summary)]
        has_ends = any(row["at_end"] is not None for row in summary)
        rows = [
            (
                row["strategy"],
                best,
                *(end * has_ends),
                seconds,
                f"{row['updates']:,.0f}",
                f"{row['examples']:,.0f}",
                f"{100 * row['waiting_share']:.1f}",
                str(row["compilations"]),
            )
            for row, best, seconds, end in zip(summary, *texts, ends, strict=True)
        ]
        real = any(history.real for history in self.histories)
        unit = "seconds" if real else "virtual seconds"
        header = (
            "strategy",
            f"best {self.metric}",
            *([f"{self.metric} at the end"] * has_ends),
            f"{unit} to {target:g}",
            "updates",
            "examples",
            "waiting [%]",
            "compilations",
        )
        return Table(header, tuple(rows), self._caption(target, default))

    def _caption(self, target: float, default: bool) -> tuple[str, ...]:
        """Return the lines below the table."""
        lines = [f"target {target:g} {self.metric}"]
        if default:
            share = f"{100 * TARGET_SHARE:.0f} %"
            lines[0] += f": {share} of the best median that any strategy reached"
        if len(self.histories) > len(self.strategies):
            lines.append("medians over seeds [lowest, highest]; compilations: sum")
        lines += _output_layers(self.histories)
        lines += _parts_of_test(self.histories)
        lines += _placements(self.histories)
        if self.interrupted:
            lines.append("interrupted: not all runs were made")
        for h in self.histories:
            if h.stopped:
                lines.append(f"{h.strategy}, seed {h.seed}, stopped early: {h.stopped}")
        return tuple(lines)

    def plot(self, x: str = "seconds") -> Figure:
        """Plot the main metric over "seconds", "examples" or "updates"."""
        return plots.time_to_accuracy(self.histories, self.metric, x, self.target)

    def plot_batch_sizes(self) -> Figure:
        """Plot every worker's batch size over time, if it changed."""
        return plots.batch_sizes(self.histories)

    def plot_timeline(
        self,
        workers: Sequence[int] | None = None,
        window: tuple[float, float] | None = None,
    ) -> Figure:
        """Plot when each worker computed, merged and waited, in a window of seconds."""
        return plots.timeline(self.histories, workers, window)

    def to_csv(self, path: str | Path) -> None:
        """Write one row per evaluation."""
        names = metric_names(p for h in self.histories for p in h.evals)
        header = ["strategy", "seed", *COMMON, *names]
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, header, lineterminator="\n")
            writer.writeheader()
            for h in self.histories:
                for point in h.evals:
                    writer.writerow({"strategy": h.strategy, "seed": h.seed, **point})

    def to_json(self, path: str | Path, version: str | None = None) -> None:
        """Write everything except timelines and models; `version` is hetjax's."""
        text = json.dumps(self.document(version), indent=1, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def document(self, version: str | None = None) -> dict[str, Any]:
        """Return the content of results.json; NaN and infinity are None."""
        return {
            "hetjax": version or installed_version(),
            "data": plain(self.data),
            "machine": plain(self.machine),
            "tuning": plain(self.tuning),
            "target": plain(self.target),
            "metric": self.metric,
            "runs": [run_record(h) for h in self.histories],
            "summary": [
                {name: plain(value) for name, value in row.items()}
                for row in self.summary()
            ],
        }


def _output_layers(histories: list[History]) -> list[str]:
    """A line for each output layer that is not the model's own."""
    layers = {h.output for h in histories if h.output}
    return [f"output layer: {text}" for text in sorted(layers)]


def _parts_of_test(histories: list[History]) -> list[str]:
    """A line that says of what evaluations are, if not of the whole test split."""
    parts = {
        (h.eval_examples, int(h.at_end.get("examples", 0)))
        for h in histories
        if h.eval_examples
    }
    return [
        f"evaluations during a run are of {part:,} test examples, those at its end of "
        f"{f'all {whole:,}' if whole else 'none'}"
        for part, whole in sorted(parts)
    ]


def _placements(histories: list[History]) -> list[str]:
    """A line for each way in which runs were placed on devices, if it is not usual."""
    named: dict[str, dict[str, None]] = {}
    for h in histories:
        if h.real and h.placement != "threads":
            named.setdefault(h.placement, {})[h.strategy] = None
    lines = [f"{', '.join(names)}: {placement}" for placement, names in named.items()]
    if any(h.estimates_busy for h in histories):
        lines.append(
            "on a mesh, a worker is busy for its measured steps; what is left of a "
            "round is waiting for others, then merging"
        )
    return lines


def _check(histories: list[History]) -> None:
    """Raise a ValueError for histories that cannot be compared."""
    if not histories:
        raise ValueError("no histories to report on: run at least one strategy")
    metrics = sorted({h.metric for h in histories})
    if len(metrics) > 1:
        raise ValueError(f"runs of different main metrics: {', '.join(metrics)}")
    seen = set()
    for h in histories:
        if (h.strategy, h.seed) in seen:
            # they would count as two seeds of one strategy
            raise ValueError(
                f"two runs are called {h.strategy!r} with seed {h.seed}: "
                "give strategies with other settings other names"
            )
        seen.add((h.strategy, h.seed))


def _summary_row(name: str, runs: list[History], target: float) -> dict[str, Any]:
    """Return one strategy's row of the summary."""
    bests = [h.best() for h in runs]
    seconds = _median(h.seconds_to(target) for h in runs)
    unknown = any(map(math.isnan, bests))
    ends = [h.at_end[h.metric] for h in runs if h.at_end]
    return {
        "strategy": name,
        "best": _median(bests),
        "best_spread": [math.nan] * 2 if unknown else [min(bests), max(bests)],
        "at_end": _median(ends) if ends else None,
        "seconds_to_target": seconds if math.isfinite(seconds) else None,
        "waiting_share": _median(h.waiting_share() for h in runs),
        "updates": _median(sum(w.updates for w in h.workers) for h in runs),
        "examples": _median(sum(w.examples for w in h.workers) for h in runs),
        "padding_share": _median(_padding_share(h) for h in runs),
        "compilations": sum(h.compilations for h in runs),
        "seeds": [h.seed for h in runs],
        "stopped": [h.stopped for h in runs if h.stopped],
    }


def _padding_share(history: History) -> float:
    """The share of padding among all examples that were computed."""
    padded = sum(w.padded for w in history.workers)
    return padded / max(1, padded + sum(w.examples for w in history.workers))


def _median(values: Iterable[float]) -> float:
    """The median, where inf stands for "never"; nan if any value is nan."""
    values = list(values)
    return math.nan if any(map(math.isnan, values)) else median(values)


def _best_texts(summary: list[dict[str, Any]]) -> list[str]:
    """The best metric of every row, with its spread if there are several seeds."""
    bests = [abs(row["best"]) for row in summary if not math.isnan(row["best"])]
    digits = _decimals(max(bests, default=1.0))
    texts = []
    for row in summary:
        text = f"{row['best']:.{digits}f}"
        if len(row["seeds"]) > 1:
            low, high = row["best_spread"]
            text += f" [{low:.{digits}f}, {high:.{digits}f}]"
        texts.append(text)
    return texts


def _end_texts(summary: list[dict[str, Any]]) -> list[str]:
    """The final metric on the whole test split of every row."""
    bests = [abs(row["best"]) for row in summary if not math.isnan(row["best"])]
    digits = _decimals(max(bests, default=1.0))
    ends = [row["at_end"] for row in summary]
    return ["" if end is None else f"{end:.{digits}f}" for end in ends]


def _seconds_texts(summary: list[dict[str, Any]]) -> list[str]:
    """The seconds to the target of every row; the smallest with three digits."""
    times = [row["seconds_to_target"] for row in summary]
    digits = _decimals(min((t for t in times if t), default=1.0))
    return ["never" if t is None else f"{t:,.{digits}f}" for t in times]


def _decimals(value: float) -> int:
    """The number of decimals that shows three digits of a value, and 1 as 1.000."""
    return max(0, 3 - math.ceil(math.log10(value))) if value > 0 else 3


def installed_version() -> str:
    """The version of the installed hetjax; "unknown" if it is not installed."""
    try:
        return metadata.version("hetjax")
    except metadata.PackageNotFoundError:
        return "unknown"
