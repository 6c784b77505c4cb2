"""The summary of a comparison in numbers and texts: medians over seeds, captions."""

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from hetjax.engine.records.history import History


def row(name: str, runs: list[History], target: float) -> dict[str, Any]:
    """Return one strategy's row of the summary."""
    bests, finals = [h.best() for h in runs], [h.final() for h in runs]
    seconds = middle(h.seconds_to(target) for h in runs)
    unknown = any(map(math.isnan, bests))
    ends = [h.at_end[h.metric] for h in runs if h.at_end]
    return {
        "strategy": name,
        "best": middle(bests),
        "best_spread": [math.nan] * 2 if unknown else [min(bests), max(bests)],
        "final": middle(finals),
        "collapsed": [h.seed for h in runs if h.collapsed],
        "at_end": middle(ends) if ends else None,
        "seconds_to_target": seconds if math.isfinite(seconds) else None,
        "waiting_share": middle(h.waiting_share() for h in runs),
        "updates": middle(sum(w.updates for w in h.workers) for h in runs),
        "examples": middle(sum(w.examples for w in h.workers) for h in runs),
        "merges": middle(h.merges for h in runs),
        "mb_per_worker": middle(_mb_per_worker(h) for h in runs),
        "padding_share": middle(_padding_share(h) for h in runs),
        "compilations": sum(h.compilations for h in runs),
        "seeds": [h.seed for h in runs],
        "stopped": [h.stopped for h in runs if h.stopped],
    }


def _padding_share(history: History) -> float:
    """The share of padding among all examples that were computed."""
    padded = sum(w.padded for w in history.workers)
    return padded / max(1, padded + sum(w.examples for w in history.workers))


def _mb_per_worker(history: History) -> float:
    """MB from a worker and to it, mean over the workers."""
    moved = sum(w.bytes_received + w.bytes_sent for w in history.workers)
    return moved / 1e6 / max(1, len(history.workers))


def middle(values: Iterable[float]) -> float:
    """The median, where inf stands for "never"; nan if any value is nan."""
    values = list(values)
    return math.nan if any(map(math.isnan, values)) else median(values)


def best_texts(summary: list[dict[str, Any]]) -> list[str]:
    """The best metric of every row, with its spread if there are several seeds."""
    digits = _decimals_of_best(summary)
    texts = []
    for row in summary:
        text = f"{row['best']:.{digits}f}"
        if len(row["seeds"]) > 1:
            low, high = row["best_spread"]
            text += f" [{low:.{digits}f}, {high:.{digits}f}]"
        texts.append(text)
    return texts


def end_texts(summary: list[dict[str, Any]], name: str) -> list[str]:
    """The metric at the end of every row: "final", or "at_end" of the whole split."""
    digits = _decimals_of_best(summary)
    ends = [row[name] for row in summary]
    return ["" if end is None else f"{end:.{digits}f}" for end in ends]


def seconds_texts(summary: list[dict[str, Any]]) -> list[str]:
    """The seconds to the target of every row; the smallest with three digits."""
    times = [row["seconds_to_target"] for row in summary]
    digits = decimals(min((t for t in times if t), default=1.0))
    return ["never" if t is None else f"{t:,.{digits}f}" for t in times]


def mb_texts(summary: list[dict[str, Any]]) -> list[str]:
    """The MB per worker of every row; the smallest with three digits."""
    known = [row["mb_per_worker"] for row in summary]
    digits = decimals(min((mb for mb in known if mb), default=1.0))
    return [f"{mb:,.{digits}f}" for mb in known]


def collapses(histories: list[History]) -> list[str]:
    """A line for each strategy of which runs ended far below their best value."""
    lines = []
    for name in dict.fromkeys(h.strategy for h in histories if h.collapsed):
        mine = [h for h in histories if h.strategy == name]
        fallen = [h for h in mine if h.collapsed]
        ends = ", ".join(f"{h.final():.3g} after {h.best():.3g}" for h in fallen)
        seeds = f" ({len(fallen)} of {len(mine)} seeds)" if len(mine) > 1 else ""
        lines.append(
            f"{name} ended far worse than its best {fallen[0].metric}: {ends}{seeds}"
        )
    return lines


def _decimals_of_best(summary: list[dict[str, Any]]) -> int:
    """The decimals of the metric, the same in every row."""
    bests = [abs(row["best"]) for row in summary if math.isfinite(row["best"])]
    return decimals(max(bests, default=1.0))


def decimals(value: float) -> int:
    """The number of decimals that shows three digits of a value, and 1 as 1.000."""
    return max(0, 3 - math.ceil(math.log10(value))) if value > 0 else 3


def output_layers(histories: list[History]) -> list[str]:
    """A line for each output layer that is not the model's own."""
    layers = {h.output for h in histories if h.output}
    return [f"output layer: {text}" for text in sorted(layers)]


def parts_of_test(histories: list[History]) -> list[str]:
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


def placements(histories: list[History]) -> list[str]:
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


def players(histories: list[History]) -> list[str]:
    """A line for each reason why simulated runs were not compiled, unless asked."""
    return [
        f"{', '.join(names)}: {played}"
        for played, names in by_player(histories).items()
        if any(h.not_compiled for h in histories if h.played == played)
    ]


def by_player(histories: Sequence[History]) -> dict[str, list[str]]:
    """The strategies by how their simulated runs were played."""
    named: dict[str, list[str]] = {}
    for h in histories:
        names = named.setdefault(h.played, []) if h.played else []
        if h.strategy not in names:
            names.append(h.strategy)
    return named
