"""What plots show, for pictures and pages alike: curves, timelines, colors, labels."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetjax.engine.records.history import History
from hetjax.report.runs import strategy_names

# each has a lightness of its own, so that they differ in gray, too
COLORS = (
    *("#332288", "#D55E00", "#56B4E9", "#882255", "#0B6B2E", "#CC79A7", "#000000"),
    "#0072B2",
)
DASHES = ("-", "--", ":", "-.")  # the next one when the colors are used up
KINDS = {  # of a worker's time
    "busy": "#44546A",
    "merging": "#F2A541",
    "transfer": "#3C9D9B",
    "waiting": "#E3E6EA",
    "idle": "#FFFFFF",
}
X_LABELS = {
    "seconds": "virtual time [s]",
    "examples": "examples processed",
    "updates": "local updates",
    "merges": "merges",
    "bytes": "bytes from and to all workers",
}


def strategy_styles(histories: Sequence[History]) -> dict[str, tuple[str, str]]:
    """A color and a dash per strategy, the same in every plot of these histories."""
    names, n = strategy_names(histories), len(COLORS)
    return {
        name: (COLORS[i % n], DASHES[i // n % len(DASHES)])
        for i, name in enumerate(names)
    }


def grouped(value: float) -> str:
    """Format a number with commas between thousands."""
    return f"{value:,.10g}"


# Curves


class Curve(NamedTuple):
    """The values of one strategy, at the points where all of its runs have values."""

    name: str
    note: str  # such as "(stopped early)"
    points: np.ndarray  # [P] of the horizontal axis
    values: np.ndarray  # [runs, P]
    color: str
    dash: str

    @property
    def median(self) -> np.ndarray:
        """The median of the runs at every point [P]."""
        return np.median(self.values, axis=0)

    @property
    def end(self) -> tuple[float, float]:
        """The last point of the median; NaN without any."""
        if not len(self.points):
            return math.nan, math.nan
        return float(self.points[-1]), float(self.median[-1])


def curves_of(
    histories: Sequence[History], metric: str, x: str, smooth: int = 1
) -> list[Curve]:
    """A curve of every strategy, over seconds, examples, ...

    A curve ends where the first of its seeds ends: beyond that, a median would leave
    out the runs that stopped. Every value is the median of `smooth` evaluations.
    """
    if x not in X_LABELS:
        raise ValueError(f"x is {x!r}, not one of {', '.join(X_LABELS)}")
    for h in histories:
        if any(x not in point for point in h.evals):
            raise ValueError(
                f"x is {x!r}, which the evaluations of {h.strategy}, seed {h.seed}, do "
                'not have: an earlier version made them; use "seconds" or "examples"'
            )
    if isinstance(smooth, bool) or not isinstance(smooth, int) or smooth < 1:
        raise ValueError(f"smooth={smooth!r}: pass a number of evaluations, at least 1")
    found = []
    for name, style in strategy_styles(histories).items():
        runs = [h for h in histories if h.strategy == name]
        points, values = over_seeds(runs, metric, x, smooth)
        found.append(Curve(name, _note(runs), points, values, *style))
    return found


def over_seeds(
    runs: Sequence[History], column: str, x: str, smooth: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The points where all runs have values [P], and a column there [runs, P].

    It is interpolated between evaluations, as seeds may differ in examples and updates.
    """
    if not all(h.evals for h in runs):
        return np.empty(0), np.empty((len(runs), 0))
    xs = [np.array([p[x] for p in h.evals], float) for h in runs]
    ys = [np.array([p[column] for p in h.evals], float) for h in runs]
    grid = np.unique(np.concatenate(xs))
    start, end = max(v[0] for v in xs), min(v[-1] for v in xs)
    grid = grid[(grid >= start) & (grid <= end)]
    values = [
        np.interp(grid, a, _smoothed(b, smooth)) for a, b in zip(xs, ys, strict=True)
    ]
    return grid, np.stack(values)


def _smoothed(values: np.ndarray, count: int) -> np.ndarray:
    """The median of `count` values around each [P]; fewer at both ends."""
    before, after = (count - 1) // 2, count // 2
    windows = (values[max(0, i - before) : i + after + 1] for i in range(len(values)))
    return np.array([np.median(window) for window in windows])


