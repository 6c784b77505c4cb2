"""Code that the papers' scripts share: flags, the list of claims, and claims.json.

A script has sections: functions that yield claims. `--only` runs one section, or those
of its claims whose ids begin with the given text. Ids are stable.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

import hetjax as hj
from experiments.common import player_flags, scripts
from experiments.common.bounds import bounded
from hetjax.atomic_files import write_whole
from hetjax.processes.exchange import is_first
from hetjax.report.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results", "folder of claims.json and the figures")
flags.DEFINE_boolean("overwrite", False, "replace the results in --out")
flags.DEFINE_integer("seeds", 3, "runs per setting, with seeds 0, 1, ...")
flags.DEFINE_boolean("quick", False, "a smoke run of two minutes, without verdicts")
flags.DEFINE_string("only", "", "one section, or claims by the start of their id")
bounded("seeds", 1, 1000, "every seed is a run of its own")

REPRODUCED = "reproduced"
SMOKE = "smoke run: no verdict"
OWN = "our own measurement"  # the paper makes no such claim
# in words, what `ahead` finds
OUTCOME = {1: "ahead in every seed", 0: "the seeds overlap", -1: "behind in every seed"}


class Claim(NamedTuple):
    """One row of the table: a paper's claim and our result."""

    id: str
    claim: str
    paper: float | str
    ours: float | str
    unit: str
    verdict: str  # REPRODUCED, `partly(why)`, `refuted(why)` or OWN
    setting: str


Sections = dict[str, Callable[[], Iterable[Claim]]]


def partly(why: str) -> str:
    """The verdict on a claim that holds in part."""
    return f"partly reproduced: {why}"


def refuted(why: str) -> str:
    """The verdict on a claim that does not hold."""
    return f"not reproduced: {why}"


OVERLAP = partly("the seeds overlap")


def main(
    sections: Sections,
    *,
    by_clock: tuple[str, ...] = (),
    before_training: Callable[[], Any] = lambda: None,
) -> int:
    """Run the sections that --only selects; print the table and write claims.json.

    With --quick, claims that need training get no verdict. The sections in `by_clock`
    train nothing, so --quick does not change them. `before_training` is called before
    the first section, unless none trains: it raises errors that would stop every run,
    such as missing --data, before anything is done.
    """
    path = Path(FLAGS.out) / "claims.json"
    if is_first() and path.exists() and not FLAGS.overwrite:
        raise ValueError(f"{path} exists: use --overwrite, or choose another --out")
    only = FLAGS.only.split("/")[0]
    if only and only not in sections:
        raise ValueError(f"--only={FLAGS.only}: the sections are {', '.join(sections)}")
    chosen = {k: f for k, f in sections.items() if only in ("", k)}
    if set(chosen) - set(by_clock):
        before_training()
    path.parent.mkdir(parents=True, exist_ok=True)
    found: list[Claim] = []
    status, problem = 0, ""
    try:
        for claim in _evaluate(chosen, by_clock):
            if f"{claim.id}/".startswith(f"{FLAGS.only}/" if FLAGS.only else ""):
                found.append(claim)
                problem = _write(found, path)  # at once: the next section may fail
    except KeyboardInterrupt as error:
        print("interrupted: the claims that were finished", file=sys.stderr)
        status = scripts.status_of(str(error))
    finally:
        if found:
            print(table(found))
            print(problem or f"wrote {path}", file=sys.stderr if problem else None)
    if not found and not status:
        raise ValueError(f"--only={FLAGS.only}: there is no claim of that name")
    return status or (2 if problem else 0)


def _write(found: list[Claim], path: Path) -> str:
    """Replace claims.json; return why it could not be written: the disk may be full."""
    if not is_first():
        return ""
    records = [claim._asdict() for claim in found]
    text = json.dumps(records, indent=2, allow_nan=False) + "\n"
    try:
        write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))
    except OSError as error:
        return str(error)
    return ""


def _evaluate(sections: Sections, by_clock: tuple[str, ...]) -> Iterator[Claim]:
    for name, section in sections.items():
        print(f"-- {name}", file=sys.stderr)
        for claim in section():
            assert claim.id.split("/")[0] == name, "--only would not find it"
            if isinstance(claim.ours, float) and not math.isfinite(claim.ours):
                claim = claim._replace(ours="never reached")
            if FLAGS.quick and name not in by_clock:
                claim = claim._replace(verdict=SMOKE)
            yield claim


