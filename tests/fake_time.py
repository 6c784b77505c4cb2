"""A fake world for the wall clock: time passes during waits, and threads report.

It replaces the modules `time` and `queue` in
`hetjax.runtimes.real.wall_clock`. Times are halves and quarters of seconds, so that
stamps are exact.
"""

import heapq
import itertools
import math
import queue

from hetjax.machine import LocalRound, WorkerInfo
from hetjax.runtimes.real.wall_clock import WallClock
from hetjax.runtimes.real.worker_reports import Completion

START = 64.0  # stamp when the clock begins: the tests count seconds from here
STEP = LocalRound(1, 1)


class World:
    """Time stamps, and completions that are delivered at their times."""

    Empty = queue.Empty

    def __init__(self):
        self._now = START
        self._coming = []
        self._number = itertools.count()
        self._queues = 0
        self._spins = 0  # consecutive waits of no duration

    @property
    def now(self):
        """Seconds since the clock began, pauses included."""
        return self._now - START

    def busy_until(self, seconds):
        """The host is busy with something else until then."""
        self._now = START + seconds

    def report(self, worker, began, finished, failure=""):
        """A thread computes from `began` to `finished` [s] and then reports."""
        done = Completion(worker, START + began, START + finished, failure)
        self._push(START + finished, done)

    def awaited(self, clock, seconds=1000.0):
        """The clock's next event; None if there is none within that time."""
        until = self.now + seconds
        while self.now < until:
            event = clock.next()
            if event is not None:
                return event
            clock.prepare_wait()
            clock.wait()
        return None

    def _push(self, stamp, completion):
        heapq.heappush(self._coming, (stamp, next(self._number), completion))

    # the interface of the modules

    def perf_counter(self):
        return self._now

    def Queue(self):
        """A clock's first queue holds completions, its second one calls."""
        self._queues += 1
        return self if self._queues % 2 else _Calls(self)

    def empty(self):
        return not self._coming or self._coming[0][0] > self._now

    def put(self, completion):
        self._push(self._now, completion)

    def get(self, timeout=0.0):
        """Unless an item is ready, time advances, at least by its smallest step."""
        if self.empty():
            self.pass_by(timeout)
        if self.empty():
            raise queue.Empty
        return heapq.heappop(self._coming)[2]

    get_nowait = get

    def pass_by(self, seconds):
        """Wait for that time, or until the next completion."""
        self._spins = 0 if seconds else self._spins + 1
        assert self._spins < 100, "it spins instead of waiting"
        until = max(self._now + seconds, math.nextafter(self._now, math.inf))
        if self._coming:
            until = max(self._now, min(until, self._coming[0][0]))
        self._now = until


class _Calls:
    """A thread that completes something checks the clock itself: as good as a call."""

    def __init__(self, world):
        self._world = world

    def put(self, call):
        pass

    def get(self, timeout):
        self._world.pass_by(timeout)
        raise queue.Empty


def wall_clock(*seconds, absent=(), **settings):
    """A clock that has begun, of workers with these seconds per step."""
    infos = tuple(
        WorkerInfo(k, f"w{k}", "cpu", (), s, 0.0, present=k not in absent)
        for k, s in enumerate(seconds)
    )
    clock = WallClock(infos, **settings)
    clock.begin()
    return clock
