"""Recording: a clock that writes what another clock does, as lines of a trace."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
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
    MergeTimes,
    PlannedMerge,
    Slow,
    Stamps,
    Timer,
    WorkerInfo,
)
from hetjax.tracing.format import VERSION, Line
from hetjax.tracing.trace import Recording

_EVENTS: dict[str, Callable[..., Event]] = {
    "merged": Merged,
    "timer": Timer,
    "leave": Leave,
    "join": Join,
    "slow": Slow,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


@lru_cache  # written at every merge
def op_text(op: MergeOp) -> str:
    """Return a merge's operation as written in a trace, such as PUSH|FETCH."""
    return "|".join(flag.name or "" for flag in op)


def _op(text: str) -> MergeOp:
    """Return the operation that `op_text` wrote."""
    found = MergeOp(0)
    for name in text.split("|"):
        found |= MergeOp[name]
    return found


class Recorder:
    """A clock that writes a line for each action and event of another clock."""

    def __init__(
        self,
        clock: Any,
        header: Line,
        path: str | Path | None = None,
        *,
        continues: bool = False,
    ):
        """Write the first line, unless the file `continues` where `load` says."""
        self._clock = clock
        self.recording = Recording(path, continues=continues)
        workers = [info._asdict() for info in clock.workers]
        self._first = {"trace": VERSION, **header, "workers": workers}
        if not continues:
            self.recording.write(self._first)

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """All workers of the recorded clock."""
        return self._clock.workers

    @property
    def now(self) -> float:
        """The time of the recorded clock."""
        return self._clock.now

    @property
    def has_pending_joins(self) -> bool:
        """May a worker still join on the recorded clock?"""
        return self._clock.has_pending_joins

    def begin(self) -> None:
        """Start the recorded clock."""
        self._clock.begin()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the recorded clock; the file is written meanwhile."""
        with self._clock.paused():
            self.recording.flush()
            yield

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Write the local round, its worker and its start."""
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
        """Write the merge's node, members and times, and who could not be reached."""
        missing: tuple[int, ...] = ()

        def run(visible: float) -> MergeTimes:
            nonlocal missing
            times = planned.run(visible)
            missing = times.missing
            return times

        done = self._clock.carry_out(planned._replace(run=run))
        action = planned.action
        line = {
            "merge": action.node,
            "members": list(action.members),
            "op": op_text(action.op),
            "partners": list(action.partners),
            "stamps": list(done),
            "bytes": planned.num_bytes,
        }
        self.recording.write(line | ({"missing": list(missing)} if missing else {}))
        return done

    def save(self) -> dict[str, Any]:
        """Return what the recorded clock saves, and the length of the file."""
        return {**self._clock.save(), "trace": self.recording.length}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue the recorded clock, and the file where it was cut."""
        self._clock.load(saved)
        if self.recording.cut(saved["trace"], self._first):
            self.recording.write({"cut": saved["now"]})
        else:  # what was recorded before is lost, or does not fit what follows
            self._begin_at(saved["now"])

    def start_at(self, time: float) -> None:
        """Start the recorded clock, and the file anew: its workers are others."""
        self._clock.start_at(time)
        self.recording.cut(0)
        self._begin_at(time)

    def _begin_at(self, time: float) -> None:
        """Write the first line of a file without the beginning of the run."""
        self.recording.write({**self._first, "begins": time})

    def take_up(self, worker: int, arrival: Arrival | None) -> None:
        """Tell the recorded clock of a round that was under way."""
        self._clock.take_up(worker, arrival)

    def start(self, worker: int) -> None:
        """Start a worker; its Join is written when it occurs."""
        self._clock.start(worker)

    def stop(self, worker: int) -> None:
        """Stop a worker; its Leave is written when it occurs."""
        self._clock.stop(worker)

    def set_timer(self, name: str, time: float) -> None:
        """Ask for a Timer; it is written when it occurs."""
        self._clock.set_timer(name, time)

    def next(self) -> Event | None:
        """Write the next event."""
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
            # the kind of event replaces the name of its first field
            names = (_NAMES[type(event)], *event._fields[1:])
            values = [op_text(v) if isinstance(v, MergeOp) else v for v in event]
            self.recording.write(dict(zip(names, values, strict=True)))
        return event


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
