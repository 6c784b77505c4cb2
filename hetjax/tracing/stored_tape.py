"""The tape of a recorded run, for replays: its times and decisions (host world)."""

import math
from collections.abc import Mapping, Sequence

from hetjax.machine import (
    Arrival,
    Evaluated,
    EvaluationDue,
    Event,
    LocalRound,
    MergeAction,
    MergeRequest,
    Node,
    PlannedMerge,
    Roster,
    RunEnded,
    Stamps,
)
from hetjax.schedule.types import Actions, Policy
from hetjax.tracing.format import Line, shortened
from hetjax.tracing.recorder import action_of, event_of, op_text
from hetjax.tracing.trace import Trace


class StoredTape:
    """The clock of a replay, and a policy that repeats the recorded decisions.

    The same events come at the same times, and the same actions take equally long.
    """

    has_pending_joins = True  # joins are in the trace

    def __init__(self, trace: Trace):
        """Start at 0 s."""
        self.workers = trace.workers
        self.now = 0.0
        self.roster = Roster.of(self.workers)
        # a "cut" line only says where a run was continued; the header is line 1
        numbered = [(n, x) for n, x in enumerate(trace.lines, 2) if "cut" not in x]
        self._lines = [line for _, line in numbered]
        self._numbers = [*(n for n, _ in numbered), len(trace.lines) + 2]
        self._trace, self._position = trace, 0
        self._rounds: dict[int, LocalRound] = {}
        self._nodes: Mapping[str, Node] = {}  # of the recorded policy

    def policy(self, recorded: Policy) -> Policy:
        """Return the policy of a replay, which replaces the strategy's `recorded` one.

        A trace of version 2 does not hold complete actions, so the strategy's policy
        decides again.
        """
        if self._trace.header["trace"] < 3:
            return recorded
        self._nodes = recorded.topology(self.workers).nodes
        return recorded._replace(
            init=lambda infos, num_examples: (None, self._actions()),
            react=lambda state, event: (None, self._react(event)),
        )

    def _react(self, event: Event) -> Actions:
        """Return the actions that follow an event."""
        if isinstance(event, EvaluationDue):
            self._line()  # the run may have ended before this evaluation
        elif isinstance(event, Evaluated):
            self._take("evaluation")
        return self._actions()

    def _actions(self) -> Actions:
        """Return the actions up to the next event or evaluation.

        Their merges and rounds are consumed when they are carried out. Workers that are
        started, or whose rounds are cancelled, come first and have no other line.
        """
        cancel: list[int] = []
        while self._next_is("cancel"):
            cancel.append(self._take("cancel")["cancel"])
        start: list[int] = []
        while self._next_is("start"):
            start.append(self._take("start")["start"])
        merges: list[MergeAction] = []
        dispatch: list[tuple[int, LocalRound]] = []
        for k in range(self._position, len(self._lines)):
            line = self._lines[k]
            if _kind(line) == "merge":
                merges.append(self._merge(k))
            elif _kind(line) == "dispatch":
                dispatch.append((line["dispatch"], _round_of(line)))
            else:
                break
        return Actions(
            tuple(merges), tuple(dispatch), start=tuple(start), cancel=tuple(cancel)
        )

    def _merge(self, position: int) -> MergeAction:
        """Return the merge of a line; raise unless its nodes exist."""
        action = action_of(self._lines[position])
        for name in (action.node, *action.members):
            if isinstance(name, str) and name not in self._nodes:
                raise self._differs(f"the node {name!r}", at=position)
        return action

    # -- times -------------------------------------------------------------------------

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Return the recorded start of a round."""
        del nonzeros
        line = self._take("dispatch")
        if (line["dispatch"], _round_of(line)) != (worker, local_round):
            raise self._differs(f"worker {worker} gets {local_round}")
        self._check_at_rest((worker,))
        self._rounds[worker] = local_round
        self.roster = self.roster.dispatched((worker,))
        return Arrival(worker, local_round, line["start"], math.inf)

    def plan(self, merge: MergeRequest) -> PlannedMerge:
        """Return the recorded times of a merge, visible at once as it was then."""
        line, action = self._take("merge"), merge.action
        partners, op = [*action.partners], op_text(action.op)
        asked = action.node, [*action.members], partners, op
        if (line["merge"], line["members"], line["partners"], line["op"]) != asked:
            raise self._differs(
                f"{action.members} merge at {action.node!r} ({op}, with {partners})"
            )
        self._check_at_rest(action.members)
        missing = tuple(line.get("missing", ()))
        return PlannedMerge(self.now, Stamps(*line["stamps"]), missing)

    def cancel(self, worker: int) -> None:
        """End a worker's round."""
        if self._rounds.pop(worker, None) is None:
            raise self._differs(f"worker {worker} has no round to cancel")
        self.roster = self.roster.cancelled((worker,))

    def start(self, worker: int) -> None:
        """The Join is in the trace."""

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
        if event is None and _kind(line) != "arrival":
            raise self._differs("the run waits for an event", at=self._position)
        if event is None:
            worker = line["arrival"]
            local_round = self._rounds.pop(worker)
            event = Arrival(worker, local_round, line["start"], line["finish"])
        self._position += 1
        self.now = max(self.now, event.time)
        self.roster = self.roster.after(event)
        return event

    def _check_at_rest(self, members: Sequence[int | str]) -> None:
        """Raise a ValueError if one of these workers has a round in flight."""
        for worker in members:
            if worker in self.roster.working:
                raise self._differs(f"worker {worker} has a round in flight")

    def _line(self) -> Line:
        """Return the next line of the trace; raise RunEnded after the last one."""
        if self._position == len(self._lines):
            stopped = self._trace.end.get("stopped", "the trace was cut off here")
            raise RunEnded(stopped)
        return self._lines[self._position]

    def _next_is(self, kind: str) -> bool:
        more = self._position < len(self._lines)
        return more and _kind(self._lines[self._position]) == kind

    def _take(self, kind: str) -> Line:
        """Return the next line, which must be of this kind, and move on."""
        line = self._line()
        if _kind(line) != kind:
            raise self._differs(f"the run continues with a {kind}", at=self._position)
        self._position += 1
        return line

    def _differs(self, what: str, *, at: int | None = None) -> ValueError:
        """Return the error for a line (the last one) that the replay contradicts."""
        number = self._numbers[self._position - 1 if at is None else at]
        return ValueError(
            f"{self._trace.name}, line {number}: {shortened(what)} here, but "
            "the trace says otherwise: it is damaged, or the strategy, its settings, "
            "the data or the seed differ from the recorded ones"
        )


def _kind(line: Line) -> str:
    """Return the kind of a line: the name of its first field."""
    return next(iter(line))


def _round_of(line: Line) -> LocalRound:
    return LocalRound(
        line["local_steps"], line["batch_size"], line["lr_scale"], line["seconds"]
    )
