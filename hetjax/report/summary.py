"""The summary of a comparison: numbers, which are medians over seeds, and its table."""

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from hetjax.engine.records.history import History
from hetjax.metric_mode import reaches
from hetjax.report.table import Table
from hetjax.report.tuning import chosen_rates, remarks

TARGET_SHARE = 0.97  # of the best final median, if no target is given


def summary_row(name: str, runs: list[History], target: float) -> dict[str, Any]:
    """Return one strategy's row of the summary."""
    bests, finals = [h.best() for h in runs], [h.final() for h in runs]
    seconds = median_or_nan(h.seconds_to(target) for h in runs)
    unknown = any(map(math.isnan, bests))
    ends = [h.at_end[h.metric] for h in runs if h.at_end]
    return {
        "strategy": name,
        "best": median_or_nan(bests),
        "best_spread": [math.nan] * 2 if unknown else [min(bests), max(bests)],
        "final": median_or_nan(finals),
        "collapsed": [h.seed for h in runs if h.collapsed],
        "at_end": median_or_nan(ends) if ends else None,
        "seconds_to_target": seconds if math.isfinite(seconds) else None,
        "waiting_share": median_or_nan(h.waiting_share() for h in runs),
        "updates": median_or_nan(sum(w.updates for w in h.workers) for h in runs),
        "examples": median_or_nan(sum(w.examples for w in h.workers) for h in runs),
        "merges": median_or_nan(h.merges for h in runs),
        "mb_per_worker": median_or_nan(_mb_per_worker(h) for h in runs),
        "padding_share": median_or_nan(_padding_share(h) for h in runs),
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


def median_or_nan(values: Iterable[float]) -> float:
    """The median, where inf stands for "never"; nan if any value is nan."""
    values = list(values)
    return math.nan if any(map(math.isnan, values)) else median(values)


def summary_table(
    c: Any, rows: list[dict[str, Any]], target: float, default: bool
) -> Table:
    """The rows of the summary of a `Comparison`; `default`: whether `target` is."""
    aim = f"{target:g}" if math.isfinite(target) else "a target"
    columns = {
        "strategy": [row["strategy"] for row in rows],
        f"best {c.metric}": _best_texts(rows),
        f"final {c.metric}": end_texts(rows, "final"),
    }
    if any(row["at_end"] is not None for row in rows):
        columns["on the whole test split"] = end_texts(rows, "at_end")
    columns[f"{c.unit} to {aim}"] = seconds_texts(rows)
    for name in ("updates", "examples", "merges"):
        columns[name] = [f"{row[name]:,.0f}" for row in rows]
    moved = [row["mb_per_worker"] for row in rows]
    if any(moved):
        digits = _smallest_decimals(moved)
        columns["MB per worker"] = [f"{mb:,.{digits}f}" for mb in moved]
    columns["waiting [%]"] = [f"{100 * row['waiting_share']:.1f}" for row in rows]
    columns["compilations"] = [str(row["compilations"]) for row in rows]
    return Table.of(columns, tuple(_caption(c, target, default)))


def _caption(c: Any, target: float, default: bool) -> Iterator[str]:
    """The lines below the table."""
    if default and not math.isfinite(target):
        yield f"no target: no final {c.metric} is better than at the start"
    else:
        share = TARGET_SHARE if c.mode == "max" else 2 - TARGET_SHARE
        of = f": {100 * share:.0f} % of the best final median" if default else ""
        yield f"target {target:g} {c.metric}{of}"
    yield (
        "final: mean of the last tenth of the evaluations; a target is reached "
        "when it is held"
    )
    yield from (n for n in c.data.get("notes", ()) if "only the test split" in n)
    if c.constant is not None:
        line = f"constant prediction: {c.constant:.3g} {c.metric}"
        if reaches(c.constant, target, c.mode):
            line += ", which reaches the target: choose a better target"
        yield line
    yield from _collapses(c.histories)
    yield from remarks(c.tuning) if c.tuning else ()
    if len(c.histories) > len(c.strategies):
        yield "medians over seeds [lowest, highest]; compilations: sum"
    yield from chosen_rates(c.tuning)
    layers = sorted({h.output for h in c.histories if h.output})
    yield from (f"output layer: {text}" for text in layers)
    yield from _parts_of_test(c.histories)
    yield from _placements(c.histories)
    for how, names in by_player(c.histories).items():
        # other than by a request
        if any(h.not_compiled for h in c.histories if h.played == how):
            yield f"{', '.join(names)}: {how}"
    if c.interrupted:
        yield "interrupted: not all runs were made"
    for h in c.histories:
        if h.unmerged and len(h.evals) > 1:
            yield (
                f"{h.strategy}, seed {h.seed}: {h.unmerged}, so that the model is the "
                "initial one"
            )
        if h.stopped:
            early = ", stopped early" if h.ended_early else ""
            yield f"{h.strategy}, seed {h.seed}{early}: {h.stopped}"


def _best_texts(summary: list[dict[str, Any]]) -> list[str]:
    """The best metric of every row, with its spread over several seeds."""
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
    """The metric at the end of every row: "final", or "at_end" on the whole split."""
    digits = _decimals_of_best(summary)
    ends = [row[name] for row in summary]
    return ["" if end is None else f"{end:.{digits}f}" for end in ends]


def seconds_texts(summary: list[dict[str, Any]]) -> list[str]:
    """The seconds to the target of every row."""
    times = [row["seconds_to_target"] for row in summary]
    digits = _smallest_decimals(times)
    return ["never" if t is None else f"{t:,.{digits}f}" for t in times]


def _decimals_of_best(summary: list[dict[str, Any]]) -> int:
    """The decimals of the metric, the same in every row."""
    bests = [abs(row["best"]) for row in summary if math.isfinite(row["best"])]
    return decimals(max(bests, default=1.0))


def _smallest_decimals(numbers: Sequence[float | None]) -> int:
    """The decimals with which the smallest number has three digits."""
    return decimals(min((n for n in numbers if n), default=1.0))


def decimals(value: float) -> int:
    """The number of decimals that shows three digits of a value; 1 is 1.000."""
    return max(0, 3 - math.ceil(math.log10(value))) if value > 0 else 3


def _collapses(histories: Sequence[History]) -> Iterator[str]:
    """A line for each strategy with runs that ended far below their best value."""
    for name in dict.fromkeys(h.strategy for h in histories if h.collapsed):
        mine = [h for h in histories if h.strategy == name]
        fallen = [h for h in mine if h.collapsed]
        ends = ", ".join(f"{h.final():.3g} after {h.best():.3g}" for h in fallen)
        seeds = f" ({len(fallen)} of {len(mine)} seeds)" if len(mine) > 1 else ""
        yield f"{name} ended far worse than its best {mine[0].metric}: {ends}{seeds}"


def _parts_of_test(histories: Sequence[History]) -> Iterator[str]:
    """Lines on the number of test examples of evaluations, if not all of them."""
    parts = {
        (h.eval_examples, int(h.at_end.get("examples", 0)))
        for h in histories
        if h.eval_examples
    }
    for part, whole in sorted(parts):
        yield (
            f"evaluations during a run are on {part:,} test examples, those at its end "
            f"on {f'all {whole:,}' if whole else 'none'}"
        )


def _placements(histories: Sequence[History]) -> Iterator[str]:
    """A line for each placement of runs on devices other than threads."""
    named: dict[str, dict[str, None]] = {}
    for h in histories:
        if h.real and h.placement != "threads":
            named.setdefault(h.placement, {})[h.strategy] = None
    yield from (f"{', '.join(names)}: {where}" for where, names in named.items())
    if any(h.estimates_busy for h in histories):
        yield (
            "on a mesh, a worker is busy for its measured steps; the rest of a round "
            "is waiting for others, then merging"
        )


def by_player(histories: Sequence[History]) -> dict[str, list[str]]:
    """The strategies, grouped by the player of their simulated runs."""
    named: dict[str, dict[str, None]] = {}
    for h in histories:
        if h.played:
            named.setdefault(h.played, {})[h.strategy] = None
    return {how: list(names) for how, names in named.items()}
