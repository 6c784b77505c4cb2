"""The real clock: events of workers that compute in threads of their own (host world).

Threads tell it what they completed, with stamps of their own, and ask it for the next
event, one at a time. The leader is the thread that began the run: it waits for what
nobody else will see, and hears all timers. The clock can be paused, for evaluations:
what completes meanwhile is delivered when its time has come, as if there had been none.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from hetjax.machine.event_queue import EventQueue
from hetjax.machine.profile import AS_SCRIPTED, ScriptedFault
from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    LocalRound,
    Merged,
    PlannedMerge,
    Slow,
    Stamps,
    WorkerInfo,
)
from hetjax.runtimes.threads.deadlines import Deadlines
from hetjax.runtimes.threads.stopwatch import Stopwatch

_LOOK_UP = 0.1  # [s] after which `wait` ends, for the caller to look at Ctrl-C


class Completion(NamedTuple):
    """What a worker's thread reports; stamps are of `time.perf_counter`."""

    worker: int
    began: float
    finished: float
    failure: str = ""  # of an exception: its traceback
    taken: float | None = None  # when the thread took the round, compiling included


@dataclass
class _UnderWay:
    """A round that a thread has."""

    local_round: LocalRound
    start: float  # [s] of the clock
    deadline: float
    stamp: float  # when it was given
    reported: bool = False  # it is done, or failed, and the loop will hear of it
    given_up: bool = False  # a pause waited for it until its deadline