def table(claims: list[Claim]) -> Table:
    """The claims as a table."""
    header = ("id", "claim", "paper", "ours", "unit", "verdict")
    rows = tuple(
        (c.id, c.claim, _text(c.paper), _text(c.ours), c.unit, c.verdict)
        for c in claims
    )
    return Table(header, rows, ())


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}"


def picture(
    id_: str, file: str, figure: "Figure", what: str, paper: str, setting: str
) -> Claim:
    """Save a figure beside claims.json, and return its row without a verdict."""
    path, ours = Path(FLAGS.out) / file, file
    try:
        if is_first():
            write_whole(path, lambda p: figure.savefig(p, format="png", dpi=120))
    except OSError as error:  # later claims are worth more than a figure
        ours = f"not written: {error}"
    return Claim(id_, what, paper, ours, "", OWN, setting)


def seeds() -> range:
    """The seeds of every setting."""
    return range(1 if FLAGS.quick else FLAGS.seeds)


def compare(*arguments: Any, **settings: Any) -> hj.Comparison:
    """Run `hj.compare` to its end with the flags' settings, or a KeyboardInterrupt.

    No claim is made from the runs of only some seeds or strategies.
    """
    comparison = hj.compare(*arguments, **settings, **player_flags.settings())
    if comparison.interrupted:
        raise KeyboardInterrupt(comparison.signal)
    return comparison


def bests(comparison: hj.Comparison, strategy: str) -> list[float]:
    """The best metric of every seed's run, as the papers report it.

    `hj.compare` chooses learning rates by the final metric instead, but for a run that
    falls again a paper reports the highest point. Seconds to a target are those of
    `History.seconds_to`, of a target that is held.
    """
    return [history.best() for history in comparison.of(strategy)]


def spread(values: list[float]) -> str:
    """The median with the lowest and highest value: "0.876 [0.874, 0.879]"."""
    low, high = min(values), max(values)
    return f"{median(values):.3f} [{low:.3f}, {high:.3f}]"


def ahead(one: list[float], other: list[float]) -> int:
    """1 if every seed of `one` is above every seed of `other`, -1 if below, else 0."""
    if min(one) > max(other):
        return 1
    return -1 if max(one) < min(other) else 0


def by_sign(sign: int, otherwise: str) -> str:
    """The verdict on "one is ahead of the other", from `ahead`.

    `otherwise` is the finding if the other is ahead in every seed.
    """
    return {1: REPRODUCED, 0: OVERLAP, -1: refuted(otherwise)}[sign]


def by_fit(fits: bool, otherwise: str) -> str:
    """The verdict on a claim that holds or not; `otherwise` is the finding if not."""
    return REPRODUCED if fits else refuted(otherwise)


def by_gain(larger: list[float], smaller: list[float], paper: float | str) -> str:
    """The verdict on a gain above 1: whether it is about as large as the paper's.

    There is a gain if every seed of `larger` is ahead of every seed of `smaller`. The
    gain is the ratio of the medians. It matches the paper's if gain - 1 is 0.5 to 1.5
    times paper - 1. If the paper gives no number, the gain must be at least 5 %.
    Infinite seconds stand for a target that is never reached.
    """
    if all(map(math.isinf, (*larger, *smaller))):
        return refuted("neither reaches the target")
    sign = ahead(larger, smaller)
    if sign <= 0:
        return OVERLAP if sign == 0 else refuted("the opposite holds in every seed")
    gain = median(larger) / median(smaller)
    if isinstance(paper, str):
        return by_fit(gain >= 1.05, "the gain is below 5 %")
    if all(map(math.isinf, larger)):
        return partly("only one of the two reaches the target")
    if abs((gain - 1) / (paper - 1) - 1) <= 0.5:
        return REPRODUCED
    if gain < 1.05:
        return refuted("the gain is below 5 %")
    return partly("the direction is right, the size is not")


def by_construction(verdict: str) -> str:
    """The verdict on a result that the setting was chosen to produce."""
    return f"{verdict} (met by construction)" if verdict == REPRODUCED else verdict


def within(ours: float, paper: float, share: float) -> str:
    """The verdict on a number that should be within a share of the paper's number."""
    if not math.isfinite(ours):
        return refuted("the target is never reached")
    off = ours / paper - 1
    return by_fit(abs(off) <= share, f"it differs by {100 * off:+.1f} %")
