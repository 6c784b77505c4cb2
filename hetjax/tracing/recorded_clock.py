"""The clock of a trace, for replays (host world)."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from hetjax.machine import (
    Arrival,
    Event,
    LocalRound,
    PlannedMerge,
    RunEnded,
    Stamps,
)
from hetjax.tracing.format import Line, cut
from hetjax.tracing.recorder import event_of, op_text
from hetjax.tracing.trace import Trace


class RecordedClock:
    """The clock of a trace: the same events at the same times.

    The actions must be the recorded ones; a ValueError says which one differs.
    """

    def __init__(self, trace: Trace):
        """Start at 0 s."""
        self.workers = trace.workers
        self.now = 0.0
        self.has_pending_joins = True  # joins are in the trace
        # where a run was continued, nothing happened; the header is line 1
        numbered = [(n, x) for n, x in enumerate(trace.lines, 2) if "cut" not in x]
        self._lines = [line for _, line in numbered]
        self._numbers = [*(n for n, _ in numbered), len(trace.lines) + 2]
        self._trace, self._position = trace, 0
        self._rounds: dict[int, LocalRound] = {}

    def begin(self) -> None:
        """Do nothing: time moves from event to event."""

    def paused(self) -> AbstractContextManager[None]:
        """Do nothing: time only moves in `next`."""
        return nullcontext()

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Check the round against the trace; return its recorded start."""
        line = self._take("dispatch", f"a local round for worker {worker}")
        recorded = LocalRound(
            line["local_steps"],
            line["batch_size"],
            line["lr_scale"],
            line["seconds"],
        )
        if (line["dispatch"], recorded) != (worker, local_round):
            raise self._other(
                f"gives worker {worker} {local_round}, but in the trace worker "
                f"{line['dispatch']} was given {recorded}",
                line=-1,
            )
        del nonzeros
        self._rounds[worker] = local_round
        return Arrival(worker, local_round, line["start"], math.inf)

    def carry_out(self, planned: PlannedMerge) -> Stamps:
        """Carry out a merge, check it against the trace; return its recorded times."""
        # its result is visible after it, as in the recorded run
        planned.run(self.now, self._line().get("missing", ()))
        action = planned.action
        line = self._take("merge", f"a merge at {action.node}")
        partners, op = [*action.partners], op_text(action.op)
        asked = action.node, [*action.members], partners, op
        recorded = line["merge"], line["members"], line["partners"], line["op"]
        if recorded != asked:
            raise self._other(
                f"merges {action.members} at {action.node!r} ({op}, with {partners}), "
                f"but in the trace {line['members']} merged at {line['merge']!r} "
                f"({line['op']}, with {line['partners']})",
                line=-1,
            )
        return Stamps(*line["stamps"])

    def start(self, worker: int) -> None:
        """Do nothing: the Join is in the trace."""

    def stop(self, worker: int) -> None:
        """Do nothing: the Leave is in the trace."""

    def set_timer(self, name: str, time: float) -> None:
        """Do nothing: the Timer is in the trace."""

    def next(self) -> Event | None:
        """Return the next event of the trace; raise RunEnded after the last one."""
        line = self._line()
        if "dispatch" in line or "merge" in line:
            raise self._other("waits, but in the trace an action comes next")
        event = event_of(line)
        if event is None:
            worker = line["arrival"]
            local_round = self._rounds.pop(worker)
            event = Arrival(worker, local_round, line["start"], line["finish"])
        self._position += 1
        self.now = max(self.now, event.time)
        return event

    def _line(self) -> Line:
        """Return the next line of the trace; raise RunEnded after the last one."""
        if self._position == len(self._lines):
            stopped = self._trace.end.get("stopped", "the trace was cut off here")
            raise RunEnded(stopped)
        return self._lines[self._position]

    def _take(self, kind: str, asked: str) -> Line:
        """Return the next line, which must be of this kind, and move on."""
        line = self._line()
        if kind not in line:
            raise self._other(f"asks for {asked}, but the recorded run did not")
        self._position += 1
        return line

    def _other(self, what: str, *, line: int = 0) -> ValueError:
        """The error for a difference from the next line (0) or the last one (-1)."""
        number = self._numbers[self._position + line]
        return ValueError(
            f"{self._trace.name}, line {number}: the strategy {cut(what)}: the "
            "strategy, its settings, the data or the seed differ from the recorded ones"
        )
