"""A simulated machine from the trace of a real run: fits of costs, noise, contention.

The same fit serves a calibration, whose trace has every kind of work alone and side by
side, and any other recorded run, which knows less: then what it never tried is guessed
from what it did.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from hetjax.machine.profile import (
    AS_SCRIPTED,
    Cost,
    Link,
    Machine,
    Profile,
    ScriptedFault,
)
from hetjax.tracing.trace import Trace

ALONE = 0.1  # a work counts as alone while the others compute for less of its time
TOGETHER = 0.5  # and as side by side for more than this share of the most there was
_ENDLESS = 1e18  # [bytes/s] of a link whose bytes are charged to the workers
ROUNDS = 4  # of least squares: weights are one over the seconds of the round before
FIRST = 2  # works of a worker that are left out: caches and pages are cold


class Measured(NamedTuple):
    """A work that was measured."""

    worker: int
    local_steps: int
    examples: int
    nonzeros: int
    seconds: float  # without the waiting of a worker that is slowed on purpose
    share: float  # of the other workers that computed meanwhile


class Fit(NamedTuple):
    """A machine, and |fitted / measured - 1| of every work."""

    machine: Machine
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """The median."""
        return median(self.errors)

    @property
    def worst(self) -> float:
        """The 90th percentile."""
        return float(np.quantile(self.errors, 0.9))


def fit_machine(trace: Trace, name: str = "recorded") -> Fit:
    """The simulated machine on which a run takes what the recorded one did.

    For every worker, by non-negative least squares over its works, of relative errors:

        seconds = per_round + steps fixed + examples per_example + nonzeros per_nonzero

    from works alone, where there are any; then its contention from those side by side.
    Noise is the spread of the residuals of a step; the link, and every worker's way to
    it, are fitted to the gaps between the last arrival before a merge and the members'
    next beginning. What was scripted (who is killed, slow, joins) is scripted again;
    whoever else failed is not to fail again. Learners of a device are no slower
    together than their contention says.
    """
    workers, slowdowns = trace.workers, trace.header["slowdowns"]
    learners = Counter(info.device for info in workers)
    bursts = _bursts(trace)
    local_rounds = measured_rounds(trace, slowdowns, bursts)
    link, ways = _ways(trace)
    profiles, errors, spreads = [], [], []
    for info, slowdown, way in zip(workers, slowdowns, ways, strict=True):
        mine = [w for w in local_rounds if w.worker == info.index]
        cost = _cost(mine) or Cost(info.fixed / slowdown, info.per_example / slowdown)
        contention = _contention(mine, cost, len(workers))
        profile = Profile(
            info.name,
            info.kind,
            cost,
            factor=slowdown,
            place=info.place,
            device=info.device if learners[info.device] > 1 else "",
            curve=tuple(1.0 + k for k in range(learners[info.device])),
            contention=contention,
            duty=1 / slowdown,
            bursts=bursts[info.index] and slowdown > 1,
            per_byte=way,
        )
        profiles.append(profile)
        ratios = [w.seconds / _seconds(cost, contention, w) for w in mine]
        errors += [abs(1 / r - 1) for r in ratios]
        spreads += _spread_of_a_step(ratios, mine)
    machine = Machine(
        name,
        tuple(profiles),
        {"": link},
        noise=median(spreads) if spreads else 0.0,
        faults=_faults(trace),
    )
    return Fit(machine, tuple(errors) or (math.nan,))


def _faults(trace: Trace) -> tuple[ScriptedFault, ...]:
    """What happened to the workers because a script said so."""
    found, whats = [], {"leave": "kill", "join": "join", "slow": "slow"}
    for line in trace.lines:
        kind = next(iter(line))
        if kind == "slow" or AS_SCRIPTED in str(line.get("why", "")):
            name, factor = trace.workers[line[kind]].name, line.get("factor", 1.0)
            found.append(ScriptedFault(line["time"], whats[kind], name, factor))
    return tuple(found)


class _Span(NamedTuple):
    """A work, and when its worker computed: the first `weight` of it or, of one that
    rests behind every step, all the time with that weight."""

    worker: int
    start: float
    finish: float
    line: dict
    until: float
    weight: float
    slowdown: float  # on purpose, by its machine and its script


def measured_rounds(
    trace: Trace, slowdowns: Sequence[float], bursts: Sequence[bool]
) -> list[Measured]:
    """Every work that arrived, and what share of the others computed meanwhile."""
    seen = [0] * len(slowdowns)
    found = []
    spans = list(_spans(trace, slowdowns, bursts))
    busy = _Busy(spans, len(slowdowns))
    for k, start, finish, local_round, until, _, slowdown in spans:
        seen[k] += 1
        if not local_round["local_steps"] or finish <= start or seen[k] <= FIRST:
            continue
        examples = local_round["local_steps"] * max(1, round(local_round["batch_size"]))
        seconds = (finish - start - local_round["seconds"]) / slowdown
        share = busy.others(k, start, until)
        nonzeros = local_round["nonzeros"]
        found.append(
            Measured(k, local_round["local_steps"], examples, nonzeros, seconds, share)
        )
    return found


def _spans(
    trace: Trace, slowdowns: Sequence[float], bursts: Sequence[bool]
) -> Iterator[_Span]:
    given: dict[int, dict] = {}
    slowdowns = list(slowdowns)
    for line in trace.lines:
        if "slow" in line:  # from within a work: of that one nobody knows
            k = line["slow"]
            slowdowns[k] = trace.header["slowdowns"][k] * line["factor"]
            given.pop(k, None)
        elif "dispatch" in line:
            given[line["dispatch"]] = line
        elif "arrival" in line and line["arrival"] in given:
            k, start, finish = line["arrival"], line["start"], line["finish"]
            local_round, duty = given.pop(k), 1 / slowdowns[k]
            if bursts[k] or local_round["local_steps"] == 1:
                until = start + duty * (finish - start)
                yield _Span(k, start, finish, local_round, until, 1.0, slowdowns[k])
            else:
                yield _Span(k, start, finish, local_round, finish, duty, slowdowns[k])


def _bursts(trace: Trace) -> list[bool]:
    """Does a worker rest behind its work, where all steps are one program?"""
    step_modes = trace.header["step_modes"]
    return [step_modes.get(w.kind, "dispatch") != "dispatch" for w in trace.workers]


class _Busy:
    """Weighted seconds that each worker computed until a time, to look up."""

    def __init__(self, spans: Sequence[_Span], workers: int):
        self._edges, self._totals = [], []
        for k in range(workers):
            mine = sorted((s.start, s.until, s.weight) for s in spans if s.worker == k)
            edges = np.array([t for a, b, _ in mine for t in (a, b)] or [0.0])
            done = np.array(
                [x for a, b, w in mine for x in (0.0, w * (b - a))] or [0.0]
            )
            self._edges.append(edges)
            self._totals.append(np.cumsum(done))

    def others(self, worker: int, start: float, until: float) -> float:
        """Their mean share of [start, until]."""
        n = len(self._edges)
        if n < 2:
            return 0.0
        total = 0.0
        for k in range(n):
            if k != worker:
                done = np.interp((start, until), self._edges[k], self._totals[k])
                total += float(done[1] - done[0])
        return total / (until - start) / (n - 1)


def _cost(local_rounds: Sequence[Measured]) -> Cost | None:
    """The cost that fits best; None of a worker that never worked."""
    alone = [w for w in local_rounds if w.share < ALONE]
    # of a run without works alone: what they take beside the others
    chosen = alone if len(alone) >= 4 else local_rounds
    if not chosen:
        return None
    rows = np.array([[1, w.local_steps, w.examples, w.nonzeros] for w in chosen], float)
    if not np.ptp(rows[:, 1]):  # one number of steps: nothing tells works from steps
        rows[:, 0] = 0
    seconds = np.array([w.seconds for w in chosen])
    fitted, found, scale = seconds, np.zeros(4), np.ones(4)
    for _ in range(ROUNDS):  # weighted by what is fitted, or noise would make it low
        table = rows / fitted[:, None]
        scale = np.maximum(np.abs(table).max(0), 1e-300)
        found, _ = nnls(table / scale, seconds / fitted)
        fitted = np.maximum(rows @ (found / scale), 1e-12)
    per_round, fixed, per_example, per_nonzero = found / scale
    if fixed + per_example + per_nonzero == 0:
        fixed = float(np.median(seconds / rows[:, 1]))
    return Cost(
        fixed=float(fixed),
        per_example=float(per_example),
        per_nonzero=float(per_nonzero),
        per_round=float(per_round),
    )


def _contention(local_rounds: Sequence[Measured], cost: Cost, workers: int) -> float:
    """How many times as long works take while all the others compute.

    By the sums of their seconds: short works, which leave cores to the others, contend
    less, and what they take matters less.
    """
    alone = [w for w in local_rounds if w.share < ALONE]
    most = max(
        (w.share for w in local_rounds), default=0.0
    )  # less beside a slowed worker
    beside = [w for w in local_rounds if w.share > max(ALONE, TOGETHER * most)]
    if workers < 2 or len(alone) < 4 or not beside:
        return 1.0
    alone_seconds = [_seconds(cost, 1.0, w) for w in beside]
    more = sum(w.seconds for w in beside) - sum(alone_seconds)
    shared = sum(s * w.share for s, w in zip(alone_seconds, beside, strict=True))
    return max(1.0, 1 + more / shared)


def _seconds(cost: Cost, contention: float, w: Measured) -> float:
    alone = (
        cost.per_round
        + w.local_steps * cost.fixed
        + w.examples * cost.per_example
        + w.nonzeros * cost.per_nonzero
    )
    return alone * (1 + (contention - 1) * w.share)


def _spread_of_a_step(
    ratios: Sequence[float], local_rounds: Sequence[Measured]
) -> list:
    """The lognormal noise of one step, from works of the fewest steps."""
    fewest = min((w.local_steps for w in local_rounds), default=0)
    logs = [
        math.log(r)
        for r, w in zip(ratios, local_rounds, strict=True)
        if w.local_steps == fewest
    ]
    return [_spread(logs) * math.sqrt(fewest)] if len(logs) > 2 else []


def _spread(values: Sequence[float]) -> float:
    """A standard deviation that single hiccups do not change."""
    middle = median(values)
    return 1.4826 * median(abs(v - middle) for v in values)


def _ways(trace: Trace) -> tuple[Link, list[float]]:
    """The link, and each worker's seconds per byte of a way to it and back.

    By non-negative least squares over the gaps around merges of the members M:

        gap = 2 latency + bytes sum_{i in M} per_byte_i
    """
    workers = len(trace.workers)
    gaps: dict[tuple[int, ...], list[float]] = {}
    for members, gap in _gaps(trace):
        gaps.setdefault(members, []).append(gap)
    sizes = [line["bytes"] for line in trace.lines if "merge" in line and line["bytes"]]
    size = median(sizes) if sizes else 1.0
    if not gaps:
        return Link(0.0, _ENDLESS, "central"), [0.0] * workers
    rows = np.array(
        [[2.0, *(float(k in members) for k in range(workers))] for members in gaps]
    )
    (latency, *seconds), _ = nnls(rows, np.array([median(g) for g in gaps.values()]))
    return Link(float(latency), _ENDLESS, "central"), [float(s) / size for s in seconds]


def _gaps(trace: Trace) -> list[tuple[tuple[int, ...], float]]:
    """(members, seconds from their last arrival to what follows the merge)."""
    arrived: dict[int, float] = {}
    merge: tuple[tuple[int, ...], float] | None = None  # that the next dispatch follows
    follows: dict[int, tuple[tuple[int, ...], float]] = {}  # by worker that was given
    found: dict[tuple[tuple[int, ...], float], list[float]] = {}
    for line in trace.lines:
        if "merge" in line:
            members = tuple(m for m in line["members"] if isinstance(m, int))
            known = members and all(k in arrived for k in members)
            merge = (members, max(arrived[k] for k in members)) if known else None
        elif "dispatch" in line:
            if merge:
                follows[line["dispatch"]] = merge
        else:
            merge = None
        if "arrival" in line:
            k = line["arrival"]
            if k in follows:
                given = follows.pop(k)
                found.setdefault(given, []).append(line["start"] - given[1])
            arrived[k] = line["finish"]
    return [(members, median(starts)) for (members, _), starts in found.items()]
