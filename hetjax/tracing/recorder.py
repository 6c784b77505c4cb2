"""A clock that notes what another one does, and the words in which it does so."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    LocalRound,
    Merged,
    MergeOp,
    PlannedMerge,
    Slow,
    Stamps,
    Timer,
    WorkerInfo,
)
from hetjax.tracing.trace import VERSION, Line, Recording

_EVENTS: dict[str, Callable[..., Event]] = {
    "merged": Merged,
    "timer": Timer,
    "leave": Leave,
    "join": Join,
    "slow": Slow,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


def op_text(op: MergeOp) -> str:
    """A merge's operation as it stands in a trace: PUSH|FETCH."""
    return "|".join(flag.name or "" for flag in op)


def _op(text: str) -> MergeOp:
    """The operation that `op_text` wrote."""
    found = MergeOp(0)
    for name in text.split("|"):
        found |= MergeOp[name]
    return found


class Recorder:
    """A clock that notes what another one does."""

    def __init__(self, clock: Any, header: Line, path: str | Path | None = None):
        """Writes the first line."""
        self._clock = clock
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
    def has_pending_joins(self) -> bool:
        """The clock's."""
        return self._clock.has_pending_joins

    def begin(self) -> None:
        """Time runs."""
        self._clock.begin()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The clock's; the file is brought up to date meanwhile."""
        with self._clock.paused():
            self.recording.flush()
            yield

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Note who was given what, and when it starts."""
        arrival = self._clock.dispatch(worker, local_round, nonzeros)
        self.recording.write(
            {
                "dispatch": worker,
                "local_steps": local_round.local_steps,
                "batch_size": local_round.batch_size,
                "lr_scale": local_round.lr_scale,
                "seconds": local_round.seconds,
                "nonzeros": sum(nonzeros),
                "start": arrival.start,
            }
        )
        return arrival

    def carry_out(self, planned: PlannedMerge) -> Stamps:
        """Note who merged where, and when."""
        done, action = self._clock.carry_out(planned), planned.action
        self.recording.write(
            {
                "merge": action.node,
                "members": list(action.members),
                "op": op_text(action.op),
                "partners": list(action.partners),
                "stamps": list(done),
                "bytes": planned.num_bytes,
            }
        )
        return done

    def start(self, worker: int) -> None:
        """Leads to a Join, which is noted."""
        self._clock.start(worker)

    def stop(self, worker: int) -> None:
        """Leads to a Leave, which is noted."""
        self._clock.stop(worker)

    def set_timer(self, name: str, time: float) -> None:
        """Noted when it rings."""
        self._clock.set_timer(name, time)

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
            values = [op_text(v) if isinstance(v, MergeOp) else v for v in event]
            self.recording.write(dict(zip(names, values, strict=True)))
        return event


def event_of(line: Line) -> Event | None:
    """The event of a line, but for arrivals; None for a line that is none."""
    (name, first), *others = line.items()
    if name not in _EVENTS:
        return None
    rest = dict(others)
    if "members" in rest:
        rest["members"] = tuple(rest["members"])
        rest["op"] = _op(rest["op"])
    return _EVENTS[name](first, **rest)
