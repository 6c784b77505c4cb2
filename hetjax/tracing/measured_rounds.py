"""The local rounds of a recorded run: their seconds, and the load during each."""

from collections import Counter
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
    seen, found = Counter(), []
    spans = list(_spans(trace, slowdowns, bursts))
    computed = [
        _computed([span for span in spans if span.worker == k])
        for k in range(len(slowdowns))
    ]
    for k, start, finish, line, until, _, slowdown in spans:
        seen[k] += 1
        steps = line["local_steps"]
        if not steps or finish <= start or seen[k] <= SKIPPED_ROUNDS:
            continue
        others = computed[:k] + computed[k + 1 :]
        seconds = [np.diff(np.interp((start, until), *each))[0] for each in others]
        share = sum(seconds) / (until - start) / max(1, len(others))
        examples = steps * max(1, round(line["batch_size"]))
        measured = (finish - start - line["seconds"]) / slowdown
        each = MeasuredRound(k, steps, examples, line["nonzeros"], measured, share)
        found.append(each)
    return found


def _computed(spans: Sequence[_Span]) -> tuple[np.ndarray, np.ndarray]:
    """Return times, and the weighted seconds that a worker had computed by then."""
    mine = sorted((s.start, s.until, s.weight) for s in spans)
    times = [t for start, until, _ in mine for t in (start, until)]
    done = [x for start, until, w in mine for x in (0.0, w * (until - start))]
    return np.array(times or [0.0]), np.cumsum(done or [0.0])


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
