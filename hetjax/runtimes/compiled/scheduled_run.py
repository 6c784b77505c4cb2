"""The complete schedule of a simulated run, written before anything is computed.

The schedule depends on the machine, the policy and the sampler, but on no result, as
long as none of them reads one. It is a list of events of few kinds, each of which has
operations, then rounds. `hetjax.runtimes.compiled.run_function` plays the list as one
differentiable function.
"""

from collections import deque
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from hetjax.data.batching import nonzeros_per_example
from hetjax.engine import tape
from hetjax.engine.job import Job
from hetjax.engine.job_writer import writer_of
from hetjax.engine.protocols import EvaluatedModel
from hetjax.machine import ROOT, Machine, MergeOp, SimulatedClock, WorkerInfo
from hetjax.runtimes.compiled.program_parts import NodeIndices, Parts, parts_of
from hetjax.runtimes.compiled.stretch import UnavailableMetrics
from hetjax.runtimes.compiled.stretch_collector import StretchCollector, members_of
from hetjax.runtimes.compiled.stretch_types import (
    ProgramShape,
    ScheduleEvent,
    StretchTables,
)
from hetjax.runtimes.compiled.tables import Buckets, lengths_of, tables_of
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import check_calibration


class ScheduleLine(NamedTuple):
    """A line of a run's schedule."""

    seconds: float  # at its start
    what: str  # "steps", "evaluation", or the operations of a merge
    worker: str  # the worker that takes the steps
    steps: int
    batch_size: int
    node: str  # of a merge
    members: tuple[str, ...]  # of a merge


class ScheduledRun(NamedTuple):
    """A run as arrays."""

    parts: Parts
    shape: ProgramShape
    tables: StretchTables  # NumPy
    event_kinds: tuple[ScheduleEvent, ...]
    # int32 [E, 3]: kind, first merge, first round; an evaluation has the kind
    # len(event_kinds), and merge and round 0
    events: np.ndarray
    eval_events: np.ndarray  # int [num_evals + 1]: the events that evaluate the model
    seconds: np.ndarray  # float64 [num_evals + 1]: of the evaluations
    lines: tuple[ScheduleLine, ...]


class _Schedule:
    """A whole run, which is collected as one stretch."""

    def __init__(self, collector: StretchCollector):
        self.collector = collector
        # ends of events, in merges and in rounds, and whether the model is evaluated
        self._ends: list[tuple[int, int, bool]] = []

    @property
    def _here(self) -> tuple[int, int]:
        stretch = self.collector.stretch
        return len(stretch.merges), len(stretch.rounds)

    def end_event(self) -> None:
        """End an event."""
        if not self._ends or self._ends[-1][:2] != self._here:
            self._ends.append((*self._here, False))

    def evaluate(self, evaluation: tape.EvaluateRoot) -> EvaluatedModel:
        """Return the index of the evaluation in the place of a model."""
        del evaluation
        place = (*self._here, True)
        if place not in self._ends[-1:]:  # else the model is the same
            self._ends.append(place)
        return EvaluatedModel(len(self._ends) - 1, {})

    def scheduled(
        self,
        job: Job,
        source: Any,
        lanes: int,
        evals: list[int],
        seconds: list[float],
        lines: list[ScheduleLine],
    ) -> ScheduledRun:
        """Return the collected run; `evals` are the indices of its evaluations."""
        stretch, parts = self.collector.stretch, self.collector.parts
        batches = Buckets(job.buckets, source, exact=parts.programs.exact)
        buckets, of_round, rows, _ = batches.of(stretch)
        tables = tables_of(
            stretch,
            None,
            of_round,
            rows,
            lengths_of(stretch, None),
            seed=job.seed,
            absent=parts.num_workers,
        )
        of_number = tuple(self.collector.kinds)
        kinds: dict[ScheduleEvent, int] = {}
        events, eval_events = [], {}
        for place, merges, rounds in self._events(evals[-1]):
            if place is not None:
                eval_events[place] = len(events)
                events.append((-1, 0, 0))
                continue
            of_rounds = [(buckets[of_round[i]], stretch.rounds[i][2]) for i in rounds]
            event = ScheduleEvent(
                _in_turn([(of_number[stretch.merges[i][0]],) for i in merges]),
                _in_turn(of_rounds, lanes),
            )
            number = kinds.setdefault(event, len(kinds))
            events.append((number, merges.start, rounds.start))
        table = np.array(events, np.int32).reshape(-1, 3)
        table[table[:, 0] < 0, 0] = len(kinds)
        return ScheduledRun(
            parts,
            ProgramShape(of_number, buckets, False),
            tables,
            tuple(kinds),
            table,
            np.array([eval_events[place] for place in evals]),
            np.array(seconds),
            tuple(lines),
        )

    def _events(self, last: int) -> Iterator[tuple[int | None, range, range]]:
        """Yield the merges and rounds of each event, or the index of an evaluation.

        Stop at the index `last`, which is that of the last evaluation.
        """
        here = (0, 0)
        ends = deque(self.collector.stretch.ends)  # of supersteps: merges need rounds

        def until(end: tuple[int, int]) -> Iterator[tuple[int | None, range, range]]:
            nonlocal here
            if here != end:
                yield None, range(here[0], end[0]), range(here[1], end[1])
            here = end

        for place, (merges, rounds, evaluation) in enumerate(self._ends[: last + 1]):
            while ends and ends[0] <= (merges, rounds):
                yield from until(ends.popleft())
            yield from until((merges, rounds))
            if evaluation:
                yield place, range(0), range(0)


