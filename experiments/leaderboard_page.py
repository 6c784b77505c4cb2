"""The page of the leaderboard, as HTML and as Markdown, and its numbers as JSON."""

import html
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from experiments import leaderboard_ranking as ranking
from experiments.leaderboard_cells import LOCAL_STEPS
from experiments.leaderboard_ranking import Entry, Place, Standing
from hetjax.atomic_files import write_whole
from hetjax.report.record import plain
from hetjax.report.table import Table
from hetjax.summaries import counted

NAMES = ("leaderboard.html", "leaderboard.md", "leaderboard.json")
NEVER = "never"
STYLE = """
body { margin: 0 auto; padding: 2rem 1.25rem; max-width: 70rem;
  font: 1rem/1.5 system-ui, sans-serif; color-scheme: light dark; }
p, ul { max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; margin: .75rem 0; }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid #8885; }
th:first-child, td:first-child { text-align: left; }
tbody th { font-weight: normal; }
caption { caption-side: bottom; text-align: left; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""


class Section(NamedTuple):
    """A part of the page."""

    title: str
    lines: tuple[str, ...]  # paragraphs
    table: Table | None = None


class Leaderboard(NamedTuple):
    """All that the page shows."""

    places: dict[Place, dict[str, Entry]]
    targets: dict[Place, float]
    metrics: dict[Place, tuple[str, str, float]]  # name, mode, virtual seconds
    settings: Sequence[str]  # how it was made, sentence by sentence
    notes: Sequence[str]  # what is missing, and why
    command: str


def leaderboard(
    cells: Mapping[Place, Mapping[str, Mapping[str, Any]]],
    settings: Sequence[str],
    notes: Sequence[str],
    command: str = "",
) -> Leaderboard:
    """Rank the cells of all places that have a target."""
    places, targets, metrics = {}, {}, {}
    for place, found in cells.items():
        aim = ranking.target(found) if found else None
        if aim is None:
            continue
        one = next(iter(found.values()))
        places[place], targets[place] = ranking.entries(found, aim), aim
        metrics[place] = one["metric"], one["mode"], one["asked"]["seconds"]
    return Leaderboard(places, targets, metrics, settings, notes, command)


def sections(board: Leaderboard) -> list[Section]:
    """The page, from the ranking of all down to each place."""
    found = [Section("How to read it", (*METHOD, *board.settings))]
    if not board.places:
        return [Section("No results yet", ()), *found]
    standings = ranking.standings(board.places)
    first = Section("Ranking", (), ranking_table(standings, board.places))
    places = [
        Section(", ".join(place), (_aim(board, place),), place_table(board, place))
        for place in board.places
    ]
    last = Section("What this is not", NOT)
    missing = [Section("Missing", tuple(board.notes))] if board.notes else []
    return [first, *found, last, *missing, *places]


METHOD = (
    "Each strategy trains the same model on the same data for the same virtual "
    "seconds. Batch sizes are equal (Adaptive SGD's at first), and settings are the "
    "package's defaults, except for the learning rates; that workers have SGD without "
    f"momentum (but in EAMSGD: 0.99); that there are at most {LOCAL_STEPS} local "
    f"steps of a worker between merges (HierSGD: 16; Adaptive SGD: {LOCAL_STEPS} on "
    "average over the workers), since runs are short; and that FedBuff's buffer has "
    "as many reports as there are workers.",
    "A place is a machine, a task and a partition of its data: each worker draws from "
    'all of them ("iid"), or from a shard of its own with another mixture of classes '
    'than the others\' ("unlike": Dirichlet, alpha = 0.3). Sequential SGD always draws '
    "from all data.",
    "Every strategy has the same effort: the same number of settings of its rates is "
    "tried in each place, on a tenth of the training examples that is held out, for as "
    "long as the run itself. A strategy with a server's learning rate tries all pairs "
    "of the inner and outer rates below (FedOpt, whose server is adaptive: 0.3 times "
    "the outer ones). All others try as many inner rates around the same middle, a "
    "quarter of a decade apart. The metric at the end decides. Where the best rate is "
    "the smallest or the largest, the grid grows in that direction, by half a decade "
    "(without a server's rate: by a decade, in quarters), and the best of all is "
    "chosen; a few times at most, as said below.",
    "The target is the same for all. It is the best metric of sequential or "
    "synchronous SGD (the median of its seeds, the better of the two), less "
    f"{100 * ranking.MARGIN:.0f} % of its gain over a constant prediction. It must be "
    "held to the end (medians of later evaluations may be up to 3 % short of it), and "
    "the seconds are interpolated between evaluations.",
    "In each place and for each seed, strategies are ranked by the seconds to the "
    "target; those that never hold it come after all others, by their best metric. "
    "Numbers are medians over the seeds [lowest, highest]; in the ranking, over all "
    "places and seeds [first and third quartile].",
)
NOT = (
    "The models are small and the clock is simulated: steps have the speeds of the "
    "machine's description, and merges the times of its links. Large models, long runs "
    "and tuned momentum may rank the strategies in another order.",
    "A rank tells the order, not the distance: neighbors in the ranking are often "
    "level, as the quartiles show. A few seeds cannot tell them apart.",
    "Hogwild! shares one memory: no bytes move and no link is waited for, also on "
    "machines whose workers have no common memory. There its ranks are a bound.",
    "A method's own setting (its optimizer, its schedule of rates, hundreds of local "
    "steps) may be missing. On "
    "unlike shards, strategies that choose their examples draw them as all others do.",
)


def ranking_table(
    standings: Sequence[Standing], places: Mapping[Place, Mapping[str, Entry]]
) -> Table:
    """All strategies; then their median ranks on each machine and task."""
    columns: dict[str, list[str]] = {
        "strategy": [s.strategy for s in standings],
        "median rank": [_rank_text(s) for s in standings],
        "target held [% of runs]": [f"{100 * s.reached:.0f}" for s in standings],
        "first in": [str(s.first) for s in standings],
    }
    for part in range(3):
        for value in dict.fromkeys(place[part] for place in places):
            own = {p: e for p, e in places.items() if p[part] == value}
            columns[value] = [_median_rank(own, s.strategy) for s in standings]
    return Table.of(columns, (counted(len(places), "place"),))


def _rank_text(standing: Standing) -> str:
    low, middle, high = standing.quartiles
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


def _median_rank(places: Mapping[Place, Mapping[str, Entry]], name: str) -> str:
    ranks = [r for place in places.values() if name in place for r in place[name].ranks]
    return f"{median(ranks):.3g}" if ranks else "-"


def place_table(board: Leaderboard, place: Place) -> Table:
    """The strategies of a place, the best rank first."""
    metric, _, _ = board.metrics[place]
    own = board.places[place]
    return Table.of(
        {
            "strategy": list(own),
            "rank": [_spread(e.ranks, "{:.3g}") for e in own.values()],
            "virtual seconds to target": [
                _spread(e.seconds, "{:.3g}") for e in own.values()
            ],
            f"best {metric}": [_spread(e.best, "{:.4g}") for e in own.values()],
            "MB per worker": [f"{e.mb_per_worker:,.3g}" for e in own.values()],
            "waiting [%]": [f"{100 * e.waiting:.1f}" for e in own.values()],
            "rate": [_rates(e) for e in own.values()],
        },
        (),
    )


def _aim(board: Leaderboard, place: Place) -> str:
    metric, mode, seconds = board.metrics[place]
    better = "larger" if mode == "max" else "smaller"
    return (
        f"Target: {metric} {board.targets[place]:g} ({better} is better) within "
        f"{seconds:g} virtual seconds."
    )


def _rates(entry: Entry) -> str:
    return ", outer ".join(f"{rate:g}" for rate in entry.rates if rate is not None)


def _spread(values: Sequence[float], form: str) -> str:
    """The median with the lowest and highest value; one number if they are equal."""
    if any(map(math.isnan, values)):
        return "nan"
    texts = [
        form.format(v) if math.isfinite(v) else NEVER
        for v in (median(values), min(values), max(values))
    ]
    same = texts[1] == texts[2]
    return texts[0] if same else f"{texts[0]} [{texts[1]}, {texts[2]}]"


def markdown(found: Sequence[Section], command: str) -> str:
    """The page as Markdown."""
    parts = ["# Leaderboard", f"`{command}`"]
    for section in found:
        parts += [f"## {section.title}", *section.lines]
        if section.table:
            parts.append(markdown_table(section.table))
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """A table as Markdown."""
    lines = [table.header, ("---",) * len(table.header), *table.rows]
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join((rows, *table.caption))


def page(found: Sequence[Section], command: str) -> str:
    """The page as HTML, which needs no other file."""
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>Leaderboard</title><style>{STYLE}</style></head><body>",
        f"<h1>Leaderboard</h1><pre>{html.escape(command)}</pre>",
    ]
    for section in found:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        parts += [f"<p>{html.escape(line)}</p>" for line in section.lines]
        if section.table:
            parts.append(f'<div class="wide">{section.table._repr_html_()}</div>')
    return "\n".join((*parts, "</body></html>\n"))


def document(board: Leaderboard) -> dict[str, Any]:
    """The numbers of the page."""
    standings = ranking.standings(board.places) if board.places else []
    return {
        "command": board.command,
        "settings": list(board.settings),
        "notes": list(board.notes),
        "ranking": [
            {**plain(s._asdict()), "quartiles": plain(s.quartiles)} for s in standings
        ],
        "places": [
            {
                "machine": place[0],
                "task": place[1],
                "partition": place[2],
                "target": board.targets[place],
                "metric": board.metrics[place][0],
                "seconds": board.metrics[place][2],
                "strategies": {n: plain(e) for n, e in own.items()},
            }
            for place, own in board.places.items()
        ],
    }


def write(board: Leaderboard, folder: Path) -> list[Path]:
    """Write the page's files; return their paths."""
    found = sections(board)
    texts = {
        "leaderboard.html": page(found, board.command),
        "leaderboard.md": markdown(found, board.command),
        "leaderboard.json": json.dumps(document(board), indent=1, allow_nan=False),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(
            folder / name, lambda part, t=text: part.write_text(t, encoding="utf-8")
        )
    if board.places:
        ranked = ranking.standings(board.places)
        print(ranking_table(ranked, board.places), flush=True)
    for note in board.notes:
        print(note, file=sys.stderr)
    return [folder / name for name in texts]
