"""Recording: write the tape of a run to disk as the lines of a trace."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hetjax.engine.tape import EvaluationDone, MergeDone, StartRound
from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    MergeAction,
    Merged,
    MergeOp,
    Slow,
    Timer,
    WorkerInfo,
)
from hetjax.schedule.types import Actions
from hetjax.tracing.format import VERSION, Line
from hetjax.tracing.trace import Recording

_EVENTS: dict[str, Any] = {
    "merged": Merged,
    "timer": Timer,
    "leave": Leave,
    "join": Join,
    "slow": Slow,
}
_NAMES: dict[type, str] = {kind: name for name, kind in _EVENTS.items()}


@lru_cache  # written at every merge
def op_text(op: MergeOp) -> str:
    """Return a merge's operation as a trace writes it, such as PUSH|FETCH."""
    return "|".join(flag.name or "" for flag in op)


def _op(text: str) -> MergeOp:
    """Return the operation that `op_text` wrote."""
    found = MergeOp(0)
    for name in text.split("|"):
        found |= MergeOp[name]
    return found


MAX_ENTRIES = 256  # of the tape, whose lines are not made yet


class Recorder:
    """Writes a line for each round, merge and event of a tape."""

    def __init__(
        self,
        workers: Sequence[WorkerInfo],
        header: Line,
        path: str | Path | None = None,
        *,
        continues: bool = False,
    ):
        """Write the first line, unless the file `continues`: `load` then says where."""
        self.recording = Recording(path, continues=continues)
        self._entries: list[Any] = []  # whose lines are not made yet
        described = [info._asdict() for info in workers]
        self._first = {"trace": VERSION, **header, "workers": described}
        if not continues:
            self.recording.write(self._first)

    def write(self, entry: Any) -> None:
        """Write an entry of the tape, if a trace has lines for its kind."""
        if type(entry) in _LINES:
            self._entries.append(entry)
            if len(self._entries) >= MAX_ENTRIES:
                self._write_lines()

    def _write_lines(self) -> None:
        """Make the lines of all entries: at once, which is faster than one by one."""
        entries, self._entries = self._entries, []
        for entry in entries:
            for line in _LINES[type(entry)](entry):
                self.recording.write(line)

    def flush(self) -> None:
        """Write all buffered lines to the file."""
        self._write_lines()
        self.recording.flush()

    def end(self, **what: Any) -> None:
        """Write the last line."""
        self._write_lines()
        self.recording.end(**what)

    def close(self) -> None:
        """Write everything that is buffered, and close the file."""
        self._write_lines()
        self.recording.close()

    def save(self) -> int:
        """Return the length of the file."""
        self._write_lines()
        return self.recording.length

    def load(self, length: int, now: float) -> None:
        """Continue the file of a run that was interrupted at `now` [s]."""
        if self.recording.truncate(length, self._first):
            self.recording.write({"cut": now})
        else:  # the earlier lines are lost, or belong to another run
            self._begin_at(now)

    def start_at(self, time: float) -> None:
        """Start a new file at `time` [s], as the workers have changed."""
        self.recording.truncate(0)
        self._begin_at(time)

    def _begin_at(self, time: float) -> None:
        """Write the first line of a file without the beginning of the run."""
        self.recording.write({**self._first, "begins": time})


def _of_actions(actions: Actions) -> Iterator[Line]:
    """Yield lines for those actions that have no other line."""
    for worker in actions.cancel:
        yield {"cancel": worker}
    for worker in actions.start:
        yield {"start": worker}


def _of_round(entry: StartRound) -> Iterator[Line]:
    line = {"dispatch": entry.worker, **entry.local_round._asdict()}
    yield {**line, "nonzeros": sum(entry.nonzeros), "start": entry.start}


def _of_merge(entry: MergeDone) -> Iterator[Line]:
    action, (up, down), stamps, missing = entry
    line = {"merge": action.node, **action._asdict(), "op": op_text(action.op)}
    line |= {"stamps": stamps, "bytes": (up + down) / 2}
    del line["node"]
    for name in ("part", "weight"):  # of few merges
        if line[name] == MergeAction._field_defaults[name]:
            del line[name]
    yield line | ({"missing": missing} if missing else {})


def _of_arrival(event: Arrival) -> Iterator[Line]:
    yield {"arrival": event.worker, "start": event.start, "finish": event.finish}


def _of_event(event: Any) -> Iterator[Line]:
    """Yield the line of an event; the event's kind replaces the first field's name."""
    names = (_NAMES[type(event)], *event._fields[1:])
    values = [op_text(v) if isinstance(v, MergeOp) else v for v in event]
    yield dict(zip(names, values, strict=True))


_LINES: dict[type, Callable[[Any], Iterator[Line]]] = {
    Actions: _of_actions,
    EvaluationDone: lambda point: iter([{"evaluation": point.time}]),
    StartRound: _of_round,
    MergeDone: _of_merge,
    Arrival: _of_arrival,
    **dict.fromkeys(_NAMES, _of_event),
}


def action_of(line: Line) -> MergeAction:
    """Return the action that a merge's line records."""
    given = [name for name in MergeAction._fields if name in line]
    found = {name: line[name] for name in given}
    found |= {"node": line["merge"], "op": _op(line["op"])}
    members, partners = tuple(line["members"]), tuple(line["partners"])
    return MergeAction(**{**found, "members": members, "partners": partners})


def event_of(line: Line) -> Event | None:
    """Return the event of a line; None for an arrival, or a line of an action."""
    (name, first), *others = line.items()
    if name not in _EVENTS:
        return None
    rest = dict(others)
    if "members" in rest:
        rest["members"] = tuple(rest["members"])
        rest["op"] = _op(rest["op"])
    return _EVENTS[name](first, **rest)
