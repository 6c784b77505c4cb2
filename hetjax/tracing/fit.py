"""A simulated machine fitted to the trace of a real run: costs, noise, contention.

The same fit serves calibrations and other recorded runs. A calibration's trace has
every kind of local round, alone and side by side. Other runs have fewer kinds: costs
that their rounds do not determine are extrapolated from the others.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

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
_ENOUGH = 4  # rounds alone
_UNLIMITED = 1e18  # [bytes/s] of a link whose bytes are charged to the workers
# Above these, the machine was disturbed: the fit's median error, the noise, and the
# ratio of the seconds of equal devices for a step of EXAMPLES examples
MAX_ERROR, MAX_NOISE, MAX_RATIO, EXAMPLES = 0.25, 0.2, 1.5, 32
_BETWEEN = ("start", "evaluation")  # kinds of lines between a merge and a dispatch
# Rounds side by side have two speeds if those at these ranks differ by more
QUARTILES, TWO_SPEEDS = (0.25, 0.75), 1.1
ITERATIONS = 4  # of least squares, with weights from the previous iteration

_Members = tuple[int, ...]


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
    then determine the worker's contention, and its range where they differ. The noise
    is the spread of a step's residuals. A worker's latency is the median time from a
    dispatch to the begin of its round. The link and the seconds per byte of every
    worker are fitted to the gaps between the last arrival before a merge and the
    dispatch of its members' next rounds. Scripted faults are copied to the machine;
    other failures are not. Workers that share a device slow each other down by their
    contention only.
    """
    workers, slowdowns = trace.workers, trace.header["slowdowns"]
    learners = Counter(info.device for info in workers)
    bursts = bursts_of(trace)
    rounds = measured_rounds(trace, slowdowns, bursts)
    link, ways = _transfer_costs(trace)
    latencies = _latencies(trace)
    profiles, errors, spreads = [], [], []
    for k, info in enumerate(workers):
        mine = _Rounds([each for each in rounds if each.worker == k])
        cost = mine.cost() or Cost(
            info.fixed / slowdowns[k], info.per_example / slowdowns[k]
        )
        contention, between = 1.0, ()
        if len(workers) > 1:
            contention = mine.contention(cost)
            between = mine.contention_range(cost, contention)
        shares_device = learners[info.device] > 1
        profile = Profile(
            info.name,
            info.kind,
            cost,
            factor=slowdowns[k],
            place=info.place,
            device=info.device if shares_device else "",
            curve=tuple(1.0 + i for i in range(learners[info.device])),
            contention=contention,
            contention_range=between,
            duty=1 / slowdowns[k],
            bursts=bursts[k] and slowdowns[k] > 1,
            per_byte=ways[k],
            latency=latencies[k],
        )
        profiles.append(profile)
        ratios = mine.ratios(cost, contention)
        errors += np.abs(1 / ratios - 1).tolist()
        spreads += mine.spread_of_a_step(ratios)
    noise, faults = median(spreads) if spreads else 0.0, _faults(trace)
    machine = Machine(name, tuple(profiles), {"": link}, noise=noise, faults=faults)
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
    alike: defaultdict[Any, list[tuple[float, str]]] = defaultdict(list)
    for w in machine.workers:
        seconds = w.cost.per_round + w.cost.seconds(EXAMPLES)
        alike[w.kind, w.factor].append((seconds, w.name))
    for times in alike.values():
        (low, fast), (high, slow) = min(times), max(times)
        if high > MAX_RATIO * low:
            found.append(
                f"{slow} is {high / low:.2g} times as slow as {fast}, a device of its "
                "kind"
            )
    return found


