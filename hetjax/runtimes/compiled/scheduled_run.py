"""The complete schedule of a simulated run, written before anything is computed.

The schedule depends on the machine, the policy and the sampler, but on no result, as
long as none of them reads one. It is a list of events of few kinds, each of which has
operations, then rounds. `hetjax.runtimes.compiled.run_function` plays the list as one
differentiable function.
"""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from hetjax.data.batching import nonzeros_per_example
from hetjax.engine import tape
from hetjax.engine.job import Job
from hetjax.engine.loop import ledger_of, writer_of
from hetjax.engine.protocols import EvaluatedModel
from hetjax.machine import ROOT, Machine, MergeOp, SimulatedClock, WorkerInfo
from hetjax.runtimes.compiled.compiled_player import CompiledPlayer, UnavailableMetrics
from hetjax.runtimes.compiled.program_parts import Parts
from hetjax.runtimes.compiled.stretch_types import (
    ProgramShape,
    ScheduleEvent,
    StretchTables,
)
from hetjax.runtimes.compiled.tables import lengths_of, tables_of
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


class ScheduleCollector(CompiledPlayer):
    """Collects a whole run as one stretch, and launches nothing."""

    def open(self) -> None:
        """Set up the instructions, without a model."""
        self.listen()
        # ends of events, in merges and in rounds, and whether the model is evaluated
        self.ends: list[tuple[int, int, bool]] = []

    def launch(self) -> None:
        """Do nothing: the whole run is played later."""

    def end_event(self) -> None:
        """End an event."""
        if not self.ends or self.ends[-1][:2] != self._here:
            self.ends.append((*self._here, False))

    @property
    def _here(self) -> tuple[int, int]:
        return len(self._stretch.merges), len(self._stretch.rounds)

    def _evaluate(self, evaluation: tape.EvaluateRoot) -> EvaluatedModel:
        del evaluation
        place = (*self._here, True)
        if place not in self.ends[-1:]:  # else the model is the same
            self.ends.append(place)
        return EvaluatedModel(len(self.ends) - 1, {})

    def _measure(self, measure: tape.MeasureMembers) -> list[float]:
        """Return zeros: metrics are measured when the merge is played."""
        action = measure.action
        return [0.0] * (len(action.members) + len(action.partners))

    def scheduled(
        self, evals: list[int], seconds: list[float], lines: Any
    ) -> ScheduledRun:
        """Return the collected run; `evals` index the evaluations in `ends`."""
        stretch, parts = self._stretch, self._parts
        buckets, of_round, rows, _ = self._buckets.of(stretch)
        lengths = lengths_of(stretch, None)
        tables = tables_of(
            stretch,
            None,
            of_round,
            rows,
            lengths,
            seed=self._job.seed,
            absent=parts.num_workers,
        )
        of_number = list(self._kinds)
        kinds: dict[ScheduleEvent, int] = {}
        events, eval_events = [], {}
        for place, (merges, rounds) in self._events(evals[-1]):
            if place is not None:
                eval_events[place] = len(events)
                events.append((-1, 0, 0))
                continue
            of_rounds = [(buckets[of_round[i]], stretch.rounds[i][2]) for i in rounds]
            event = ScheduleEvent(
                _in_turn([(of_number[stretch.merges[i][0]],) for i in merges]),
                _in_turn(of_rounds, self._lanes),
            )
            number = kinds.setdefault(event, len(kinds))
            events.append((number, merges.start, rounds.start))
        table = np.array(events, np.int32).reshape(-1, 3)
        table[table[:, 0] < 0, 0] = len(kinds)
        shape = ProgramShape(tuple(of_number), buckets, False)
        found = np.array([eval_events[place] for place in evals])
        return ScheduledRun(
            parts,
            shape,
            tables,
            tuple(kinds),
            table,
            found,
            np.array(seconds),
            tuple(lines),
        )

    def _events(self, last: int) -> Iterator[tuple[int | None, tuple[range, range]]]:
        """Yield the merges and rounds of each event, or the index of an evaluation.

        Stop at the index `last`, which is that of the last evaluation.
        """
        merge = first = 0
        ends = iter(self._stretch.ends)  # of supersteps: a merge needs a round
        end = next(ends, None)
        for place, (merges, rounds, evaluation) in enumerate(self.ends[: last + 1]):
            while end is not None and end <= (merges, rounds):
                if (merge, first) != end:
                    yield None, (range(merge, end[0]), range(first, end[1]))
                (merge, first), end = end, next(ends, None)
            if (merge, first) != (merges, rounds):
                yield None, (range(merge, merges), range(first, rounds))
            merge, first = merges, rounds
            if evaluation:
                yield place, (range(0), range(0))


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
    player = ScheduleCollector(
        strategy,
        job,
        clock.workers,
        source,
        None,
        lanes=lanes,
        max_steps_ahead=math.inf,
    )
    player.open()
    writer = writer_of(
        strategy,
        job,
        clock,
        ledger_of(strategy, clock.workers),
        policy=strategy.policy,
        traits=player.traits,
        stopped=lambda: False,
    )
    evals: list[int] = []
    seconds: list[float] = []
    lines: list[ScheduleLine] = []

    def play(entries: tape.Tape) -> None:
        answer = None
        while True:
            try:
                entry = entries.send(answer)
            except StopIteration:
                player.end_event()
                return
            if isinstance(entry, tape.EndRun):
                raise ValueError(
                    f"{job.name}: the run ends at {clock.now:.6g} s, before its last "
                    f"evaluation: {entry.why}; pass fewer seconds"
                )
            lines.extend(_lines_of(entry, clock.workers))
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
                answer = player.plays.get(type(entry), lambda entry: None)(entry)

    play(writer.begin())
    while writer.due:
        event = clock.next()
        assert event is not None  # there is a timer for each evaluation
        play(writer.handle(event))
    return player.scheduled(evals, seconds, lines)


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
            workers[m].name if isinstance(m, int) else m
            for m in (*action.members, *action.partners)
        )
        what = "merge" if MergeOp.PUSH in action.op else _words(action.op)
        yield ScheduleLine(entry.stamps.start, what, "", 0, 0, action.node, members)
    elif isinstance(entry, tape.EvaluationDone):
        yield ScheduleLine(entry.time, "evaluation", "", 0, 0, ROOT, ())


def _words(op: MergeOp) -> str:
    return (op.name or "").lower().replace("|", ", ").replace("_", " ")
