"""Histories by strategy, and checks that runs can be compared."""

from collections.abc import Sequence
from typing import Any

from hetjax.engine.records.history import History
from hetjax.engine.records.timeline import Timeline
from hetjax.report.record import plain


class NotStored(Timeline):
    """The missing timeline of a run from results.json."""


def check_timelines(histories: Sequence[History]) -> None:
    """Raise a ValueError for a run without a timeline."""
    for h in histories:
        if isinstance(h.timeline, NotStored):
            raise ValueError(
                f"{h.strategy}, seed {h.seed}, was read from a file, which has no "
                "timelines: draw its timeline in the process that makes the run"
            )


def strategy_names(histories: Sequence[History]) -> list[str]:
    """The names of the strategies, in the order of their first runs."""
    return list(dict.fromkeys(h.strategy for h in histories))


def first_seeds(histories: Sequence[History]) -> list[History]:
    """The first run of every strategy."""
    first: dict[str, History] = {}
    for h in histories:
        first.setdefault(h.strategy, h)
    return list(first.values())


def check_runs(histories: Sequence[History]) -> None:
    """Raise a ValueError for histories that cannot be compared."""
    if not histories:
        raise ValueError("no histories to report on: run at least one strategy")
    metrics = sorted({h.metric for h in histories})
    if len(metrics) > 1:
        raise ValueError(f"runs of different main metrics: {', '.join(metrics)}")
    if len({h.mode for h in histories}) > 1:
        raise ValueError(
            f"for some runs a larger {metrics[0]} is better, for others a smaller "
            "one: compare runs of one mode"
        )
    seen = set()
    for h in histories:
        if (h.strategy, h.seed) in seen:
            # they would count as two seeds of one strategy
            raise ValueError(
                f"two runs are named {h.strategy!r} with seed {h.seed}: "
                "use different names for strategies with different settings"
            )
        seen.add((h.strategy, h.seed))


def check_same(what: str, one: Any, other: Any) -> None:
    """Raise a ValueError that names the first difference between two descriptions."""
    found = first_difference(what, plain(one), plain(other))
    if found is not None:
        where, a, b = found
        raise ValueError(
            f"comparisons of different runs cannot be added: {where} is {a!r} in one, "
            f"and {b!r} in the other"
        )


def first_difference(where: str, one: Any, other: Any) -> tuple[str, Any, Any] | None:
    """The path of the first difference between JSON data, and both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(f"{where}.{k}", one.get(k), other.get(k)) for k in {**other, **one}]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        parts = zip(one, other, strict=True)
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(parts)]
    else:
        return None if one == other else (where, one, other)
    found = (first_difference(*pair) for pair in pairs)
    return next((f for f in found if f is not None), None)
