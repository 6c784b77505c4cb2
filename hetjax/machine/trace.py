"""Traces: what happened in a run, as JSON lines, and the clock that plays one again.

The first line says what was run on what; then, in the order of the run, one line for
every order that takes time and every event; the last line says how it ended. A trace is
enough to run the same strategy again to the same bits, and to fit a simulated machine.
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from hetjax.machine.clock import Stamps, Transfer
from hetjax.machine.types import (
    Alarm,
    Arrival,
    Event,
    Join,
    Leave,
    Merged,
    MergeOrder,
    RunEnded,
    Work,
    WorkerInfo,
)

VERSION = 1  # of the format
MANY = 5_000  # lines that wait for a pause to be written
_EVENTS: dict[str, Callable[..., Event]] = {
    "merged": Merged,
    "alarm": Alarm,
    "leave": Leave,
    "join": Join,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}
_KINDS = {"dispatch", "merge", "arrival", *_EVENTS}
_REQUIRED = ("trace", "strategy", "seed", "workers", "instants", "forms")

Line = dict[str, Any]


@dataclass
class Trace:
    """A recorded run: `header`, `lines`, and what the last line says in `end`."""

    header: Line
    lines: list[Line] = field(default_factory=list)
    end: Line = field(default_factory=dict)

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers of the run."""
        return tuple(
            WorkerInfo(**{**w, "place": tuple(w["place"])})
            for w in self.header["workers"]
        )

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON lines."""
        with Path(path).open("w", encoding="utf-8") as file:
            for line in (self.header, *self.lines, {"end": self.end}):
                file.write(json.dumps(line) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read a trace; a ValueError names the file and the line that is damaged.

        A run that was cut off (no last line) is read as far as it goes.
        """
        with Path(path).open(encoding="utf-8") as file:
            return cls.read(file, str(path))

    @classmethod
    def read(cls, file: TextIO, name: str) -> "Trace":
        """Read an open file, called `name` in errors."""
        numbered = list(_parsed(name, file))
        if not numbered:
            raise ValueError(f"{name}: an empty file is no trace")
        (_, header), *lines = numbered
        _check_header(name, header)
        end: Line = {}
        if lines and "end" in lines[-1][1]:
            end = lines.pop()[1]["end"]
        for number, line in lines:
            if not _KINDS & set(line):
                raise ValueError(f"{name}, line {number}: unknown: {json.dumps(line)}")
        return cls(header, [line for _, line in lines], end)


class Recording:
    """A trace in a file of its own: that of a path, or one that goes with it."""

    def __init__(self, path: str | Path | None = None):
        """Opens the file."""
        self.path = path
        self._waiting: list[Line] = []
        self.context: Any = None  # what it was recorded of, while that is in memory
        # open for as long as the run takes, and its history is there
        self.file: Any = (
            Path(path).open("w+", encoding="utf-8")  # noqa: SIM115
            if path
            else tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        )

    def load(self) -> Trace:
        """Read it."""
        self.flush()
        if self.path:
            return Trace.load(self.path)
        self.file.seek(0)
        return Trace.read(self.file, "the trace")

    def save(self, path: str | Path) -> None:
        """Write it to another file."""
        self.load().save(path)

    def write(self, line: Line) -> None:
        """Append a line; it goes to the file with many others, when there is time."""
        self._waiting.append(line)
        if len(self._waiting) >= MANY:
            self.flush()

    def flush(self) -> None:
        """Bring the file up to date."""
        waiting, self._waiting = self._waiting, []
        self.file.write("".join(json.dumps(line) + "\n" for line in waiting))
        self.file.flush()


def _check_header(name: str, header: Line) -> None:
    missing = [field for field in _REQUIRED if field not in header]
    if missing:
        raise ValueError(
            f"{name}, line 1: this is no trace of hetjax: {', '.join(missing)} missing"
        )
    if header["trace"] != VERSION:
        raise ValueError(
            f"{name}, line 1: a trace of version {header['trace']}; this hetjax reads "
            f"version {VERSION}"
        )


