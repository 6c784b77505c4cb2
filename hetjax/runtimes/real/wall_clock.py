"""The wall clock: events of real workers, each with a thread of its own (host world).

Threads report completed rounds with their own time stamps, and take turns asking for
the next event. The leader is the thread that began the run: it waits while no other
thread takes turns, and it alone receives timers. The clock can be paused for
evaluations: rounds that complete during a pause are delivered at their own times.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from hetjax.machine.event_queue import EventQueue, check_members
from hetjax.machine.faults import AS_SCRIPTED, ScriptedFault
from hetjax.machine.merge_times import MergeRequest, MergeTimes, PlannedMerge, Stamps
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    Merged,
    Slow,
    WorkerInfo,
)
from hetjax.runtimes.real.deadlines import ALLOWANCE
from hetjax.runtimes.real.membership import Membership
from hetjax.runtimes.real.rounds_in_flight import RoundsInFlight
from hetjax.runtimes.real.stopwatch import Stopwatch
from hetjax.runtimes.real.worker_reports import Appeared, Completion, Vanished

_LONGEST_WAIT = 0.1  # [s] of `wait`, so that the caller sees Ctrl-C


class WallClock:
    """The clock of one run on real workers; `begin` sets it to 0 s.

    A worker whose thread fails, or does not answer by its deadline (see `Deadlines`),
    leaves: Leave(lost=True). A worker that answers after its deadline joins again, and
    the result of that round is discarded. An unresponsive worker that fails leaves a
    second time, with the reason.
    """

    def __init__(
        self,
        workers: Sequence[WorkerInfo],
        *,
        faults: Sequence[ScriptedFault] = (),
        on_slow: Callable[[int, float], None] = lambda worker, factor: None,
        is_compiling: Callable[[int], bool] = lambda worker: False,
        may_appear: Callable[[], bool] = lambda: False,
        allowance: float = ALLOWANCE,
    ):
        """`on_slow(worker, factor)` carries out a scripted slowdown.

        `is_compiling(worker)`: whether its deadline must wait; `may_appear()`: whether
        an Appeared may still be reported; `allowance` [s] is added to all deadlines.
        """
        self.workers = tuple(workers)
        self.now = 0.0  # [s] of the last event
        self._on_slow, self._may_appear = on_slow, may_appear
        # not SimpleQueue: if a signal is handled when the timeout is over, its `get`
        # waits forever (CPython 3.11 to 3.13)
        self._reports: queue.Queue[Completion | Vanished | Appeared] = queue.Queue()
        self._wake_calls: queue.Queue[None] = queue.Queue()
        self._leader = threading.get_ident()
        self._wait_until = 0.0  # [s] at which the leader's wait ends
        self._factors: dict[int, float] = {}  # from scripted "slow" faults
        self._events = EventQueue(self.workers, faults)
        self._rounds = RoundsInFlight(self.workers, is_compiling, allowance)
        self._membership = Membership(self._events, self._rounds, self._time)
        self._stopwatch = Stopwatch(time.perf_counter())

    @property
    def roster(self) -> Roster:
        """Which workers are active, working, or lost."""
        return self._events.roster

    @property
    def has_pending_joins(self) -> bool:
        """Whether an inactive worker may still join."""
        return bool(
            self._rounds.unresponsive
            or self._membership.has_returning
            or self._events.has_scripted_joins
            or self._may_appear()
            or self._events.has_join
        )

    def begin(self) -> None:
        """Start the clock."""
        self._stopwatch = Stopwatch(time.perf_counter() - self.now)
        self._leader = threading.get_ident()

    def save(self) -> dict[str, Any]:
        """Return the time, the events, and the workers whose answers are awaited."""
        self._collect()
        return {
            "now": self.now,  # `_time()` may include waiting for the disk
            # completed rounds arrive in the continued run with their outcomes
            "events": self._events.save_without_arrivals(),
            "silent": sorted(self._rounds.unresponsive),
            "factors": self._factors,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self.now = saved["now"]
        self._events.load(saved["events"])
        for worker, factor in saved["factors"].items():
            self._factors[worker] = factor
            self._on_slow(worker, factor)
        for worker in saved["silent"]:  # its thread hung in the earlier process
            self._membership.rejoin(worker, self.now)

    def start_at(self, time: float) -> None:
        """Start at `time` [s]."""
        self.now = time

    def resume_round(self, worker: int, arrival: Arrival | None) -> None:
        """Let a round that was in flight arrive, or lose it without an arrival."""
        if arrival is not None:
            self._events.push(arrival.finish, arrival)
        else:
            self._membership.cut_off(worker, self.now)

    def time_of(self, stamp: float) -> float:
        """Return the clock's time [s] at a stamp; pauses do not count."""
        return self._stopwatch.time_of(stamp)

    def _time(self) -> float:
        return self.time_of(time.perf_counter())

    # -- requests of the loop ----------------------------------------------------

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Begin a worker's round; the time of its arrival is unknown."""
        del nonzeros  # the time is measured
        self._events.dispatch(worker)
        stamp = time.perf_counter()
        start = self.time_of(stamp)
        self._rounds.begin(worker, local_round, start, stamp)
        return Arrival(worker, local_round, start, math.inf)

    def cancel(self, worker: int) -> None:
        """End a worker's round; what its thread still reports about it is ignored."""
        self._events.cancel(worker)
        self._rounds.begun.pop(worker, None)

    def plan(self, merge: MergeRequest) -> PlannedMerge:
        """Plan a merge for now; its duration is measured."""
        check_members(merge.action, self.workers, self.roster)
        return PlannedMerge(self.now)

    def merged(self, action: MergeAction, times: MergeTimes) -> Stamps:
        """Return the times of a merge; seconds of compiling do not count."""
        stamps, compiling = times
        if compiling > 0:
            since = max(stamps.gathered, stamps.merged - compiling)
            self._stopwatch.add_pause(since, stamps.merged)
        done = Stamps(*map(self.time_of, stamps))
        merged = Merged(action.node, done.finish, action.members, action.op)
        self._events.push(done.finish, merged)
        for member in action.members:  # rounds that were launched behind the merge
            if member in self._rounds.begun:
                self._rounds.begun[member].begins_after = done.finish
        return done

    def start(self, worker: int) -> None:
        """Make a worker active from now on; a Join follows."""
        self._events.start(worker, self._time())

    def stop(self, worker: int) -> None:
        """Make a worker inactive after its current round; a Leave follows."""
        self._events.stop(worker, self._time())

    def set_timer(self, name: str, time: float) -> None:
        """Request a Timer at `time` [s], or at once if that is past."""
        if not 0 <= time < math.inf:  # also refuses NaN
            raise ValueError(f"timer {name!r} at {time} s: pass a finite time")
        self._events.set_timer(name, time)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop time within the block, and wait for all rounds in flight first."""
        paused = time.perf_counter()
        self._await_all()
        try:
            yield
        finally:
            self._stopwatch.add_pause(paused, time.perf_counter())

    def _await_all(self) -> None:
        """Collect completions until every round is done or past its deadline.

        Overdue workers are abandoned: the clock stops before this wait, so that their
        deadlines lie in its future and the next pause would wait for them again.
        """
        self._collect()
        while True:
            overdue = self._rounds.overdue(self._time())
            awaited = self._rounds.awaited.items()
            deadlines = [r.deadline for k, r in awaited if k not in overdue]
            if not deadlines:
                break
            left = min(max(max(deadlines) - self._time(), 0.0), _LONGEST_WAIT)
            with suppress(queue.Empty):
                self._receive(self._reports.get(timeout=left))
        for worker in overdue:
            self._rounds.abandon(worker)

    # -- threads and their leader --------------------------------------------------

    def report(self, report: Completion | Vanished | Appeared) -> None:
        """Report about a worker; called from any thread."""
        self._reports.put(report)

    @property
    def seconds_left(self) -> float:
        """Seconds until the rounds in flight are usually done."""
        self._collect()
        return self._rounds.seconds_left(self._time())

    @property
    def has_reports(self) -> bool:
        """Whether there is a report that `next` has not handled."""
        return not self._reports.empty()

    def wait(self) -> None:
        """Let the leader wait for a call, for an event that is due, or for a moment."""
        with suppress(queue.Empty):
            self._wake_calls.get(timeout=max(0.0, self._wait_until - self._time()))

    def wake_leader(self, urgent: bool = False) -> None:
        """Wake the leader if an event is due before its `wait` ends."""
        if urgent or self._events.next_time < self._wait_until:
            self._wait_until = -math.inf  # one call suffices
            self._wake_calls.put(None)

    def prepare_wait(self) -> None:
        """Set the time at which the leader's next `wait` ends."""
        until = self._time() + _LONGEST_WAIT
        self._wait_until = min(
            until, self._events.next_time, self._rounds.first_deadline
        )

    # -- events ----------------------------------------------------------------------

    def next(self) -> Event | None:
        """Return the earliest event that is due; None without one.

        A deadline that passed before that event comes first: otherwise an overdue
        worker would go unnoticed while other workers always have an event due. Only the
        leader gets timers and the events after them: a timer may cause an evaluation.
        """
        self._collect()
        event = None
        now = self._time()
        if self._rounds.may_be_overdue(min(now, self._events.next_time)):
            event = self._lose_overdue(now)
        event = event or self._next_due() or self._lose_overdue(self._time())
        if event is not None:
            self.now = max(self.now, event.time)
        return event

    def _next_due(self) -> Event | None:
        while self._events.next_time <= self._time():
            if self._events.next_is_timer and threading.get_ident() != self._leader:
                return None
            seconds, event, _ = self._events.pop()
            if isinstance(event, ScriptedFault):
                event = self._apply_fault(event, seconds)
            elif isinstance(event, Arrival):
                self._rounds.begun.pop(event.worker, None)
            elif isinstance(event, Leave) and event.lost:
                self._membership.lose(event)
            elif isinstance(event, Join):
                self._membership.joined(event.worker)
            if event is not None:
                return event
        return None

    def _apply_fault(self, fault: ScriptedFault, seconds: float) -> Event | None:
        worker = self._events.index_of(fault)
        unresponsive = worker in self._rounds.unresponsive
        if fault.what == "kill" and unresponsive:  # its answer will be ignored
            del self._rounds.unresponsive[worker]
            why = f"killed, {AS_SCRIPTED}"
            return self._membership.lose(Leave(worker, seconds, lost=True, why=why))
        if fault.what == "join" and unresponsive:  # it joins when it answers
            self._events.skip(fault)
            return None
        event = self._events.apply_fault(fault, seconds)
        if isinstance(event, Slow):
            self._factors[worker] = event.factor
            self._on_slow(worker, event.factor)
        elif isinstance(event, Leave):
            self._rounds.begun.pop(worker, None)
        return event

    def _lose_overdue(self, now: float) -> Event | None:
        if not self._rounds.may_be_overdue(now):
            return None
        for worker in self._rounds.overdue(now):
            round_ = self._rounds.begun.pop(worker)
            self._rounds.unresponsive[worker] = round_
            why = f"no answer for {time.perf_counter() - round_.stamp:.3g} s"
            return self._membership.lose(Leave(worker, now, lost=True, why=why))
        return None

    def _collect(self) -> None:
        while not self._reports.empty():
            self._receive(self._reports.get_nowait())

    def _receive(self, report: Completion | Vanished | Appeared) -> None:
        if not isinstance(report, Completion):
            self._membership.receive(report)
            return
        completion, worker, failure = report, report.worker, report.failure
        rounds = self._rounds
        round_ = rounds.unresponsive.get(worker) or rounds.begun.get(worker)
        received = completion.received or completion.began
        # otherwise it was killed in the meantime, and may have a new round
        if round_ is None or received < round_.stamp or round_.reported:
            return
        began = self.time_of(completion.began)
        # a pause does not shorten a round that ends within it
        finished = began + completion.finished - completion.began
        # a merge before it may have been seen to be done later than it was
        began = max(began, round_.begins_after)
        finished = max(finished, began)
        if worker in rounds.unresponsive:
            del rounds.unresponsive[worker]
            if failure:  # it is lost already: report the reason
                self._events.push(finished, Leave(worker, finished, True, failure))
                return
            rounds.deadlines.double(worker)
            why = f"answered after {completion.finished - round_.stamp:.3g} s"
            self._events.rejoin(Join(worker, finished, why))
            return
        waited = completion.waited or finished - began
        rounds.deadlines.observe(worker, round_.local_round, waited)
        round_.reported = True
        event = Arrival(worker, round_.local_round, began, finished)
        if failure:
            event = Leave(worker, finished, True, failure)
        self._events.push(finished, event)
