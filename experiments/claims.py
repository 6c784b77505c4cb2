"""What the scripts of the papers share: their flags, a list of claims, and its file.

A script has sections, functions that yield claims; `--only` runs one section, or the
one that a claim's id begins with. `claims.json` holds the list, ids are stable.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from absl import flags
from matplotlib.figure import Figure

import hetjax as hj
from hetjax.report.table import Table

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results", "folder of claims.json and the figures")
flags.DEFINE_boolean("overwrite", False, "replace the results that are in --out")
flags.DEFINE_integer("seeds", 3, "runs per setting, with seeds 0, 1, ...")
flags.DEFINE_boolean("quick", False, "a smoke run of two minutes, for no verdicts")
flags.DEFINE_string("only", "", "one section or one claim, by its id")

SMOKE = "smoke run: no verdict"


class Claim(NamedTuple):
    """One line of the table: what a paper says, and what we find."""

    id: str
    claim: str
    paper: float | str
    ours: float | str
    unit: str
    verdict: str  # "reproduced", "partly: why", "not: why", "ours" (no paper's claim)
    setting: str


Sections = dict[str, Callable[[], Iterable[Claim]]]


def main(sections: Sections, *, by_clock: tuple[str, ...] = ()) -> int:
    """Run the sections that --only wants; print the table and write claims.json.

    With --quick nothing that was trained gets a verdict: `by_clock` are the sections
    that train nothing, so that --quick leaves them as they are.
    """
    path = Path(FLAGS.out) / "claims.json"
    if path.exists() and not FLAGS.overwrite:
        raise ValueError(f"{path} is there: use --overwrite, or choose another --out")
    if FLAGS.seeds < 1:
        raise ValueError(f"--seeds={FLAGS.seeds}: give at least 1")
    only = FLAGS.only.split("/")[0]
    if only and only not in sections:
        raise ValueError(f"--only={FLAGS.only}: the sections are {', '.join(sections)}")
    chosen = {k: f for k, f in sections.items() if only in ("", k)}
    path.parent.mkdir(parents=True, exist_ok=True)
    found: list[Claim] = []
    status = 0
    try:
        for claim in _made(chosen, by_clock):
            if f"{claim.id}/".startswith(f"{FLAGS.only}/" if FLAGS.only else ""):
                found.append(claim)
                _write(found, path)  # each at once: what comes next may fail
    except KeyboardInterrupt:
        print("interrupted: what was found by then", file=sys.stderr)
        status = 130
    finally:
        if found:
            print(table(found))
            print(f"wrote {path}")
    if not found and not status:
        raise ValueError(f"--only={FLAGS.only}: no claim of that name was made")
    return status


def _write(found: list[Claim], path: Path) -> None:
    records = [claim._asdict() for claim in found]
    path.write_text(
        json.dumps(records, indent=2, allow_nan=False) + "\n", encoding="utf-8"
    )


def _made(sections: Sections, by_clock: tuple[str, ...]) -> Iterator[Claim]:
    for name, section in sections.items():
        print(f"-- {name}", file=sys.stderr)
        for claim in section():
            if isinstance(claim.ours, float) and not math.isfinite(claim.ours):
                claim = claim._replace(ours="never reached")
            if FLAGS.quick and name not in by_clock:
                claim = claim._replace(verdict=SMOKE)
            yield claim


def table(claims: list[Claim]) -> Table:
    """The claims to look at."""
    header = ("id", "claim", "paper", "ours", "unit", "verdict")
    rows = tuple(
        (c.id, c.claim, _text(c.paper), _text(c.ours), c.unit, c.verdict)
        for c in claims
    )
    return Table(header, rows, ())


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}"


def picture(
    id_: str, file: str, figure: Figure, what: str, paper: str, setting: str
) -> Claim:
    """Save a figure beside claims.json: a line of the table, and no claim."""
    figure.savefig(Path(FLAGS.out) / file, dpi=120)
    return Claim(id_, what, paper, file, "", "ours", setting)


def seeds() -> range:
    """The seeds of every setting."""
    return range(1 if FLAGS.quick else FLAGS.seeds)


def bests(runs: hj.Runs, strategy: str) -> list[float]:
    """The best metric of every seed."""
    return [history.best() for history in runs.of(strategy)]


def spread(values: list[float]) -> str:
    """A median with the lowest and the highest: 0.876 [0.874, 0.879]."""
    low, high = min(values), max(values)
    return f"{median(values):.3f} [{low:.3f}, {high:.3f}]"


def ahead(one: list[float], other: list[float]) -> int:
    """1, -1, or 0: is every seed of one above (below) every seed of the other?"""
    if min(one) > max(other):
        return 1
    return -1 if max(one) < min(other) else 0


def by_sign(sign: int) -> str:
    """The verdict on a claim that one is ahead of the other, by `ahead`."""
    return {1: "reproduced", 0: "partly: the seeds overlap", -1: "not"}[sign]


def by_fit(fits: bool, why: str = "") -> str:
    """The verdict on a claim that holds or does not, and why it does not."""
    return "reproduced" if fits else f"not: {why}" if why else "not"


def by_gain(larger: list[float], smaller: list[float], paper: float | str) -> str:
    """The verdict on a gain over 1, by seed: is there one, about as large as theirs?

    It counts where every seed of one side is ahead of every seed of the other; a gain
    (of the medians) of half to one and a half of the paper's is as large. Where the
    paper gives no number, 5 % are a gain. Infinite seconds never get there.
    """
    if all(map(math.isinf, (*larger, *smaller))):
        return "not: neither reaches the target"
    sign = ahead(larger, smaller)
    if sign <= 0:
        return "partly: the seeds overlap" if sign == 0 else "not: the other way round"
    gain = median(larger) / median(smaller)
    if isinstance(paper, str):
        return "reproduced" if gain >= 1.05 else "not: less than 5 %"
    if all(map(math.isinf, larger)):
        return "partly: the other never reaches the target"
    if abs((gain - 1) / (paper - 1) - 1) <= 0.5:
        return "reproduced"
    if gain < 1.05:
        return "not: less than 5 %"
    return "partly: in the direction, not in size"


def by_construction(verdict: str) -> str:
    """A verdict on what the setting was made to give."""
    return f"{verdict} (met by construction)" if verdict == "reproduced" else verdict


def within(ours: float, paper: float, share: float) -> str:
    """The verdict on a number that should be as close as that."""
    if not math.isfinite(ours):
        return "not: never reached"
    off = ours / paper - 1
    if abs(off) <= share:
        return "reproduced"
    return f"not: {100 * off:+.1f} %"
