"""The real clock: events of workers that compute in threads of their own (host world).

Threads tell it what they completed, with stamps of their own, and ask it for the next
event: one at a time. The thread that began the run is at home: it waits for what nobody
else will see, and hears all alarms. The clock can be paused, for evaluations: what
completes meanwhile is delivered when its time has come, as if there had been no pause.
"""

import bisect
import heapq
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from hetjax.machine.clock import Stamps, Transfer
from hetjax.machine.patience import Patience
from hetjax.machine.profile import AS_SCRIPTED, Incident
from hetjax.machine.types import (
    Alarm,
    Arrival,
    Event,
    Join,
    Leave,
    Merged,
    MergeOrder,
    Slow,
    Work,
    WorkerInfo,
)

_MERGED, _STAFF, _ARRIVAL, _ALARM = range(4)  # the order at one and the same time
_LOOK_UP = 0.1  # [s] after which `wait` ends, for the caller to look at Ctrl-C


class Completion(NamedTuple):
    """What a worker's thread reports; stamps are of `time.perf_counter`."""

    worker: int
    began: float
    finished: float
    failure: str = ""  # of an exception: its traceback
    taken: float | None = None  # when the thread took the work, compiling included


@dataclass
class _UnderWay:
    """A work that a thread has."""

    work: Work
    start: float  # [s] of the clock
    deadline: float
    stamp: float  # when it was given
    reported: bool = False  # it is done, or failed, and the loop will hear of it
    given_up: bool = False  # a pause waited for it until its deadline


