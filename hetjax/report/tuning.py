"""Learning rates that were chosen from a grid: captions, remarks, joined records."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hetjax.report.runs import check_same

FAR = 0.03  # of the best score: the difference to a much worse neighbor
COARSE = 4.0  # the ratio of a coarse grid; half decades, factors of 3.2, are finer


def remarks(tuning: Mapping[str, Any]) -> list[str]:
    """Lines about chosen rates at an edge of the grid, and about coarse grids.

    A grid is coarse if a rate next to the chosen one is a factor of four away or more,
    and each neighbor's score is worse by more than 3 %, or diverged.
    """
    found: dict[str, list[str]] = {}
    for name, chosen in tuning["chosen"].items():
        # None in a file means that the rate diverged
        scores = {
            float(rate): math.nan if score is None else score
            for rate, score in tuning["scores"][name].items()
        }
        for remark in _of_one(scores, float(f"{chosen:g}")):
            found.setdefault(remark, []).append(name)
    whole = len(tuning["chosen"])
    return [
        f"{', '.join(names) if len(names) < whole or whole == 1 else 'all'}: {remark}"
        for remark, names in found.items()
    ]


def _of_one(scores: dict[float, float], chosen: float) -> Iterator[str]:
    """The remarks on one strategy; none if a single rate was tried."""
    rates, best = sorted(scores), scores[chosen]
    at = rates.index(chosen)
    neighbors = rates[max(0, at - 1) : at] + rates[at + 1 : at + 2]
    if len(neighbors) == 1:
        which, more = ("smallest", "smaller") if at == 0 else ("largest", "larger")
        yield (
            f"the learning rate {chosen:g} is the {which} that was tried: try {more} "
            "ones, too"
        )
    far = [not abs(scores[r] - best) <= FAR * abs(best) for r in neighbors]
    wide = [r for r in neighbors if max(r / chosen, chosen / r) >= COARSE]
    if wide and math.isfinite(best) and all(far):
        between = " and ".join(f"{math.sqrt(r * chosen):.1g}" for r in wide)
        nearby = " and ".join(f"{r:g}" for r in neighbors)
        yield (
            f"the learning rates {nearby} are much worse than {chosen:g}: try finer "
            f"steps around it, such as {between}"
        )


def joined_tuning(
    one: dict[str, Any] | None, other: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The joined record of how two comparisons chose their learning rates."""
    if one is None or other is None:
        return one or other
    for name in ("tune", "held_out"):
        check_same(f"tuning.{name}", one[name], other[name])
    check_same("tuning.score", one.get("score", "best"), other.get("score", "best"))
    for name in ("scores", "chosen"):
        both = one[name].keys() & other[name].keys()
        for strategy in sorted(both):
            where = f"tuning.{name}.{strategy}"
            check_same(where, one[name][strategy], other[name][strategy])
    joined = {name: {**one[name], **other[name]} for name in ("scores", "chosen")}
    return {**one, **joined}


def chosen_rates(tuning: dict[str, Any] | None) -> list[str]:
    """Lines below a table with the chosen learning rates and the held-out examples."""
    if tuning is None:
        return []
    chosen, how = tuning["chosen"], f"on {tuning['held_out']:,} held-out examples"
    if tuning["tune"] == "common" and len(set(chosen.values())) == 1:
        return [f"learning rate {next(iter(chosen.values())):g} for all, chosen {how}"]
    rates = ", ".join(f"{name} {rate:g}" for name, rate in chosen.items())
    return [f"learning rates, chosen {how}: {rates}"]
