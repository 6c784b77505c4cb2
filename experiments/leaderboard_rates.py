"""The rates that a cell of the leaderboard tries: equal effort for all strategies."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import hetjax as hj

# settings of factories that are a server's rate; others, but one, have their defaults
OUTER_NAMES = ("outer_learning_rate", "server_learning_rate")
OUTER = (0.1, 0.3, 1.0)
# an adaptive server's step is about as long as its rate in each coordinate
OUTER_SCALES = {"fed_opt": 0.3}
GROW = 2  # times that a grid grows, at most
Factory = Callable[..., hj.Strategy]


class Pair(NamedTuple):
    """A learning rate of the workers, and one of the server if there is one."""

    inner: float
    outer: float | None = None

    def __str__(self) -> str:
        outer = "" if self.outer is None else f", outer rate {self.outer:g}"
        return f"rate {self.inner:g}{outer}"


def outer_setting(make: Factory) -> str | None:
    """The name of a factory's server rate; None if it has none."""
    names = inspect.signature(make).parameters
    return next((name for name in OUTER_NAMES if name in names), None)


def outer_rates(name: str, rates: Sequence[float]) -> list[float]:
    """The server's rates that a strategy tries."""
    return [float(f"{OUTER_SCALES.get(name, 1.0) * rate:.3g}") for rate in rates]


def pairs(
    inner: Sequence[float], outer: Sequence[float], *, has_outer: bool
) -> list[Pair]:
    """The rates that are tried at first: the same number for every strategy.

    With a server's rate all pairs of both grids. Without, as many rates of the workers,
    a quarter of a decade apart, around the middle of `inner`.
    """
    if has_outer:
        return [Pair(i, o) for o in outer for i in inner]
    number = len(inner) * len(outer)
    middle = (math.log10(inner[0]) + math.log10(inner[-1])) / 2
    first = round(4 * middle - (number - 1) / 2)
    return [Pair(_rate(first + k, 4)) for k in range(number)]


def grown(tried: Sequence[Pair], best: Pair) -> list[Pair]:
    """The pairs by which the grid grows if the best one is at its edge, else none.

    It grows by half a decade wherever the best rate is the smallest or the largest;
    without a server's rate by a decade, in quarters: about as many pairs. A rate that
    is the only one of its kind stays.
    """
    inner = sorted({pair.inner for pair in tried})
    if best.outer is None:
        return [Pair(rate) for rate in _beyond(inner, best.inner, 4, 4)]
    outer = sorted({pair.outer for pair in tried if pair.outer is not None})
    inner += _beyond(inner, best.inner, 2, 1)
    outer += _beyond(outer, best.outer, 2, 1)
    all_pairs = [Pair(i, o) for o in outer for i in inner]
    return [pair for pair in all_pairs if pair not in tried]


def _beyond(
    rates: Sequence[float], best: float, per_decade: int, number: int
) -> list[float]:
    """The next rates behind the best one, if it is the first or last of several."""
    if len(rates) == 1 or rates[0] < best < rates[-1]:
        return []
    sign = 1 if best == rates[-1] else -1
    at = round(per_decade * math.log10(best))
    return [_rate(at + sign * k, per_decade) for k in range(1, number + 1)]


def _rate(place: int, per_decade: int) -> float:
    """10^(place / per_decade), to as many digits as distinguish neighbors."""
    return float(f"{10 ** (place / per_decade):.{2 if per_decade > 2 else 1}g}")