class WallClock:
    """The clock of one run on real workers; `begin` sets it to 0 s.

    A worker whose thread fails, or does not answer by its deadline (see `Deadlines`),
    leaves: Leave(lost=True). One that answers late joins again; what it did is not
    asked for. Who fails while it is silent leaves once more: now it is known why.
    """

    def __init__(
        self,
        workers: Sequence[WorkerInfo],
        *,
        faults: Sequence[ScriptedFault] = (),
        on_slow: Callable[[int, float], None] = lambda worker, factor: None,
        is_compiling: Callable[[int], bool] = lambda worker: False,
    ):
        """`on_slow` carries out a scripted slowdown.

        `is_compiling(worker)`: does it do something that no deadline predicts?
        """
        self.workers = tuple(workers)
        self.now = 0.0  # [s] of the last event
        self.deadlines = Deadlines(self.workers)
        self._on_slow, self._is_compiling = on_slow, is_compiling
        self._completions: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._leader = threading.get_ident()
        self._wake = 0.0  # [s] until when the leader waits
        self._events = EventQueue(self.workers, faults)
        self._under_way: dict[int, _UnderWay] = {}
        self._silent: dict[int, _UnderWay] = {}  # lost by a deadline; may answer late
        self._watch = Stopwatch(time.perf_counter())

    @property
    def has_pending_joins(self) -> bool:
        """May somebody who is not active still come?"""
        return bool(self._silent) or self._events.has_scripted_joins

    def begin(self) -> None:
        """Time runs from now on."""
        self._watch = Stopwatch(time.perf_counter())
        self._leader = threading.get_ident()

    def time_of(self, stamp: float) -> float:
        """The clock's time [s] of a stamp; within a pause as if there were none."""
        return self._watch.time_of(stamp)

    def _time(self) -> float:
        return self.time_of(time.perf_counter())

    # -- what the loop asks for --------------------------------------------------

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """The worker has the round from now on; when it arrives nobody knows."""
        del nonzeros  # a real device takes what it takes
        self._events.dispatch(worker)
        stamp = time.perf_counter()
        start = self.time_of(stamp)
        deadline = start + self.deadlines.allowed(worker, local_round)
        self._under_way[worker] = _UnderWay(local_round, start, deadline, stamp)
        return Arrival(worker, local_round, start, math.inf)

    def carry_out(self, planned: PlannedMerge) -> Stamps:
        """Have a merge carried out, right now; seconds of compiling do not count."""
        action = planned.action
        if not action.members:
            raise ValueError("a merge needs at least one member")
        for member in action.members:
            if isinstance(member, int):
                self._events.check_at_rest(member)
        stamps, compiling = planned.run(self.now)
        if compiling > 0:
            since = max(stamps.gathered, stamps.merged - compiling)
            self._watch.add_pause(since, stamps.merged)
        done = Stamps(*map(self.time_of, stamps))
        merged = Merged(action.node, done.finish, action.members, action.op)
        self._events.push(done.finish, merged)
        return done

    def start(self, worker: int) -> None:
        """The worker takes part from now on: a Join is to come."""
        self._events.start(worker, self._time())

    def stop(self, worker: int) -> None:
        """The worker gets no more rounds: a Leave. It finishes the one that it has."""
        self._events.stop(worker, self._time())

    def set_timer(self, name: str, time: float) -> None:
        """Ask for a Timer at `time` [s], or at once where that is past."""
        if not 0 <= time < math.inf:  # also refuses NaN
            raise ValueError(f"timer {name!r} at {time} s: give a finite time")
        self._events.set_timer(name, time)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time stands still within, once everybody has finished what it does."""
        paused = time.perf_counter()
        self._await_all()
        try:
            yield
        finally:
            self._watch.add_pause(paused, time.perf_counter())

    def _await_all(self) -> None:
        """Collect completions until nobody computes, or has a deadline to come.

        Who lets that pass is lost behind the pause, which begins before: the clock
        would be back where the deadline is to come, and the next pause waits again.
        """
        self._collect()
        while True:
            late = self._late(self._time())
            waiting = {
                k: u
                for k, u in self._under_way.items()
                if not u.reported and k not in late
            }
            if not waiting:
                break
            left = max(u.deadline for u in waiting.values()) - self._time()
            with suppress(queue.Empty):
                left = min(max(left, 0.0), _LOOK_UP)
                self._take(self._completions.get(timeout=left))
        for worker in late:
            self._under_way[worker].given_up = True

    # -- threads and their leader --------------------------------------------------

    def completed(self, completion: Completion) -> None:
        """A worker's thread reports (from that thread)."""
        self._completions.put(completion)

    @property
    def left(self) -> float:
        """Seconds until those who compute are usually done."""
        self._collect()
        ends = [
            u.start + self.deadlines.usual(k, u.local_round)
            for k, u in self._under_way.items()
            if not u.reported
        ]
        return max(0.0, max(ends, default=0.0) - self._time())

    @property
    def has_news(self) -> bool:
        """Did a thread report what `next` has not looked at?"""
        return not self._completions.empty()

    def wait(self) -> None:
        """The leader: until somebody calls, something is due, or for a moment."""
        with suppress(queue.Empty):
            self._calls.get(timeout=max(0.0, self._wake - self._time()))

    def call(self, urgent: bool = False) -> None:
        """A follower: what is due before `wait` ends is for the leader to see to."""
        if urgent or self._events.next_time < self._wake:
            self._wake = -math.inf  # one call is enough
            self._calls.put(None)

    def rest(self) -> None:
        """The leader, before `wait`: settle until when."""
        until = self._time() + _LOOK_UP
        self._wake = min(until, self._events.next_time, self._first_deadline())

    def _first_deadline(self) -> float:
        waited_for = (u.deadline for u in self._under_way.values() if not u.reported)
        return min(waited_for, default=math.inf)

    # -- what happened ---------------------------------------------------------------

    def next(self) -> Event | None:
        """The earliest event whose time has come; None if there is none now.

        A deadline that passed before it comes first, or a silent worker would never be
        missed while the others always have something due. A timer, which may have the
        model evaluated, and with it what comes behind it, is for the leader.
        """
        self._collect()
        event = None
        now = self._time()
        if self._first_deadline() <= min(now, self._events.next_time):
            event = self._miss(now)
        event = event or self._due() or self._miss(self._time())
        if event is not None:
            self.now = max(self.now, event.time)
        return event

    def _due(self) -> Event | None:
        """The first event of the queue, if it is time for it."""
        while self._events.next_time <= self._time():
            if self._events.next_is_timer and threading.get_ident() != self._leader:
                return None
            seconds, event, _ = self._events.pop()
            if isinstance(event, ScriptedFault):
                event = self._occur(event, seconds)
            elif isinstance(event, Arrival):
                del self._under_way[event.worker]
            elif isinstance(event, Leave) and event.lost:
                self._lose(event)
            if event is not None:
                return event
        return None

    def _occur(self, fault: ScriptedFault, seconds: float) -> Event | None:
        """A scripted fault, as the event that it leads to."""
        worker = self._events.index_of(fault)
        silent = worker in self._silent
        if fault.what == "kill" and silent:  # if it answers, nobody listens
            del self._silent[worker]
            why = f"killed, {AS_SCRIPTED}"
            return self._lose(Leave(worker, seconds, lost=True, why=why))
        if fault.what == "join" and silent:  # it may answer: then it joins
            self._events.pass_over(fault)
            return None
        event = self._events.occur(fault, seconds)
        if isinstance(event, Slow):
            self._on_slow(worker, event.factor)
        elif isinstance(event, Leave):
            self._under_way.pop(worker, None)
        return event

    def _lose(self, leave: Leave) -> Leave:
        """Nothing of this worker is under way, or to come."""
        self._under_way.pop(leave.worker, None)
        return self._events.lose(leave)

    def _miss(self, now: float) -> Event | None:
        """The Leave of a worker that has not answered by its deadline."""
        for worker in self._late(now):
            under_way = self._under_way[worker]
            why = f"no answer for {time.perf_counter() - under_way.stamp:.3g} s"
            self._silent[worker] = under_way
            return self._lose(Leave(worker, now, lost=True, why=why))
        return None

    def _late(self, now: float) -> list[int]:
        """Who has not answered by its deadline; who compiles is given more time."""
        late = []
        for worker, under_way in self._under_way.items():
            on_time = under_way.deadline > now and not under_way.given_up
            if on_time or under_way.reported:
                continue
            if self._is_compiling(worker):
                under_way.deadline = now + (under_way.deadline - under_way.start)
                under_way.given_up = False
                continue
            late.append(worker)
        return late

    def _collect(self) -> None:
        """Everything that was completed, into the queue of events."""
        while not self._completions.empty():
            self._take(self._completions.get())

    def _take(self, completion: Completion) -> None:
        worker, failure = completion.worker, completion.failure
        under_way = self._silent.get(worker) or self._under_way.get(worker)
        # of somebody who was killed meanwhile, and may have a new round by now
        taken = completion.began if completion.taken is None else completion.taken
        if under_way is None or taken < under_way.stamp:
            return
        began = self.time_of(completion.began)
        # what it does, it does in a pause as well
        finished = began + completion.finished - completion.began
        if worker in self._silent:
            del self._silent[worker]
            if failure:  # that it is lost is known, but not why
                self._events.push(finished, Leave(worker, finished, True, failure))
                return
            self.deadlines.doubled(worker)
            why = f"answered after {completion.finished - under_way.stamp:.3g} s"
            self._events.rejoin(Join(worker, finished, why))
            return
        self.deadlines.observe(worker, under_way.local_round, finished - began)
        under_way.reported = True
        if failure:
            self._events.push(finished, Leave(worker, finished, True, failure))
            return
        arrival = Arrival(worker, under_way.local_round, began, finished)
        self._events.push(finished, arrival)
