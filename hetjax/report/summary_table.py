"""The summary of a comparison as a table: its columns, and the lines below them."""

import math
from collections.abc import Sequence
from typing import Any

from hetjax.engine.records.history import History
from hetjax.metric_mode import reaches
from hetjax.report.table import Table
from hetjax.report.tuning import chosen_rates, remarks
from hetjax.report.types import ComparisonLike

TARGET_SHARE = 0.97  # of the best final median, if no target is given


def summary_table(
    c: ComparisonLike, rows: list[dict[str, Any]], target: float, default: bool
) -> Table:
    """The rows of a summary as a table; `default`: whether `target` is."""
    aim = f"{target:g}" if math.isfinite(target) else "a target"
    columns = {
        "strategy": [row["strategy"] for row in rows],
        f"best {c.metric}": best_texts(rows),
        f"final {c.metric}": end_texts(rows, "final"),
    }
    if any(row["at_end"] is not None for row in rows):
        columns["on the whole test split"] = end_texts(rows, "at_end")
    columns |= {
        f"{c.unit} to {aim}": seconds_texts(rows),
        "updates": [f"{row['updates']:,.0f}" for row in rows],
        "examples": [f"{row['examples']:,.0f}" for row in rows],
        "merges": [f"{row['merges']:,.0f}" for row in rows],
    }
    if any(row["mb_per_worker"] for row in rows):
        columns["MB per worker"] = mb_texts(rows)
    columns |= {
        "waiting [%]": [f"{100 * row['waiting_share']:.1f}" for row in rows],
        "compilations": [str(row["compilations"]) for row in rows],
    }
    return Table.of(columns, _caption(c, target, default))


def _caption(c: ComparisonLike, target: float, default: bool) -> tuple[str, ...]:
    """The lines below the table."""
    lines = [f"target {target:g} {c.metric}"]
    if default and not math.isfinite(target):
        lines = [f"no target: no final {c.metric} is better than at the start"]
    elif default:
        share = TARGET_SHARE if c.mode == "max" else 2 - TARGET_SHARE
        lines[0] += f": {100 * share:.0f} % of the best final median"
    lines.append(
        "final: mean of the last tenth of the evaluations; a target is reached "
        "when it is held"
    )
    lines += [n for n in c.data.get("notes", ()) if "only the test split" in n]
    lines += _about_constant(c, target)
    lines += collapses(c.histories)
    lines += remarks(c.tuning) if c.tuning else []
    if len(c.histories) > len(c.strategies):
        lines.append("medians over seeds [lowest, highest]; compilations: sum")
    lines += chosen_rates(c.tuning)
    lines += output_layers(c.histories)
    lines += parts_of_test(c.histories)
    lines += placements(c.histories)
    lines += players(c.histories)
    if c.interrupted:
        lines.append("interrupted: not all runs were made")
    for h in c.histories:
        if h.unmerged and len(h.evals) > 1:
            lines.append(
                f"{h.strategy}, seed {h.seed}: {h.unmerged}, "
                "so that the model is the initial one"
            )
        if h.stopped:
            early = ", stopped early" if h.ended_early else ""
            lines.append(f"{h.strategy}, seed {h.seed}{early}: {h.stopped}")
    return tuple(lines)


def _about_constant(c: ComparisonLike, target: float) -> list[str]:
    """The metric of a constant prediction, with a warning if it reaches the target."""
    if c.constant is None:
        return []
    line = f"constant prediction: {c.constant:.3g} {c.metric}"
    if reaches(c.constant, target, c.mode):
        line += ", which reaches the target: choose a better target"
    return [line]


def best_texts(summary: list[dict[str, Any]]) -> list[str]:
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
    """A line for each strategy with runs that ended far below their best value."""
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
    """The number of decimals that shows three digits of a value; 1 is 1.000."""
    return max(0, 3 - math.ceil(math.log10(value))) if value > 0 else 3


def output_layers(histories: list[History]) -> list[str]:
    """A line for each output layer that replaces the model's."""
    layers = {h.output for h in histories if h.output}
    return [f"output layer: {text}" for text in sorted(layers)]


def parts_of_test(histories: list[History]) -> list[str]:
    """Lines on the number of test examples of evaluations, if not all of them."""
    parts = {
        (h.eval_examples, int(h.at_end.get("examples", 0)))
        for h in histories
        if h.eval_examples
    }
    return [
        f"evaluations during a run are on {part:,} test examples, those at its end on "
        f"{f'all {whole:,}' if whole else 'none'}"
        for part, whole in sorted(parts)
    ]


def placements(histories: list[History]) -> list[str]:
    """A line for each placement of runs on devices other than threads."""
    named: dict[str, dict[str, None]] = {}
    for h in histories:
        if h.real and h.placement != "threads":
            named.setdefault(h.placement, {})[h.strategy] = None
    lines = [f"{', '.join(names)}: {placement}" for placement, names in named.items()]
    if any(h.estimates_busy for h in histories):
        lines.append(
            "on a mesh, a worker is busy for its measured steps; the rest of a round "
            "is waiting for others, then merging"
        )
    return lines


def players(histories: list[History]) -> list[str]:
    """A line for each reason, other than a request, why runs were not compiled."""
    return [
        f"{', '.join(names)}: {played}"
        for played, names in by_player(histories).items()
        if any(h.not_compiled for h in histories if h.played == played)
    ]


def by_player(histories: Sequence[History]) -> dict[str, list[str]]:
    """The strategies, grouped by the player of their simulated runs."""
    named: dict[str, list[str]] = {}
    for h in histories:
        names = named.setdefault(h.played, []) if h.played else []
        if h.strategy not in names:
            names.append(h.strategy)
    return named
