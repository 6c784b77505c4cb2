"""A simulated machine fitted to the trace of a real run: costs, noise, contention.

The same fit serves calibrations and other recorded runs. A calibration's trace has
every kind of local round, alone and side by side. Other runs have fewer kinds: costs
that their rounds do not determine are extrapolated from the others.
"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from hetjax.machine.faults import AS_SCRIPTED, ScriptedFault
from hetjax.machine.simulated_machine import Machine
from hetjax.machine.workers_and_links import Cost, Link, Profile
from hetjax.tracing.measured_rounds import MeasuredRound, bursts_of, measured_rounds
from hetjax.tracing.trace import Trace

# A round is alone if the other workers compute for less than the share ALONE of it, and
# side by side if for more than the fraction TOGETHER of the largest share
ALONE = 0.1
TOGETHER = 0.5
_UNLIMITED = 1e18  # [bytes/s] of a link whose bytes are charged to the workers
# Above these, the machine was disturbed: the fit's median error, the noise, and the
# ratio of the seconds of equal devices for a step of EXAMPLES examples
MAX_ERROR, MAX_NOISE, MAX_RATIO, EXAMPLES = 0.25, 0.2, 1.5, 32
_BETWEEN = ("start", "evaluation")  # kinds of lines between a merge and a dispatch
ITERATIONS = 4  # of least squares, with weights from the previous iteration


class Fit(NamedTuple):
    """A machine, and |fitted / measured - 1| of every local round."""

    machine: Machine
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """The median error."""
        return median(self.errors)

    @property
    def worst(self) -> float:
        """The 90th percentile."""
        return float(np.quantile(self.errors, 0.9))


def fit_machine(trace: Trace, name: str = "recorded") -> Fit:
    """Fit a simulated machine on which a run takes as long as the recorded one.

    For every worker, by non-negative least squares of relative errors over its rounds:

        seconds = per_round + steps fixed + examples per_example + nonzeros per_nonzero

    The fit uses the rounds that ran alone, if there are enough; the rounds side by side
    then determine the worker's contention. The noise is the spread of a step's
    residuals. A worker's latency is the median time from a dispatch to the begin of its
    round. The link and the seconds per byte of every worker are fitted to the gaps
    between the last arrival before a merge and the dispatch of its members' next
    rounds. Scripted faults are copied to the machine; other failures are not. Workers
    that share a device slow each other down by their contention only.
    """
    workers, slowdowns = trace.workers, trace.header["slowdowns"]
    learners = Counter(info.device for info in workers)
    bursts = bursts_of(trace)
    local_rounds = measured_rounds(trace, slowdowns, bursts)
    link, ways = _transfer_costs(trace)
    latencies = _latencies(trace)
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
            latency=latencies[info.index],
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


def disturbances(machine: Machine, error: float) -> list[str]:
    """Return signs that a machine was disturbed while it was measured.

    `error` is the fit's median error.
    """
    found = []
    if error > MAX_ERROR:
        found.append(f"the costs fit the rounds only to {100 * error:.0f} %")
    if machine.noise > MAX_NOISE:
        found.append(f"steps of one kind vary by {100 * machine.noise:.0f} %")
    alike: dict[tuple[str, float], dict[str, float]] = {}
    for w in machine.workers:
        seconds = w.cost.per_round + w.cost.seconds(EXAMPLES)
        alike.setdefault((w.kind, w.factor), {})[w.name] = seconds
    for times in alike.values():
        low, high = (
            min(times, key=lambda k: times[k]),
            max(times, key=lambda k: times[k]),
        )
        if times[high] > MAX_RATIO * times[low]:
            ratio = times[high] / times[low]
            found.append(
                f"{high} is {ratio:.2g} times as slow as {low}, a device of its kind"
            )
    return found


def _faults(trace: Trace) -> tuple[ScriptedFault, ...]:
    """Return the scripted faults that happened in the recorded run."""
    found, whats = [], {"leave": "kill", "join": "join", "slow": "slow"}
    for line in trace.lines:
        kind = next(iter(line))
        if kind == "slow" or AS_SCRIPTED in str(line.get("why", "")):
            name, factor = trace.workers[line[kind]].name, line.get("factor", 1.0)
            found.append(ScriptedFault(line["time"], whats[kind], name, factor))
    return tuple(found)


def _cost(local_rounds: Sequence[MeasuredRound]) -> Cost | None:
    """Return the cost that fits best; None for a worker without rounds."""
    alone = [w for w in local_rounds if w.share < ALONE]
    # without rounds alone, fit the rounds beside other workers
    chosen = alone if len(alone) >= 4 else local_rounds
    if not chosen:
        return None
    rows = np.array([[1, w.local_steps, w.examples, w.nonzeros] for w in chosen], float)
    if not np.ptp(rows[:, 1]):  # one number of steps: per_round and fixed are the same
        rows[:, 0] = 0
    seconds = np.array([w.seconds for w in chosen])
    fitted, found, scale = seconds, np.zeros(4), np.ones(4)
    for _ in range(ITERATIONS):  # weights from the fit: from noise they would be biased
        table = rows / fitted[:, None]
        scale = np.maximum(np.abs(table).max(0), 1e-300)
        found = _least_squares(table / scale, seconds / fitted)
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


def _contention(
    local_rounds: Sequence[MeasuredRound], cost: Cost, workers: int
) -> float:
    """Return how many times longer rounds take while all other workers compute.

    It is a ratio of sums, in which short rounds weigh less: they leave cores to other
    workers and contend less.
    """
    alone = [w for w in local_rounds if w.share < ALONE]
    # beside a deliberately slowed worker the largest share is below 1
    most = max((w.share for w in local_rounds), default=0.0)
    beside = [w for w in local_rounds if w.share > max(ALONE, TOGETHER * most)]
    if workers < 2 or len(alone) < 4 or not beside:
        return 1.0
    alone_seconds = [_seconds(cost, 1.0, w) for w in beside]
    more = sum(w.seconds for w in beside) - sum(alone_seconds)
    shared = sum(s * w.share for s, w in zip(alone_seconds, beside, strict=True))
    return max(1.0, 1 + more / shared)


def _seconds(cost: Cost, contention: float, w: MeasuredRound) -> float:
    alone = (
        cost.per_round
        + w.local_steps * cost.fixed
        + w.examples * cost.per_example
        + w.nonzeros * cost.per_nonzero
    )
    return alone * (1 + (contention - 1) * w.share)


def _spread_of_a_step(
    ratios: Sequence[float], local_rounds: Sequence[MeasuredRound]
) -> list:
    """Return the lognormal noise of one step, from the rounds with the fewest steps."""
    fewest = min((w.local_steps for w in local_rounds), default=0)
    logs = [
        math.log(r)
        for r, w in zip(ratios, local_rounds, strict=True)
        if w.local_steps == fewest
    ]
    return [_spread(logs) * math.sqrt(fewest)] if len(logs) > 2 else []


def _spread(values: Sequence[float]) -> float:
    """Return a robust standard deviation, which single outliers do not change."""
    middle = median(values)
    return 1.4826 * median(abs(v - middle) for v in values)


def _transfer_costs(trace: Trace) -> tuple[Link, list[float]]:
    """Return the link, and each worker's seconds per byte of a round trip over it.

    They are fitted by non-negative least squares to the gaps around merges of the
    members M:

        gap = 2 latency + bytes sum_{i in M} per_byte_i
    """
    workers = len(trace.workers)
    gaps: dict[tuple[int, ...], list[float]] = {}
    for members, gap in _gaps(trace):
        gaps.setdefault(members, []).append(gap)
    sizes = [line["bytes"] for line in trace.lines if "merge" in line and line["bytes"]]
    size = median(sizes) if sizes else 1.0
    if not gaps:
        return Link(latency=0.0, bandwidth=_UNLIMITED, topology="central"), [
            0.0
        ] * workers
    rows = np.array(
        [[2.0, *(float(k in members) for k in range(workers))] for members in gaps]
    )
    typical = np.array([median(g) for g in gaps.values()])
    latency, *seconds = _least_squares(rows, typical)
    return Link(latency=float(latency), bandwidth=_UNLIMITED, topology="central"), [
        float(s) / size for s in seconds
    ]


def _latencies(trace: Trace) -> list[float]:
    """Return each worker's median seconds from a dispatch to the begin of its round."""
    given: dict[int, float] = {}
    found: list[list[float]] = [[] for _ in trace.workers]
    for line in trace.lines:
        if "dispatch" in line:
            given[line["dispatch"]] = line["start"]
        elif "arrival" in line and line["arrival"] in given:
            k = line["arrival"]
            found[k].append(max(0.0, line["start"] - given.pop(k)))
    return [median(mine) if mine else 0.0 for mine in found]


