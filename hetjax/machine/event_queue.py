"""Coming events in order: what the simulated and the wall clock have in common (host).

A heap by time; at one and the same time by kind, then by worker or by number. It knows
who takes part (the `Roster`), carries out what a machine's script says, and drops what
a lost worker had coming.
"""

import heapq
import math
from collections.abc import Sequence

from hetjax.machine.faults import AS_SCRIPTED, ScriptedFault
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    Merged,
    Slow,
    Timer,
    WorkerInfo,
)

# What comes first at one and the same time: a merge's result is visible to whoever
# arrives just then, and a timer sees everything that happened.
_BEGIN, _MERGED, _MEMBERSHIP, _ARRIVAL, _TIMER = range(-1, 4)
_RANKS: dict[type, int] = {
    Merged: _MERGED,
    Join: _MEMBERSHIP,
    Leave: _MEMBERSHIP,
    ScriptedFault: _MEMBERSHIP,
    Arrival: _ARRIVAL,
    Timer: _TIMER,
}
Entry = tuple[float, int, int, Event | ScriptedFault]  # time, rank, tie, what


class EventQueue:
    """The events of one run that are to come, and who takes part now."""

    def __init__(
        self, workers: Sequence[WorkerInfo], faults: Sequence[ScriptedFault] = ()
    ):
        """With the script of what happens to these workers."""
        self.workers = tuple(workers)
        self.roster = Roster.of(self.workers)
        self._index = {w.name: w.index for w in self.workers}
        self._heap: list[Entry] = []
        self._count = 0  # of all that was pushed: breaks ties
        self._scripted_joins = 0  # to come
        for fault in faults:
            self.push(fault.seconds, fault)
            self._scripted_joins += fault.what == "join"

    @property
    def has_scripted_joins(self) -> bool:
        """Does the script let somebody join later?"""
        return self._scripted_joins > 0

    @property
    def next_time(self) -> float:
        """When the first event comes; inf if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    @property
    def next_is_timer(self) -> bool:
        """Is the first event a timer?"""
        return bool(self._heap) and self._heap[0][1] == _TIMER

    # -- what is to come -------------------------------------------------------

    def push(self, time: float, event: Event | ScriptedFault) -> None:
        """An event is to come; arrivals of one time come by worker, others in turn."""
        rank = _RANKS[type(event)]
        tie = event.worker if isinstance(event, Arrival) else self._count
        heapq.heappush(self._heap, (time, rank, tie, event))
        self._count += 1

    def push_begin(self, arrival: Arrival) -> None:
        """A round is to begin, before all else at its time; it is popped by itself."""
        heapq.heappush(self._heap, (arrival.start, _BEGIN, self._count, arrival))
        self._count += 1

    def set_timer(self, name: str, time: float) -> None:
        """Ask for a Timer at `time` [s]."""
        self.push(time, Timer(name, time))

    def start(self, worker: int, time: float) -> None:
        """A worker takes part from `time` on: a Join is to come."""
        self.check_known(worker)
        if worker in self.roster.active:
            raise ValueError(f"worker {worker} cannot be started: it is active")
        if worker in self.roster.lost:
            raise ValueError(f"worker {worker} cannot be started: it is lost")
        join = Join(worker, time)
        self.roster = self.roster.after(join)
        self.push(time, join)

    def stop(self, worker: int, time: float) -> None:
        """A worker gets no more rounds: a Leave is to come. It finishes what it has."""
        self.check_known(worker)
        if worker not in self.roster.active:
            raise ValueError(f"worker {worker} cannot be stopped: it is not active")
        leave = Leave(worker, time)
        self.roster = self.roster.after(leave)
        self.push(time, leave)

    def rejoin(self, join: Join) -> None:
        """A worker that was lost comes back by itself: a Join is to come."""
        self.roster = self.roster.after(join)
        self.push(join.time, join)

    def dispatch(self, worker: int) -> None:
        """A worker is given a local round."""
        self.check_can_start(worker)
        self.roster = self.roster.dispatched((worker,))

    def reschedule(self, arrivals: Sequence[Arrival]) -> None:
        """These workers arrive at other times than was expected."""
        workers = {a.worker for a in arrivals}
        self._keep(lambda e: not (e[1] == _ARRIVAL and e[2] in workers))
        for arrival in arrivals:
            self.push(arrival.finish, arrival)

    # -- what happens ----------------------------------------------------------

    def pop(self) -> tuple[float, Event | ScriptedFault, bool]:
        """(time, what comes first, is it the begin of a round?)."""
        time, rank, _, event = heapq.heappop(self._heap)
        if isinstance(event, Arrival) and rank == _ARRIVAL:
            self.roster = self.roster.after(event)
        return time, event, rank == _BEGIN

    def occur(self, fault: ScriptedFault, time: float) -> Event | None:
        """What a scripted fault leads to; nothing where it changes nothing."""
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

    def pass_over(self, fault: ScriptedFault) -> None:
        """A scripted fault leads to nothing."""
        self._scripted_joins -= fault.what == "join"

    def lose(self, leave: Leave) -> Leave:
        """A worker is lost: nothing of it is to come any more but its script."""
        self.roster = self.roster.after(leave)
        self._keep(lambda e: not _is_of(e[3], leave.worker))
        return leave

    def index_of(self, fault: ScriptedFault) -> int:
        """The number of a fault's worker."""
        return self._index[fault.worker]

    def _keep(self, wanted) -> None:
        self._heap = [entry for entry in self._heap if wanted(entry)]
        heapq.heapify(self._heap)

    # -- checks ----------------------------------------------------------------

    def check_known(self, worker: int) -> None:
        """A ValueError for a number that is no worker's."""
        if not 0 <= worker < len(self.workers):  # -1 would be the last one
            raise ValueError(
                f"there is no worker {worker}; they are 0 to {len(self.workers) - 1}"
            )

    def check_can_start(self, worker: int) -> None:
        """A ValueError for a worker that cannot be given a local round."""
        self.check_at_rest(worker)
        if worker not in self.roster.active:
            name = self.workers[worker].name
            raise ValueError(f"worker {worker} ({name}) was stopped: start it first")

    def check_at_rest(self, worker: int) -> None:
        """A ValueError for a worker that is at work."""
        self.check_known(worker)
        if worker in self.roster.working:
            name = self.workers[worker].name
            raise ValueError(
                f"worker {worker} ({name}) has a local round in flight already"
            )


def _is_of(event: Event | ScriptedFault, worker: int) -> bool:
    """Is this event one of a worker's, and not of its script?"""
    return isinstance(event, Arrival | Join | Leave) and event.worker == worker
