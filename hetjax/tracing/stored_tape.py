"""The tape of a recorded run, for replays: its times and its decisions (host world)."""

import math
from collections.abc import Sequence
from typing import Any

from hetjax.machine import (
    Arrival,
    Event,
    LocalRound,
    MergeRequest,
    PlannedMerge,
    Roster,
    RunEnded,
    Stamps,
)
from hetjax.schedule.types import Actions, Policy
from hetjax.tracing.format import Line, cut
from hetjax.tracing.recorder import action_of, event_of
from hetjax.tracing.trace import Trace

_ACTIONS = ("dispatch", "merge", "start")


class StoredTape:
    """The clock of a trace, and the policy that decides as it says.

    The same events come at the same times, and the same actions take as long.
    """

    has_pending_joins = True  # joins are in the trace

    def __init__(self, trace: Trace):
        """Start at 0 s."""
        self.workers = trace.workers
        self.now = 0.0
        self.roster = Roster.of(self.workers)
        # where a run was continued, nothing happened; the header is line 1
        numbered = [(n, x) for n, x in enumerate(trace.lines, 2) if "cut" not in x]
        self._lines = [line for _, line in numbered]
        self._numbers = [*(n for n, _ in numbered), len(trace.lines) + 2]
        self._trace, self._position = trace, 0
        self._rounds: dict[int, LocalRound] = {}

    def policy(self, recorded: Policy) -> Policy:
        """What decides in a replay, in place of the strategy's `recorded` policy.

        A trace of version 2 does not hold all of an action: the policy decides again.
        """
        if self._trace.header["trace"] < 3:
            return recorded
        return recorded._replace(
            init=lambda infos, num_examples: (None, self._actions()),
            react=lambda state, event: (None, self._actions()),
        )

    def _actions(self) -> Actions:
        """The actions from here to the next event, or to the evaluation."""
        if self._next_is("evaluation"):
            self._position += 1
        found: dict[str, list[Any]] = {kind: [] for kind in _ACTIONS}
        for line in self._lines[self._position :]:
            kind = next(iter(line))
            if kind not in _ACTIONS:
                break
            found[kind].append(line)
        return Actions(
            merges=tuple(map(action_of, found["merge"])),
            dispatch=tuple((x["dispatch"], _round_of(x)) for x in found["dispatch"]),
            start=tuple(x["start"] for x in found["start"]),
        )

    # -- times -------------------------------------------------------------------------

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Return the recorded start of a round."""
        del nonzeros
        line = self._take("dispatch")
        if (line["dispatch"], _round_of(line)) != (worker, local_round):
            raise self._differs(f"worker {worker} gets {local_round}")
        self._rounds[worker] = local_round
        self.roster = self.roster.dispatched((worker,))
        return Arrival(worker, local_round, line["start"], math.inf)

    def plan(self, merge: MergeRequest) -> PlannedMerge:
        """Return the recorded times of a merge, visible at once as it was then."""
        line, action = self._take("merge"), merge.action
        if (line["merge"], line["members"]) != (action.node, [*action.members]):
            raise self._differs(f"{action.members} merge at {action.node!r}")
        missing = tuple(line.get("missing", ()))
        return PlannedMerge(self.now, Stamps(*line["stamps"]), missing)

    def start(self, worker: int) -> None:
        """The Join is in the trace."""
        if self._next_is("start"):
            self._position += 1

    def stop(self, worker: int) -> None:
        """The Leave is in the trace."""

    def set_timer(self, name: str, time: float) -> None:
        """The Timer is in the trace."""

    def next(self) -> Event | None:
        """Return the next event of the trace; raise RunEnded after the last one."""
        if self._next_is("evaluation"):
            self._position += 1
        line = self._line()
        event = event_of(line)
        if event is None and "arrival" not in line:
            raise self._differs("the run waits for an event", ahead=0)
        if event is None:
            worker = line["arrival"]
            local_round = self._rounds.pop(worker)
            event = Arrival(worker, local_round, line["start"], line["finish"])
        self._position += 1
        self.now = max(self.now, event.time)
        self.roster = self.roster.after(event)
        return event

    def _line(self) -> Line:
        """Return the next line of the trace; raise RunEnded after the last one."""
        if self._position == len(self._lines):
            stopped = self._trace.end.get("stopped", "the trace was cut off here")
            raise RunEnded(stopped)
        return self._lines[self._position]

    def _next_is(self, kind: str) -> bool:
        more = self._position < len(self._lines)
        return more and kind in self._lines[self._position]

    def _take(self, kind: str) -> Line:
        """Return the next line, which must be of this kind, and move on."""
        line = self._line()
        if kind not in line:
            raise self._differs(f"the run goes on with a {kind}", ahead=0)
        self._position += 1
        return line

    def _differs(self, what: str, *, ahead: int = -1) -> ValueError:
        """The error for a line that does not say what happens in the replay."""
        number = self._numbers[self._position + ahead]
        return ValueError(
            f"{self._trace.name}, line {number}: {cut(what)} here, which the trace "
            "does not say: it is damaged, or the strategy, its settings, the data or "
            "the seed differ from the recorded ones"
        )


def _round_of(line: Line) -> LocalRound:
    return LocalRound(
        line["local_steps"], line["batch_size"], line["lr_scale"], line["seconds"]
    )