def _least_squares(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the non-negative x [C] for which rows [R, C] @ x is closest to values."""
    from scipy.optimize import nnls  # imported late, as this takes 0.1 s

    return nnls(rows, values)[0]


def _gaps(trace: Trace) -> list[tuple[tuple[int, ...], float]]:
    """Return (members, seconds from their last arrival to the next dispatch)."""
    arrived: dict[int, float] = {}
    merge: tuple[tuple[int, ...], float] | None = None  # before the next dispatch
    # by dispatched worker: the merge before, and the time of the dispatch
    follows: dict[int, tuple[tuple[tuple[int, ...], float], float]] = {}
    found: dict[tuple[tuple[int, ...], float], list[float]] = {}
    for line in trace.lines:
        if "merge" in line:
            members = tuple(m for m in line["members"] if isinstance(m, int))
            known = members and all(k in arrived for k in members)
            merge = (members, max(arrived[k] for k in members)) if known else None
        elif "dispatch" in line:
            if merge:
                follows[line["dispatch"]] = merge, line["start"]
        elif next(iter(line)) not in _BETWEEN:
            merge = None
        if "arrival" in line:
            k = line["arrival"]
            if k in follows:
                given, start = follows.pop(k)
                found.setdefault(given, []).append(start - given[1])
            arrived[k] = line["finish"]
    return [(members, median(starts)) for (members, _), starts in found.items()]
