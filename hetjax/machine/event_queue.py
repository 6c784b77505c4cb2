"""Pending events in order, shared by the simulated and the wall clock (host world).

The queue is a heap by time; events at the same time are ordered by kind, then by worker
or by the order of insertion. It maintains the `Roster`, applies the machine's scripted
faults, and removes the pending events of lost workers. Of the scripted faults only the
next one is in the heap, so that long scripts cost nothing per event.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any

from hetjax.checkpointable import Checkpointable
from hetjax.machine.faults import AS_SCRIPTED, ScriptedFault
from hetjax.machine.merge_times import moves_of
from hetjax.machine.roster import Roster
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

# The order of simultaneous events: an arriving worker sees the result of a merge that
# is done at the same time, and a timer sees everything.
_BEGIN, _MERGED, _MEMBERSHIP, _ARRIVAL, _TIMER = range(-1, 4)
_RANKS: dict[type, int] = {
    Merged: _MERGED,
    Join: _MEMBERSHIP,
    Leave: _MEMBERSHIP,
    Arrival: _ARRIVAL,
    Timer: _TIMER,
}
Entry = tuple[float, int, int, Event | ScriptedFault]  # time, rank, tie, event


class EventQueue(Checkpointable):
    """The pending events of one run, and the roster of its workers."""

    changes = ("roster", "_heap", "_count", "_scripted_joins", "_faults_queued")

    def __init__(
        self, workers: Sequence[WorkerInfo], faults: Sequence[ScriptedFault] = ()
    ):
        """Queue the first of the scripted faults of these workers."""
        self.workers = tuple(workers)
        self.roster = Roster.of(self.workers)
        self._index = {w.name: w.index for w in self.workers}
        self._heap: list[Entry] = []
        # entries in order, with ties as if all had been pushed before everything else
        self._faults: list[Entry] = sorted(
            ((f.seconds, _MEMBERSHIP, tie, f) for tie, f in enumerate(faults)),
            key=lambda entry: entry[:3],
        )
        self._faults_queued = 0  # the entries of `_faults` that were in the heap
        self._count = len(self._faults)  # of all events ever pushed: breaks ties
        # that are still pending
        self._scripted_joins = sum(fault.what == "join" for fault in faults)
        self._queue_fault()

    @property
    def has_scripted_joins(self) -> bool:
        """Whether a scripted fault lets a worker join later."""
        return self._scripted_joins > 0

    @property
    def has_join(self) -> bool:
        """Whether a Join is pending."""
        return any(isinstance(entry[3], Join) for entry in self._heap)

    def has_leave(self, worker: int) -> bool:
        """Whether the loss of a worker is pending."""
        events = (entry[3] for entry in self._heap)
        return any(
            isinstance(e, Leave) and e.worker == worker and e.lost for e in events
        )

    @property
    def next_time(self) -> float:
        """The time of the first event; inf without one."""
        return self._heap[0][0] if self._heap else math.inf

    @property
    def next_is_timer(self) -> bool:
        """Whether the first event is a timer."""
        return bool(self._heap) and self._heap[0][1] == _TIMER

    def save_without_arrivals(self) -> dict[str, Any]:
        """Return the state as `save` does, without the pending arrivals."""
        rest = [e for e in self._heap if not isinstance(e[3], Arrival)]
        heapq.heapify(rest)
        return {**self.save(), "_heap": rest}

    # -- adding events ---------------------------------------------------------

    def push(self, time: float, event: Event) -> None:
        """Add an event; ties between arrivals go by worker, others by insertion."""
        rank = _RANKS[type(event)]
        tie = event.worker if isinstance(event, Arrival) else self._count
        heapq.heappush(self._heap, (time, rank, tie, event))
        self._count += 1

    def _queue_fault(self) -> None:
        """Add the next scripted fault; the one before was the first event."""
        if self._faults_queued < len(self._faults):
            heapq.heappush(self._heap, self._faults[self._faults_queued])
            self._faults_queued += 1

    def push_begin(self, arrival: Arrival) -> None:
        """Add the begin of a round, which comes before all other events at its time."""
        heapq.heappush(self._heap, (arrival.start, _BEGIN, self._count, arrival))
        self._count += 1

    def set_timer(self, name: str, time: float) -> None:
        """Add a Timer event at `time` [s]."""
        self.push(time, Timer(name, time))

    def start(self, worker: int, time: float) -> None:
        """Make a worker active and add its Join."""
        check_known(worker, self.workers)
        if worker in self.roster.active:
            raise ValueError(f"worker {worker} cannot be started: it is active")
        if worker in self.roster.lost:
            raise ValueError(f"worker {worker} cannot be started: it is lost")
        join = Join(worker, time)
        self.roster = self.roster.after(join)
        self.push(time, join)

    def stop(self, worker: int, time: float) -> None:
        """Make a worker inactive and add its Leave; it finishes its current round."""
        check_known(worker, self.workers)
        if worker not in self.roster.active:
            raise ValueError(f"worker {worker} cannot be stopped: it is not active")
        leave = Leave(worker, time)
        self.roster = self.roster.after(leave)
        self.push(time, leave)

    def rejoin(self, join: Join) -> None:
        """Make a lost worker active again and add its Join."""
        self.roster = self.roster.after(join)
        self.push(join.time, join)

    def dispatch(self, worker: int) -> None:
        """Note that a worker was given a local round."""
        self.check_can_start(worker)
        self.roster = self.roster.dispatched((worker,))

    def cancel(self, worker: int) -> Arrival | None:
        """End a worker's local round without an Arrival; return the planned one."""
        check_known(worker, self.workers)
        if worker not in self.roster.working:
            name = self.workers[worker].name
            raise ValueError(
                f"worker {worker} ({name}) has no local round in flight to cancel"
            )
        self.roster = self.roster.cancelled((worker,))
        events = [entry[3] for entry in self._heap]
        planned = [e for e in events if isinstance(e, Arrival) and e.worker == worker]
        self._filter(lambda e: e[3] not in planned)
        return planned[0] if planned else None

    def discard_arrivals(self, worker: int) -> None:
        """Remove the pending arrivals of a worker whose work is lost."""
        self._filter(lambda e: not (e[1] == _ARRIVAL and e[2] == worker))

    def reschedule(self, arrivals: Sequence[Arrival]) -> None:
        """Replace the pending arrivals of these workers."""
        workers = {a.worker for a in arrivals}
        self._filter(lambda e: not (e[1] == _ARRIVAL and e[2] in workers))
        for arrival in arrivals:
            self.push(arrival.finish, arrival)

    # -- taking events ---------------------------------------------------------

    def pop(self) -> tuple[float, Event | ScriptedFault, bool]:
        """Remove the first event: (time, event, whether it is the begin of a round)."""
        time, rank, _, event = heapq.heappop(self._heap)
        if isinstance(event, Arrival) and rank == _ARRIVAL:
            self.roster = self.roster.after(event)
        elif isinstance(event, ScriptedFault):
            self._queue_fault()
        return time, event, rank == _BEGIN

    def apply_fault(self, fault: ScriptedFault, time: float) -> Event | None:
        """Apply a scripted fault and return its event; None if it changes nothing."""
        worker = self._index[fault.worker]
        if fault.what == "slow":
            return Slow(worker, time, fault.factor)
        joins = fault.what == "join"
        self._scripted_joins -= joins
        if joins != (worker in self.roster.lost):
            return None
        if joins:
            join = Join(worker, time, AS_SCRIPTED)
            self.roster = self.roster.after(join)
            return join
        return self.lose(Leave(worker, time, lost=True, why=f"killed, {AS_SCRIPTED}"))

    def skip(self, fault: ScriptedFault) -> None:
        """Skip a scripted fault without applying it."""
        self._scripted_joins -= fault.what == "join"

    def lose(self, leave: Leave) -> Leave:
        """Mark a worker as lost; of its pending events only scripted faults remain."""
        self.roster = self.roster.after(leave)
        self._filter(lambda e: not _concerns(e[3], leave.worker))
        return leave

    def index_of(self, fault: ScriptedFault) -> int:
        """Return the index of a fault's worker."""
        return self._index[fault.worker]

    def _filter(self, keep) -> None:
        self._heap = [entry for entry in self._heap if keep(entry)]
        heapq.heapify(self._heap)

    # -- checks ----------------------------------------------------------------

    def check_can_start(self, worker: int) -> None:
        """Raise a ValueError if the worker cannot be given a local round."""
        _check_at_rest(worker, self.workers, self.roster)
        if worker not in self.roster.active:
            name = self.workers[worker].name
            raise ValueError(f"worker {worker} ({name}) was stopped: start it first")


def check_members(
    action: MergeAction, workers: Sequence[WorkerInfo], roster: Roster
) -> None:
    """Raise a ValueError unless the merging workers exist and are at rest."""
    alone = MergeOp.APPLY in action.op and not moves_of(action.op).moves
    if not action.members and not alone:
        raise ValueError("a merge needs at least one member")
    for worker in action.members:
        if isinstance(worker, int):
            _check_at_rest(worker, workers, roster)


def check_known(worker: int, workers: Sequence[WorkerInfo]) -> None:
    """Raise a ValueError unless `worker` is the index of a worker."""
    if not 0 <= worker < len(workers):  # -1 would be the last one
        raise ValueError(
            f"there is no worker {worker}; they are 0 to {len(workers) - 1}"
        )


def _check_at_rest(worker: int, workers: Sequence[WorkerInfo], roster: Roster) -> None:
    check_known(worker, workers)
    if worker in roster.working:
        name = workers[worker].name
        raise ValueError(
            f"worker {worker} ({name}) has a local round in flight already"
        )


def _concerns(event: Event | ScriptedFault, worker: int) -> bool:
    """Whether this is an event of the worker, other than a scripted fault."""
    return isinstance(event, (Arrival, Join, Leave)) and event.worker == worker