def _in_turn(each: list[tuple[Any, ...]], longest: int = 0) -> tuple[Any, ...]:
    """Run-length encode; a run has at most `longest` items, if that is above 1."""
    found: list[tuple[Any, ...]] = []
    for one, same in groupby(each):
        number = len(list(same))
        size = longest if longest > 1 else number
        whole, rest = divmod(number, size)
        found += [(*one, size)] * whole + [(*one, rest)] * bool(rest)
    return tuple(found)


def schedule_run(
    strategy: Strategy, job: Job, machine: Machine, source: Any, *, lanes: int
) -> ScheduledRun:
    """Write the schedule of a run; `source` has the training split on a device.

    At most `lanes` rounds of an event run side by side.

    Errors: a ValueError if the strategy reads a result, or the run ends early.
    """
    _check(strategy, job.name)
    check_calibration(machine, job.programs.task)
    clock = SimulatedClock(
        machine,
        seed=job.schedule,
        nonzeros_per_example=nonzeros_per_example(job.data.train),
    )
    workers, nodes = clock.workers, NodeIndices.of_strategy(strategy, clock.workers)
    parts = parts_of(job, strategy, len(workers), nodes.num_nodes, vmapped=lanes > 1)
    collector = StretchCollector(parts, nodes, job)
    schedule = _Schedule(collector)
    plays = {
        **collector.plays,
        tape.EvaluateRoot: schedule.evaluate,
        # metrics are measured when the merge is played
        tape.MeasureMembers: lambda e: [0.0] * len(members_of(e.action)),
    }
    writer = writer_of(strategy, job, clock, collector.traits)
    evals: list[int] = []
    seconds: list[float] = []
    lines: list[ScheduleLine] = []

    def play(entries: tape.Tape) -> None:
        answer = None
        while True:
            try:
                entry = entries.send(answer)
            except StopIteration:
                schedule.end_event()
                return
            if isinstance(entry, tape.EndRun):
                raise ValueError(
                    f"{job.name}: the run ends at {clock.now:.6g} s, before its last "
                    f"evaluation: {entry.why}; pass fewer seconds"
                )
            lines.extend(_lines_of(entry, workers))
            if isinstance(entry, tape.EvaluationDone):
                evals.append(entry.seen.model)
                seconds.append(entry.time)
                answer = UnavailableMetrics(
                    ValueError(
                        f"{job.name}: the policy reads the metrics of evaluations, but "
                        "a run as a function is scheduled before there are any; use "
                        'hj.train, or a policy that does not (for sma, restart="never" '
                        'or "on_lr_drop")'
                    )
                )
            else:
                answer = plays.get(type(entry), lambda entry: None)(entry)

    play(writer.begin())
    while writer.due:
        event = clock.next()
        assert event is not None  # there is a timer for each evaluation
        play(writer.handle(event))
    return schedule.scheduled(job, source, lanes, evals, seconds, lines)


def _check(strategy: Strategy, name: str) -> None:
    """Raise a ValueError for a strategy whose examples depend on results."""
    if strategy.sampler.observe is not None:
        raise ValueError(
            f"{name}: its sampler observes losses, but a run as a function is "
            "scheduled before there are any; use hj.train, or another sampler (for "
            'biased_local_sgd, sampler="uniform")'
        )


def _lines_of(entry: Any, workers: tuple[WorkerInfo, ...]) -> Iterator[ScheduleLine]:
    """Yield the line of the schedule for an entry of the tape, if there is one."""
    if isinstance(entry, tape.StartRound):
        steps, size = entry.local_round.local_steps, entry.local_round.size
        name = workers[entry.worker].name
        yield ScheduleLine(entry.start, "steps", name, steps, size, "", ())
    elif isinstance(entry, tape.MergeDone):
        action = entry.action
        members = tuple(
            workers[m].name if isinstance(m, int) else m for m in members_of(action)
        )
        words = (action.op.name or "").lower().replace("|", ", ").replace("_", " ")
        what = "merge" if MergeOp.PUSH in action.op else words
        yield ScheduleLine(entry.stamps.start, what, "", 0, 0, action.node, members)
    elif isinstance(entry, tape.EvaluationDone):
        yield ScheduleLine(entry.time, "evaluation", "", 0, 0, ROOT, ())
