"""Clocks of traces: one notes what another does, one plays what was noted again."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from hetjax.machine.clock import Stamps, Transfer
from hetjax.machine.trace import VERSION, Line, Recording, Trace
from hetjax.machine.types import (
    Alarm,
    Arrival,
    Event,
    Join,
    Leave,
    Merged,
    MergeOrder,
    RunEnded,
    Slow,
    Work,
    WorkerInfo,
)

_EVENTS: dict[str, Callable[..., Event]] = {
    "merged": Merged,
    "alarm": Alarm,
    "leave": Leave,
    "join": Join,
    "slow": Slow,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


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
            # the kind stands for the name of the first field
            names = (_NAMES[type(event)], *event._fields[1:])
            self.recording.write(dict(zip(names, event, strict=True)))
        return event

    def ends(self, end: Line) -> None:
        """Write the last line."""
        self.recording.write({"end": end})

    def close(self) -> None:
        """Bring the file up to date, however the run ended, and close it."""
        self.recording.close()


def _event(line: Line) -> Event | None:
    """The event of a line, but for arrivals; None for a line that is none."""
    (name, first), *others = line.items()
    if name not in _EVENTS:
        return None
    rest = dict(others)
    if "members" in rest:
        rest["members"] = tuple(rest["members"])
    return _EVENTS[name](first, **rest)


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
            f"{self._trace.name}, line {line}: the strategy "
            f"{what}: it is not the one that was recorded, or its settings, its "
            "data or its seed are others"
        )
