"""Targets and ranks of the leaderboard, from the cells' files alone.

A place is a machine, a task and a partition. In each place and for each seed the
strategies are ranked by the seconds to the target; those that never hold it come after
all others, by their best metric.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hetjax.engine.records.history import History
from hetjax.metric_mode import best_of, score

REFERENCES = ("sequential_sgd", "sync_sgd")  # whose best metric sets the target
MARGIN = 0.03  # of the reference's gain over the constant prediction
Place = tuple[str, str, str]  # machine, task, partition


class Entry(NamedTuple):
    """A strategy in a place: one number of each for every seed."""

    seconds: tuple[float, ...]  # to the target; inf: never
    best: tuple[float, ...]  # metric
    ranks: tuple[float, ...]  # 1 is the first
    waiting: float  # share, median
    mb_per_worker: float  # median
    rates: tuple[float | None, ...]  # chosen


class Standing(NamedTuple):
    """A strategy in the whole leaderboard."""

    strategy: str
    ranks: tuple[float, ...]  # of all places and seeds
    reached: float  # share of the runs that hold the target
    first: int  # places in which its median rank is the best

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The first quartile, the median and the third quartile of its ranks."""
        low, middle, high = np.quantile(self.ranks, (0.25, 0.5, 0.75))
        return float(low), float(middle), float(high)


def history_of(cell: Mapping[str, Any], run: Mapping[str, Any]) -> History:
    """The evaluations of a stored run."""
    points = [
        {"seconds": s, cell["metric"]: math.nan if v is None else v}
        for s, v in run["evals"]
    ]
    own = cell["asked"]["strategy"], run["seed"], {}
    return History(*own, cell["metric"], cell["mode"], evals=points)  # pyright: ignore


def target(cells: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The target of a place, from its cells by strategy; None without a reference.

    The best metric of a reference is the median over its seeds; the target is short of
    the better one by `MARGIN` of its gain over the metric of a constant prediction, or
    of its own value if that is not known. It has three significant digits.
    """
    found = [
        (median(h.best() for h in _histories(cells[name])), cells[name])
        for name in REFERENCES
        if name in cells
    ]
    found = [(value, cell) for value, cell in found if not math.isnan(value)]
    if not found:
        return None
    mode = found[0][1]["mode"]
    best, cell = max(found, key=lambda each: score(each[0], mode))
    base = cell["constant"]
    gain = abs(best) if base is None else abs(best - base)
    return float(f"{best - score(MARGIN * gain, mode):.3g}")


def _histories(cell: Mapping[str, Any]) -> list[History]:
    return [history_of(cell, run) for run in cell["runs"]]


def ranked(seconds: Sequence[float], best: Sequence[float], mode: str) -> list[float]:
    """Ranks by seconds, then by the metric if they never reach it; 1 is the first.

    Strategies that are level share the mean of their ranks.
    """
    keys = [
        (0, s, 0.0)
        if math.isfinite(s)
        else (1, 0.0, math.inf if math.isnan(b) else -score(b, mode))
        for s, b in zip(seconds, best, strict=True)
    ]
    before = [sum(other < key for other in keys) for key in keys]
    level = [keys.count(key) for key in keys]
    return [b + (n + 1) / 2 for b, n in zip(before, level, strict=True)]


def entries(cells: Mapping[str, Mapping[str, Any]], aim: float) -> dict[str, Entry]:
    """The strategies of a place with their ranks, the best median rank first."""
    mode = next(iter(cells.values()))["mode"]
    runs = {name: _histories(cell) for name, cell in cells.items()}
    best = {
        n: [best_of([p[h.metric] for p in h.evals], mode) for h in hs]
        for n, hs in runs.items()
    }
    times = {
        n: [h.seconds_to(aim, interpolated=True) for h in hs] for n, hs in runs.items()
    }
    names = list(cells)
    seeds = range(min(len(each) for each in runs.values()))
    by_seed = [
        ranked([times[n][k] for n in names], [best[n][k] for n in names], mode)
        for k in seeds
    ]
    found = {}
    for i, name in enumerate(names):
        own = cells[name]["runs"]
        found[name] = Entry(
            tuple(times[name]),
            tuple(best[name]),
            tuple(ranks[i] for ranks in by_seed),
            median(run["waiting_share"] for run in own),
            median(run["mb_per_worker"] for run in own),
            tuple(cells[name]["chosen"]),
        )
    return dict(sorted(found.items(), key=lambda e: _order(e[1])))


def _order(entry: Entry) -> tuple[float, float]:
    return median(entry.ranks), float(np.mean(entry.ranks))


def standings(places: Mapping[Place, Mapping[str, Entry]]) -> list[Standing]:
    """All strategies by their median rank over all places and seeds, then the mean.

    Ranks compare only within the same strategies: a strategy that is missing in some of
    the places is ranked by the others.
    """
    names = dict.fromkeys(name for place in places.values() for name in place)
    found = []
    for name in names:
        own = [place[name] for place in places.values() if name in place]
        ranks = tuple(rank for entry in own for rank in entry.ranks)
        times = [s for entry in own for s in entry.seconds]
        first = sum(
            median(place[name].ranks) == min(median(e.ranks) for e in place.values())
            for place in places.values()
            if name in place
        )
        reached = sum(map(math.isfinite, times)) / len(times)
        found.append(Standing(name, ranks, reached, first))
    return sorted(found, key=lambda s: (median(s.ranks), float(np.mean(s.ranks))))