def _note(runs: Sequence[History]) -> str:
    """A note on runs of a strategy that stopped early or collapsed; else empty."""
    if not all(h.evals for h in runs):
        return "(a run was never evaluated)"
    counts = {
        "stopped early": sum(h.ended_early for h in runs),
        "ended far worse than its best": sum(h.collapsed for h in runs),
    }
    several = len(runs) > 1
    notes = [
        f"{what}: {count} of {len(runs)} seeds" if several else what
        for what, count in counts.items()
        if count
    ]
    return f"({', '.join(notes)})" if notes else ""


class Range(NamedTuple):
    """The range of an axis; None where the values decide."""

    low: float | None = None
    high: float | None = None
    logarithmic: bool = False


def value_range(histories: Sequence[History], target: float | None) -> Range:
    """A range that fits trained models; values of untrained ones may be outside.

    It has all values after the first tenth of every run, the best ones, and the target.
    If these differ by more than a factor of two, it begins at the smallest value of
    all. If they differ by more than fifty, and smaller is better, it is logarithmic.
    """
    metric = histories[0].metric
    shown = [h.best() for h in histories]
    shown += [p[metric] for h in histories for p in h.evals[1 + len(h.evals) // 10 :]]
    shown += [] if target is None else [target]
    late = [v for v in shown if math.isfinite(v)]
    if len(late) < 2 or max(late) <= 0:
        return Range()
    smaller_is_better = histories[0].mode == "min" and min(late) > 0
    if smaller_is_better and max(late) > 50 * min(late):
        return Range(logarithmic=True)
    margin = 0.08 * (max(late) - min(late)) or 0.01
    close = min(late) >= max(late) / 2
    return Range(
        max(0.0, min(late) - margin) if close else None,
        max(late) + margin if close or smaller_is_better else None,
    )


def x_label(histories: Sequence[History], x: str = "seconds") -> str:
    """The label of a horizontal axis; real seconds are not called virtual."""
    real = x == "seconds" and any(h.real for h in histories)
    return "time [s]" if real else X_LABELS[x]


def y_label(histories: Sequence[History], smooth: int = 1) -> str:
    """The metric, whether lower is better, and the examples of the evaluations."""
    label = histories[0].metric
    label += "" if histories[0].mode == "max" else " (lower is better)"
    if smooth > 1:
        label += f", median of {smooth} evaluations"
    parts = {h.eval_examples for h in histories}
    if parts == {0}:
        return label
    if len(parts) > 1:
        return f"{label}\non different parts of the test split"
    wholes = {int(h.at_end["examples"]) for h in histories if h.at_end}
    of = f" of {max(wholes):,}" if wholes else ""
    return f"{label}\non {max(parts):,}{of} test examples"


# Timelines


def segments(history: History) -> np.ndarray:
    """The timeline as [S, 4]: worker, index of the kind, start, finish."""
    table = np.array(history.timeline.numbers).reshape(-1, 4)
    table[:, 1] %= len(history.timeline.kinds)  # a round that was lost is busy
    return table


def kinds_of(histories: Sequence[History]) -> dict[str, str]:
    """The kinds of time and their colors; only real devices have transfers."""
    moved = any(w.transfer for h in histories for w in h.workers)
    return {k: c for k, c in KINDS.items() if moved or k != "transfer"}


def last_length(history: History, count: int = 40) -> float:
    """Seconds from the last `count` segments of the busiest worker to the end."""
    table = segments(history)
    if not len(table):
        return history.duration or 1.0
    owners = table[:, 0].astype(int)
    starts = np.sort(table[owners == np.bincount(owners).argmax(), 2])
    return history.duration - float(starts[-count:][0])


def spread_workers(history: History, at_most: int) -> list[int]:
    """The indices of all workers, or of some of many, spread evenly."""
    n = len(history.workers)
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, at_most))})


def sizes_over_merges(history: History) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(worker, merges [N], batch sizes [N]) of workers, up to the run's end."""
    done = np.array(history.merge_times)  # [s]; batch sizes change at merges
    found = []
    for worker in history.workers:
        if worker.batch_size_over_time:
            seconds, sizes = np.transpose(worker.batch_size_over_time)
            times = [*seconds, max(history.duration, seconds[-1])]
            merges = np.searchsorted(done, times, side="right")
            found.append((worker.name, merges, np.append(sizes, sizes[-1])))
    return found