class WallClock:
    """The clock of one run on real workers; `begin` sets it to 0 s.

    A worker whose thread fails, or does not answer by its deadline (see `Patience`),
    leaves: Leave(lost=True). One that answers late joins again; what it did is not
    asked for. Who fails while it is silent leaves once more: now it is known why.
    """

    def __init__(
        self,
        workers: Sequence[WorkerInfo],
        *,
        incidents: Sequence[Incident] = (),
        on_slow: Callable[[int, float], None] = lambda worker, factor: None,
        is_excused: Callable[[int], bool] = lambda worker: False,
    ):
        """`on_slow` carries out a scripted slowdown.

        `is_excused(worker)`: does it do something that no deadline foresees, such as
        compiling?
        """
        self.workers = tuple(workers)
        self.now = 0.0  # [s] of the last event
        self.patience = Patience(self.workers)
        self._on_slow, self._is_excused = on_slow, is_excused
        self._completions: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._home = threading.get_ident()
        self._wake = 0.0  # [s] until when the thread at home waits
        self._heap: list[tuple[float, int, int, Event | Incident]] = []
        self._count = 0
        self._there = {w.index for w in self.workers if w.present}
        # who cannot be started: not there yet, or lost
        self._absent = {w.index for w in self.workers if not w.present}
        self._under_way: dict[int, _UnderWay] = {}
        self._silent: dict[int, _UnderWay] = {}  # lost by a deadline; may answer late
        self._origin = time.perf_counter()
        self._resumed: list[float] = []  # stamps: ends of the pauses
        self._paused = [0.0]  # [s] of all pauses before each of them, and in all
        self._joins = 0  # scripted, to come
        index = {w.name: w.index for w in self.workers}
        for incident in incidents:
            self._push(incident.seconds, _STAFF, incident)
            self._joins += incident.what == "join"
        self._index = index

    @property
    def expects(self) -> bool:
        """May somebody who is not there still come?"""
        return bool(self._silent) or self._joins > 0

    def begin(self) -> None:
        """Time runs from now on."""
        self._origin = time.perf_counter()
        self._resumed, self._paused = [], [0.0]
        self._home = threading.get_ident()

    def time_of(self, stamp: float) -> float:
        """The clock's time [s] of a stamp; within a pause as if there were none."""
        pauses = bisect.bisect_right(self._resumed, stamp)
        return stamp - self._origin - self._paused[pauses]

    def _time(self) -> float:
        return self.time_of(time.perf_counter())

    # -- what the loop orders -------------------------------------------------

    def dispatch(self, worker: int, work: Work, nonzeros: Sequence[int]) -> Arrival:
        """The worker has the work from now on; when it arrives nobody knows."""
        del nonzeros
        self._check_at_rest(worker)
        if worker not in self._there:
            name = self.workers[worker].name
            raise ValueError(f"worker {worker} ({name}) is not there: start it first")
        stamp = time.perf_counter()
        start = self.time_of(stamp)
        deadline = start + self.patience.allowed(worker, work)
        self._under_way[worker] = _UnderWay(work, start, deadline, stamp)
        return Arrival(worker, work, start, math.inf)

    def merge(
        self, order: MergeOrder, num_bytes: float, seconds: float = 0.0
    ) -> Transfer:
        """A merge is carried out right after this; its times are known behind it."""
        del num_bytes, seconds
        if not order.members:
            raise ValueError("a merge needs at least one member")
        for member in order.members:
            if isinstance(member, int):
                self._check_at_rest(member)
        return Transfer(self.now, self.now)

    def merged(
        self,
        order: MergeOrder,
        transfer: Transfer,
        stamps: Stamps | None = None,
        compiling: float = 0.0,
    ) -> Stamps:
        """The merge took place so; seconds of compiling in it do not count."""
        del transfer
        assert stamps is not None, "a real merge is stamped"
        if compiling > 0:
            since = max(stamps.gathered, stamps.merged - compiling)
            self._add_pause(since, stamps.merged)
        start, gathered, merged, finish = map(self.time_of, stamps)
        done = Stamps(start, gathered, merged, finish)
        self._push(finish, _MERGED, Merged(order.node, finish, order.members, order.op))
        return done

    def start(self, worker: int) -> None:
        """The worker is there from now on: a Join."""
        if worker in self._there:
            raise ValueError(f"worker {worker} cannot be started: it is there")
        if worker in self._absent:
            raise ValueError(f"worker {worker} cannot be started: it is lost")
        self._there.add(worker)
        now = self._time()
        self._push(now, _STAFF, Join(worker, now))

    def stop(self, worker: int) -> None:
        """The worker gets no more work: a Leave. What it does now it finishes."""
        if worker not in self._there:
            raise ValueError(f"worker {worker} cannot be stopped: it is not there")
        self._there.remove(worker)
        now = self._time()
        self._push(now, _STAFF, Leave(worker, now))

    def set_alarm(self, name: str, time: float) -> None:
        """Asks for an Alarm at `time` [s], or at once where that is past."""
        if not 0 <= time < math.inf:  # also refuses NaN
            raise ValueError(f"alarm {name!r} at {time} s: give a finite time")
        self._push(time, _ALARM, Alarm(name, time))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time stands still within, once everybody has finished what it does."""
        paused = time.perf_counter()
        self._await_all()
        try:
            yield
        finally:
            self._add_pause(paused, time.perf_counter())

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

    def _add_pause(self, since: float, until: float) -> None:
        """What lies between these stamps was a pause."""
        self._resumed.append(until)
        self._paused.append(self._paused[-1] + until - since)

    # -- what happened --------------------------------------------------------

    def completed(self, completion: Completion) -> None:
        """A worker's thread reports (from that thread)."""
        self._completions.put(completion)

    @property
    def left(self) -> float:
        """Seconds until those who compute are usually done."""
        self._collect()
        ends = [
            u.start + self.patience.usual(k, u.work)
            for k, u in self._under_way.items()
            if not u.reported
        ]
        return max(0.0, max(ends, default=0.0) - self._time())

    @property
    def has_news(self) -> bool:
        """Did a thread report what `next` has not looked at?"""
        return not self._completions.empty()

    def next(self) -> Event | None:
        """The earliest event whose time has come; None if there is none now.

        An alarm, which may have the model evaluated, and with it what comes behind it,
        is for the thread at home.
        """
        self._collect()
        event = self._due()
        if event is not None:
            self.now = max(self.now, event.time)
        return event

    def wait(self) -> None:
        """At home: until somebody calls, something is due, or for a moment."""
        with suppress(queue.Empty):
            self._calls.get(timeout=max(0.0, self._wake - self._time()))

    def call(self, urgent: bool = False) -> None:
        """From elsewhere: what is due before `wait` ends is to be seen to at home."""
        if urgent or (self._heap and self._heap[0][0] < self._wake):
            self._wake = -math.inf  # one call is enough
            self._calls.put(None)

    def rest(self) -> None:
        """At home, before `wait`: settle until when."""
        until = self._time() + _LOOK_UP
        self._wake = min([until, *(e[0] for e in self._heap[:1]), *self._deadlines()])

    def _deadlines(self) -> list[float]:
        return [u.deadline for u in self._under_way.values() if not u.reported]

    def _due(self) -> Event | None:
        """The first event on the heap, if it is time for it; else who is overdue."""
        while self._heap and self._heap[0][0] <= self._time():
            if self._heap[0][1] == _ALARM and threading.get_ident() != self._home:
                return None
            seconds, _, _, event = heapq.heappop(self._heap)
            if isinstance(event, Incident):
                event = self._carry_out(event, seconds)
            if isinstance(event, Arrival):
                del self._under_way[event.worker]
            if isinstance(event, Leave) and event.lost:
                self._lose(event.worker)
            if event is not None:
                return event
        return self._overdue()

    def _carry_out(self, incident: Incident, seconds: float) -> Event | None:
        """A scripted incident, as the event that it leads to."""
        worker = self._index[incident.worker]
        if incident.what == "slow":
            self._on_slow(worker, incident.factor)
            return Slow(worker, seconds, incident.factor)
        if incident.what == "join":
            self._joins -= 1
            if worker not in self._absent or worker in self._silent:
                return None
            self._come(worker)
            return Join(worker, seconds, AS_SCRIPTED)
        silent = self._silent.pop(worker, None)  # if it answers, nobody listens
        if worker in self._absent and not silent:
            return None
        return Leave(worker, seconds, lost=True, why=f"killed, {AS_SCRIPTED}")

    def _come(self, worker: int) -> None:
        self._absent.remove(worker)
        self._there.add(worker)

    def _lose(self, worker: int) -> None:
        """Nothing of this worker is under way, or to come."""
        self._absent.add(worker)
        self._there.discard(worker)
        self._under_way.pop(worker, None)
        self._heap = [e for e in self._heap if not _is_of(e[3], worker)]
        heapq.heapify(self._heap)

    def _overdue(self) -> Event | None:
        """The Leave of a worker that has not answered by its deadline."""
        now = self._time()
        for worker in self._late(now):
            under_way = self._under_way[worker]
            self._lose(worker)
            self._silent[worker] = under_way
            why = f"no answer for {time.perf_counter() - under_way.stamp:.3g} s"
            return Leave(worker, now, lost=True, why=why)
        return None

    def _late(self, now: float) -> list[int]:
        """Who has not answered by its deadline; who is excused is given more time."""
        late = []
        for worker, under_way in self._under_way.items():
            on_time = under_way.deadline > now and not under_way.given_up
            if on_time or under_way.reported:
                continue
            if self._is_excused(worker):
                under_way.deadline = now + (under_way.deadline - under_way.start)
                under_way.given_up = False
                continue
            late.append(worker)
        return late

    def _collect(self) -> None:
        """Everything that was completed, onto the heap."""
        while not self._completions.empty():
            self._take(self._completions.get())

    def _take(self, completion: Completion) -> None:
        worker, failure = completion.worker, completion.failure
        under_way = self._silent.get(worker) or self._under_way.get(worker)
        # of somebody who was killed meanwhile, and may have new work by now
        taken = completion.began if completion.taken is None else completion.taken
        if under_way is None or taken < under_way.stamp:
            return
        began = self.time_of(completion.began)
        # what it does, it does in a pause as well
        finished = began + completion.finished - completion.began
        if worker in self._silent:
            del self._silent[worker]
            if failure:  # that it is lost is known, but not why
                self._push(finished, _STAFF, Leave(worker, finished, True, failure))
                return
            self.patience.doubled(worker)
            self._come(worker)
            why = f"answered after {completion.finished - under_way.stamp:.3g} s"
            self._push(finished, _STAFF, Join(worker, finished, why))
            return
        self.patience.observe(worker, under_way.work, finished - began)
        under_way.reported = True
        if failure:
            self._push(finished, _STAFF, Leave(worker, finished, True, failure))
            return
        arrival = Arrival(worker, under_way.work, began, finished)
        heapq.heappush(self._heap, (finished, _ARRIVAL, worker, arrival))

    def _push(self, time: float, kind: int, event: Event | Incident) -> None:
        heapq.heappush(self._heap, (time, kind, self._count, event))
        self._count += 1

    def _check_at_rest(self, worker: int) -> None:
        if not 0 <= worker < len(self.workers):
            raise ValueError(
                f"there is no worker {worker}; they are 0 to {len(self.workers) - 1}"
            )
        if worker in self._under_way:
            name = self.workers[worker].name
            raise ValueError(f"worker {worker} ({name}) has work in flight already")


def _is_of(event: Event | Incident, worker: int) -> bool:
    """Does this come of a worker's work, or of its answer?"""
    if isinstance(event, Leave):
        return event.lost and event.worker == worker
    return isinstance(event, Arrival | Join) and event.worker == worker