def _parsed(name: str, file: TextIO) -> Iterator[tuple[int, Line]]:
    """Every line with its number."""
    for number, text in enumerate(file, 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: damaged: {error}") from error
        if not isinstance(line, dict):
            raise ValueError(f"{name}, line {number}: damaged: no JSON object")
        yield number, line


class Recorder:
    """A clock that notes what another one does."""

    def __init__(self, clock: Any, header: Line, path: str | Path | None = None):
        """Writes the first line."""
        self._clock = clock
        self._num_bytes = 0.0
        self.recording = Recording(path)
        workers = [info._asdict() for info in clock.workers]
        self.recording.write({"trace": VERSION, **header, "workers": workers})

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The clock's."""
        return self._clock.workers

    @property
    def now(self) -> float:
        """The clock's."""
        return self._clock.now

    @property
    def expects(self) -> bool:
        """The clock's."""
        return self._clock.expects

    def begin(self) -> None:
        """Time runs."""
        self._clock.begin()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The clock's; the file is brought up to date meanwhile."""
        with self._clock.paused():
            self.recording.flush()
            yield

    def dispatch(self, worker: int, work: Work, nonzeros: Sequence[int]) -> Arrival:
        """Note who was given what, and when it starts."""
        arrival = self._clock.dispatch(worker, work, nonzeros)
        self.recording.write(
            {
                "dispatch": worker,
                "steps": work.steps,
                "batch_size": work.batch_size,
                "rate": work.rate,
                "seconds": work.seconds,
                "nonzeros": sum(nonzeros),
                "start": arrival.start,
            }
        )
        return arrival

    def merge(
        self, order: MergeOrder, num_bytes: float, seconds: float = 0.0
    ) -> Transfer:
        """Noted when it has taken place."""
        self._num_bytes = num_bytes
        return self._clock.merge(order, num_bytes, seconds)

    def merged(
        self,
        order: MergeOrder,
        transfer: Transfer,
        stamps: Stamps | None = None,
        compiling: float = 0.0,
    ) -> Stamps:
        """Note who merged where, and when."""
        done = self._clock.merged(order, transfer, stamps, compiling)
        line = {
            "merge": order.node,
            "members": list(order.members),
            "op": order.op,
            "passive": list(order.passive),
            "stamps": list(done),
            "bytes": self._num_bytes,
        }
        self.recording.write(line)
        return done

    def start(self, worker: int) -> None:
        """Leads to a Join, which is noted."""
        self._clock.start(worker)

    def stop(self, worker: int) -> None:
        """Leads to a Leave, which is noted."""
        self._clock.stop(worker)

    def set_alarm(self, name: str, time: float) -> None:
        """Noted when it rings."""
        self._clock.set_alarm(name, time)

    def next(self) -> Event | None:
        """Note the event."""
        event = self._clock.next()
        if isinstance(event, Arrival):
            self.recording.write(
                {
                    "arrival": event.worker,
                    "start": event.start,
                    "finish": event.finish,
                }
            )
        elif event is not None:
            fields = event._asdict()
            name = _NAMES[type(event)]
            self.recording.write({name: next(iter(fields.values())), **_rest(fields)})
        return event

    def close(self, end: Line) -> None:
        """Write the last line."""
        self.recording.write({"end": end})
        self.recording.flush()


def _rest(fields: dict[str, Any]) -> dict[str, Any]:
    """All but the first field, whose value stands beside the event's name."""
    return dict(list(fields.items())[1:])


def _event(line: Line) -> Event | None:
    """The event of a line, but for arrivals; None for a line that is none."""
    for name, kind in _EVENTS.items():
        if name in line:
            rest = {k: v for k, v in line.items() if k != name}
            if "members" in rest:
                rest["members"] = tuple(rest["members"])
            return kind(line[name], **rest)
    return None


class RecordedClock:
    """The clock of a trace: the same events at the same times.

    What is ordered must be what was ordered then; a ValueError says what is not.
    """

    def __init__(self, trace: Trace):
        """At 0 s."""
        self.workers = trace.workers
        self.now = 0.0
        self.expects = True  # the trace knows who came
        self._trace, self._position = trace, 0
        self._works: dict[int, Work] = {}

    def begin(self) -> None:
        """Time runs from event to event."""

    def paused(self) -> AbstractContextManager[None]:
        """It stands still anyway."""
        return nullcontext()

    def dispatch(self, worker: int, work: Work, nonzeros: Sequence[int]) -> Arrival:
        """The recorded start of this work."""
        line = self._take("dispatch", f"work for worker {worker}")
        recorded = Work(
            line["steps"], line["batch_size"], line["rate"], line["seconds"]
        )
        if (line["dispatch"], recorded) != (worker, work):
            raise self._other(
                f"gives worker {worker} {work}, where worker {line['dispatch']} was "
                f"given {recorded}",
                line=-1,
            )
        del nonzeros
        self._works[worker] = work
        return Arrival(worker, work, line["start"], math.inf)

    def merge(
        self, order: MergeOrder, num_bytes: float, seconds: float = 0.0
    ) -> Transfer:
        """What came of it is known behind it, as in the run."""
        del order, num_bytes, seconds
        return Transfer(self.now, self.now)

    def merged(
        self,
        order: MergeOrder,
        transfer: Transfer,
        stamps: Stamps | None = None,
        compiling: float = 0.0,
    ) -> Stamps:
        """The recorded times of this merge."""
        del transfer, stamps, compiling
        line = self._take("merge", f"a merge at {order.node}")
        ordered = order.node, [*order.members], [*order.passive], order.op
        recorded = line["merge"], line["members"], line["passive"], line["op"]
        if recorded != ordered:
            raise self._other(
                f"merges {order.members} at {order.node!r} (op {order.op!r}, with "
                f"{[*order.passive]}), where {line['members']} merged at "
                f"{line['merge']!r} (op {line['op']!r}, with {line['passive']})",
                line=-1,
            )
        return Stamps(*line["stamps"])

    def start(self, worker: int) -> None:
        """Its Join is in the trace."""

    def stop(self, worker: int) -> None:
        """Its Leave is in the trace."""

    def set_alarm(self, name: str, time: float) -> None:
        """It rings when it did."""

    def next(self) -> Event | None:
        """The next event of the trace; RunEnded behind the last one."""
        line = self._line()
        if "dispatch" in line or "merge" in line:
            raise self._other("waits, where the recorded run went on")
        event = _event(line)
        if event is None:
            worker = line["arrival"]
            work = self._works.pop(worker)
            event = Arrival(worker, work, line["start"], line["finish"])
        self._position += 1
        self.now = max(self.now, event.time)
        return event

    def _line(self) -> Line:
        if self._position == len(self._trace.lines):
            stopped = self._trace.end.get("stopped", "the trace was cut off here")
            raise RunEnded(stopped)
        return self._trace.lines[self._position]

    def _take(self, kind: str, ordered: str) -> Line:
        """The next line, which must be of this kind."""
        line = self._line()
        if kind not in line:
            raise self._other(f"orders {ordered}, which the recorded run did not")
        self._position += 1
        return line

    def _other(self, what: str, *, line: int = 0) -> ValueError:
        """What differs from the next line, or from the one before it (-1)."""
        line += self._position + 2  # the header is line 1
        return ValueError(
            f"trace of {self._trace.header['strategy']}, line {line}: the strategy "
            f"{what}: it is not the one that was recorded, or its settings, its "
            "data or its seed are others"
        )
