"""The local rounds of a recorded run: their seconds, and the load during each."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hetjax.tracing.trace import Trace

SKIPPED_ROUNDS = 2  # the first rounds of every worker, in which caches are cold


class MeasuredRound(NamedTuple):
    """A local round that was measured."""

    worker: int
    local_steps: int
    examples: int
    nonzeros: int
    seconds: float  # without the sleep of a deliberately slowed worker
    share: float  # mean share of the round in which the other workers computed


class _Span(NamedTuple):
    """A local round, and when its worker computed.

    A worker that sleeps after its whole round computes until `until`, with weight 1;
    one that sleeps after each step computes until the finish, with a smaller weight.
    """

    worker: int
    start: float
    finish: float
    line: dict
    until: float
    weight: float
    slowdown: float  # deliberate: by its machine and by scripted faults


def measured_rounds(
    trace: Trace, slowdowns: Sequence[float], bursts: Sequence[bool]
) -> list[MeasuredRound]:
    """Return every local round that arrived, except for each worker's first ones."""
    seen = [0] * len(slowdowns)
    found = []
    spans = list(_spans(trace, slowdowns, bursts))
    busy = _Busy(spans, len(slowdowns))
    for k, start, finish, local_round, until, _, slowdown in spans:
        seen[k] += 1
        if (
            not local_round["local_steps"]
            or finish <= start
            or seen[k] <= SKIPPED_ROUNDS
        ):
            continue
        examples = local_round["local_steps"] * max(1, round(local_round["batch_size"]))
        seconds = (finish - start - local_round["seconds"]) / slowdown
        share = busy.others(k, start, until)
        nonzeros = local_round["nonzeros"]
        found.append(
            MeasuredRound(
                k, local_round["local_steps"], examples, nonzeros, seconds, share
            )
        )
    return found


def _spans(
    trace: Trace, slowdowns: Sequence[float], bursts: Sequence[bool]
) -> Iterator[_Span]:
    given: dict[int, dict] = {}
    slowdowns = list(slowdowns)
    for line in trace.lines:
        if "slow" in line:  # during a round, which then has no single speed: skip it
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


def bursts_of(trace: Trace) -> list[bool]:
    """Whether each worker sleeps after a whole round, as its steps are one program."""
    step_modes = trace.header["step_modes"]
    return [step_modes.get(w.kind, "dispatch") != "dispatch" for w in trace.workers]


class _Busy:
    """A lookup of the weighted seconds that each worker had computed by some time."""

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
        """Return the mean share of [start, until] that the other workers computed."""
        n = len(self._edges)
        if n < 2:
            return 0.0
        total = 0.0
        for k in range(n):
            if k != worker:
                done = np.interp((start, until), self._edges[k], self._totals[k])
                total += float(done[1] - done[0])
        return total / (until - start) / (n - 1)
