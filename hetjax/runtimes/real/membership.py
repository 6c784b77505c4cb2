"""Membership: how workers of a real run are lost and join again (host world).

It serves the reports of other threads that a worker vanished or appeared, and continued
runs. The wall clock handles missed deadlines and scripted faults.
"""

from collections.abc import Callable

from hetjax.machine.event_queue import EventQueue
from hetjax.machine.types import Join, Leave
from hetjax.runtimes.real.rounds_in_flight import RoundsInFlight
from hetjax.runtimes.real.worker_reports import Appeared, Vanished

CUT_OFF = "its local round was interrupted with the run"
NEW_THREAD = "the run continues with a new thread"


class Membership:
    """Puts the Leave and Join events of lost and returning workers into the queue."""

    def __init__(
        self,
        events: EventQueue,
        rounds: RoundsInFlight,
        time: Callable[[], float],
    ):
        """`time()` is the clock's time [s]."""
        self._events, self._rounds, self._time = events, rounds, time
        # workers of a continued run that have new threads and will join again
        self._returning: set[int] = set()
        # reports by worker that wait for its pending loss: a Leave removes the pending
        # events of its worker
        self._deferred: dict[int, list[Vanished | Appeared]] = {}

    @property
    def has_returning(self) -> bool:
        """Whether a worker of a continued run has yet to join again."""
        return bool(self._returning)

    def rejoin(self, worker: int, time: float) -> None:
        """Let a lost worker of a continued run join with a new thread."""
        self._returning.add(worker)
        self._events.rejoin(Join(worker, time, NEW_THREAD))

    def cut_off(self, worker: int, time: float) -> None:
        """Lose the round that a worker had when the run was interrupted."""
        self._returning.add(worker)
        self._events.push(time, Leave(worker, time, lost=True, why=CUT_OFF))

    def joined(self, worker: int) -> None:
        """Note that a worker's Join was delivered."""
        self._returning.discard(worker)

    def lose(self, leave: Leave) -> Leave:
        """Discard a lost worker's round and pending events."""
        self._rounds.begun.pop(leave.worker, None)
        leave = self._events.lose(leave)
        if leave.worker in self._returning:
            self._events.rejoin(Join(leave.worker, leave.time, NEW_THREAD))
        for report in self._deferred.pop(leave.worker, ()):
            self.receive(report)
        return leave

    def receive(self, report: Vanished | Appeared) -> None:
        """Handle a report, or defer it until the worker's pending loss."""
        if isinstance(report, Vanished):
            self._receive_loss(report)
        elif report.worker not in self._events.roster.lost or self._events.has_leave(
            report.worker
        ):
            self._deferred.setdefault(report.worker, []).append(report)
        else:
            self._adopt(report)

    def _receive_loss(self, vanished: Vanished) -> None:
        worker, why, again = vanished
        deferred = self._deferred.setdefault(worker, [])
        # it did not appear after all
        deferred[:] = [r for r in deferred if isinstance(r, Vanished)]
        if self._events.has_leave(worker):
            if again:
                deferred.append(vanished)
            return
        if worker in self._events.roster.lost and not again:
            return
        self._rounds.unresponsive.pop(worker, None)
        if worker in self._rounds.awaited:  # its round will not be reported
            self._rounds.awaited[worker].reported = True
        self._events.discard_arrivals(worker)  # of a round that was reported before
        time = self._time()
        self._events.push(time, Leave(worker, time, True, why))

    def _adopt(self, appeared: Appeared) -> None:
        worker, why, adopt = appeared
        adopt()
        self._rounds.unresponsive.pop(worker, None)
        self._rounds.deadlines.discard(worker)
        self._events.rejoin(Join(worker, self._time(), why))