class _Rounds:
    """The measured rounds of a worker, as arrays [N]."""

    def __init__(self, rounds: list[MeasuredRound]):
        table = np.array(rounds, float).reshape(-1, len(MeasuredRound._fields))
        _, self.steps, examples, nonzeros, self.seconds, self.share = table.T
        ones = np.ones_like(self.steps)
        self.rows = np.stack([ones, self.steps, examples, nonzeros], 1)
        self.alone = self.share < ALONE

    def cost(self) -> Cost | None:
        """Return the cost that fits best; None for a worker without rounds."""
        # without rounds alone, fit the rounds beside other workers
        chosen = self.alone if self.alone.sum() >= _ENOUGH else slice(None)
        rows, seconds = self.rows[chosen].copy(), self.seconds[chosen]
        if not len(rows):
            return None
        if not np.ptp(rows[:, 1]):  # one number of steps: per_round and fixed are one
            rows[:, 0] = 0
        fitted, found = seconds, np.zeros(4)
        for _ in range(ITERATIONS):  # weights from the fit: noise would bias them
            table = rows / fitted[:, None]
            scale = np.maximum(np.abs(table).max(0), 1e-300)
            found = _least_squares(table / scale, seconds / fitted) / scale
            fitted = np.maximum(rows @ found, 1e-12)
        per_round, fixed, per_example, per_nonzero = found.tolist()
        if fixed + per_example + per_nonzero == 0:
            fixed = float(np.median(seconds / rows[:, 1]))
        return Cost(fixed, per_example, per_nonzero, per_round)

    def contention(self, cost: Cost) -> float:
        """Return how many times longer rounds take while all other workers compute.

        It is a ratio of sums, in which short rounds weigh less: they leave cores to
        other workers and contend less.
        """
        beside = self._beside()
        if not beside.any():
            return 1.0
        alone = self._alone(cost)[beside]
        more = (self.seconds[beside] - alone).sum() / (alone * self.share[beside]).sum()
        return max(1.0, 1 + float(more))

    def _beside(self) -> np.ndarray:
        """Return which rounds were side by side; none if too few were alone."""
        # beside a deliberately slowed worker the largest share is below 1
        most = self.share.max(initial=0.0)
        enough = self.alone.sum() >= _ENOUGH
        return enough & (self.share > max(ALONE, TOGETHER * most))

    def contention_range(self, cost: Cost, contention: float) -> tuple[float, ...]:
        """Return the quartiles of the contention of single rounds; () if they agree.

        Long rounds weigh more, as in `contention`, which is always between them.
        """
        beside = self._beside()
        if not beside.any():
            return ()
        alone = self._alone(cost)[beside]
        weights = alone * self.share[beside]
        single = 1 + (self.seconds[beside] - alone) / weights
        order = np.argsort(single)
        ranks = np.cumsum(weights[order]) / weights.sum()
        low, high = single[order][np.searchsorted(ranks, QUARTILES)]
        low, high = max(1.0, min(low, contention)), max(high, contention)
        return (float(low), float(high)) if high > TWO_SPEEDS * low else ()

    def ratios(self, cost: Cost, contention: float) -> np.ndarray:
        """Return measured / fitted seconds of every round."""
        fitted = self._alone(cost) * (1 + (contention - 1) * self.share)
        return self.seconds / fitted

    def _alone(self, cost: Cost) -> np.ndarray:
        costs = cost.per_round, cost.fixed, cost.per_example, cost.per_nonzero
        return self.rows @ np.array(costs)

    def spread_of_a_step(self, ratios: np.ndarray) -> list[float]:
        """Return the lognormal noise of one step, from rounds with the fewest steps.

        It is a robust standard deviation, which single outliers do not change.
        """
        fewest = self.steps.min(initial=math.inf)
        logs = np.log(ratios[self.steps == fewest])
        if len(logs) < 3:
            return []
        deviation = 1.4826 * np.median(np.abs(logs - np.median(logs)))
        return [float(deviation * math.sqrt(fewest))]


def _least_squares(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the non-negative x [C] for which rows [R, C] @ x is closest to values."""
    from scipy.optimize import nnls  # imported late, as this takes 0.1 s

    return nnls(rows, values)[0]


def _transfer_costs(trace: Trace) -> tuple[Link, list[float]]:
    """Return the link, and each worker's seconds per byte of a round trip over it.

    They are fitted by non-negative least squares to the gaps around merges of the
    members M:

        gap = 2 latency + bytes sum_{i in M} per_byte_i
    """
    workers = range(len(trace.workers))
    gaps: defaultdict[_Members, list[float]] = defaultdict(list)
    for members, gap in _gaps(trace):
        gaps[members].append(gap)
    sizes = [line["bytes"] for line in trace.lines if "merge" in line and line["bytes"]]
    size = median(sizes) if sizes else 1.0
    latency, seconds = 0.0, [0.0 for _ in workers]
    if gaps:
        rows = [[2.0, *(float(k in members) for k in workers)] for members in gaps]
        typical = [median(each) for each in gaps.values()]
        found = _least_squares(np.array(rows), np.array(typical))
        latency, *seconds = found.tolist()
    link = Link(latency=latency, bandwidth=_UNLIMITED, topology="central")
    return link, [s / size for s in seconds]


def _gaps(trace: Trace) -> Iterator[tuple[_Members, float]]:
    """Yield (members, seconds from their last arrival to the next dispatch)."""
    arrived: dict[int, float] = {}
    merge: tuple[_Members, float] | None = None  # before the next dispatch
    # by dispatched worker: the merge before, and the time of the dispatch
    follows: dict[int, tuple[tuple[_Members, float], float]] = {}
    found: defaultdict[tuple[_Members, float], list[float]] = defaultdict(list)
    cancelled: set[int] = set()  # until they begin again: their arrivals were before
    for line in trace.lines:
        if "cancel" in line:
            cancelled.add(line["cancel"])
        elif "merge" in line:
            members = tuple(m for m in line["members"] if isinstance(m, int))
            if members and cancelled.issuperset(members):
                continue  # they fetch, after the merge of the worker that arrived
            known = members and all(k in arrived for k in members)
            merge = (members, max(arrived[k] for k in members)) if known else None
        elif "dispatch" in line:
            if line["dispatch"] in cancelled:
                cancelled.discard(line["dispatch"])
            elif merge:
                follows[line["dispatch"]] = merge, line["start"]
        elif next(iter(line)) not in _BETWEEN:
            merge = None
        if "arrival" in line:
            k = line["arrival"]
            if k in follows:
                given, start = follows.pop(k)
                found[given].append(start - given[1])
            arrived[k] = line["finish"]
    for (members, _), starts in found.items():
        yield members, median(starts)


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


def _faults(trace: Trace) -> tuple[ScriptedFault, ...]:
    """Return the scripted faults that happened in the recorded run."""
    found = []
    for line in trace.lines:
        kind = next(iter(line))
        if kind == "slow" or AS_SCRIPTED in str(line.get("why", "")):
            name, factor = trace.workers[line[kind]].name, line.get("factor", 1.0)
            what: Any = "kill" if kind == "leave" else kind
            found.append(ScriptedFault(line["time"], what, name, factor))
    return tuple(found)
