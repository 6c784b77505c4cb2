"""The executor of real devices: a thread for every worker.

A thread takes assignments, runs their steps on its worker's device, waits for them
alone, and reports with stamps of its own. Then it takes the loop's next turns itself,
one thread at a time, until it has new work: between an arrival and the work that
follows nobody has to be woken. The caller's thread sees to the rest: alarms, deadlines,
workers that come, the end. Threads are daemons: one that is stuck in
native code cannot hold up the end of the process, and is named in the history.
"""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from hetjax.machine.wall_clock import Completion, WallClock
from hetjax.run.executor import Assignment, Device, Outcome, Turns
from hetjax.run.steps import Steps

END = 5.0  # [s] that a thread has to end, after its last step


class Station(NamedTuple):
    """Where a worker works, and how."""

    name: str
    device: Device
    slowdown: float  # its steps take so many times as long: it waits after each
    form: str  # how K steps run
    factor: float = 1.0  # of a scripted incident, on top of the slowdown


class Threads:
    """Runs every worker's assignments in its own thread."""

    def __init__(
        self,
        steps: Steps,
        stations: Sequence[Station],
        clock: WallClock,
    ):
        """The clock is told each completion, from the worker's thread."""
        self._steps, self._clock = steps, clock
        self._stations = list(stations)
        self._threads: dict[int, _Thread] = {}
        self._dropped: list[_Thread] = []
        self._turns = threading.Lock()  # whose holder takes the loop's turns
        self._others: set[_Thread] = set()  # who wait for that
        self._loop: Turns | None = None  # while there are turns to take
        self._raised: BaseException | None = None

    def play(self, loop: Turns) -> None:
        """Take the turns that no worker's thread takes, until there are no more."""
        self._loop = loop
        while True:
            with self._turns:
                try:
                    while self._raised is None and not loop.over and loop.turn():
                        if self._others:  # who arrived goes on
                            break
                    self._clock.rest()
                except BaseException as error:
                    self._raised = error
                if self._raised is not None or loop.over:
                    self._loop = None
                    break
            self._clock.wait()
        if self._raised is not None:
            raise self._raised

    def _completed(self, thread: "_Thread", completion: Completion) -> None:
        """From a worker's thread: report, and take turns.

        Until nothing is due, or it has new work and another is there to take them.
        """
        self._clock.completed(completion)
        self._others.add(thread)
        with self._turns:
            self._others.discard(thread)
            loop = self._loop
            if loop is None or self._raised is not None:
                return
            try:
                while not loop.over and (thread.inbox.empty() or not self._others):
                    if not loop.turn():
                        break
            except BaseException as error:
                self._raised = error
            self._clock.call(loop.over or self._raised is not None)

    def start(self, assignment: Assignment) -> None:
        """Hand an assignment to its worker's thread."""
        worker = assignment.worker
        if worker not in self._threads:
            station = self._stations[worker]
            self._threads[worker] = _Thread(
                worker, station, self._steps, self._completed
            )
            self._threads[worker].start()
        self._threads[worker].inbox.put(assignment)

    def finish(self, worker: int) -> Outcome:
        """What came of it; the arrays are there."""
        outcome = self._threads[worker].outcome
        assert outcome is not None, "an outcome is fetched once, after its arrival"
        self._threads[worker].outcome = None
        return outcome

    def drop(self, worker: int) -> None:
        """Leave the worker's thread to itself: it ends after its step, if it can."""
        if worker in self._threads:
            thread = self._threads.pop(worker)
            thread.cancel()
            self._dropped.append(thread)

    def slow(self, worker: int, factor: float) -> None:
        """A worker's steps take `factor` times as long as they did at first."""
        station = self._stations[worker]._replace(factor=factor)
        self._stations[worker] = station
        if worker in self._threads:
            self._threads[worker].station = station

    def is_compiling(self, worker: int) -> bool:
        """Does a worker wait for XLA?"""
        thread = self._threads.get(worker)
        return thread is not None and self._steps.compilations.is_compiling(thread)

    def close(self) -> list[int]:
        """End all threads; the workers of those that do not."""
        threads = [*self._dropped, *self._threads.values()]
        for thread in threads:
            thread.cancel()
        deadline = time.perf_counter() + END
        for thread in threads:
            thread.join(max(0.0, deadline - time.perf_counter()))
        self._threads, self._dropped = {}, []
        return sorted({t.worker for t in threads if t.is_alive()})


class _Cancelled(Exception):
    """Nobody waits for the rest of this work."""


class _Thread(threading.Thread):
    """One worker's thread."""

    def __init__(
        self,
        worker: int,
        station: Station,
        steps: Steps,
        report: Callable[["_Thread", Completion], None],
    ):
        super().__init__(name=f"hetjax worker {station.name}", daemon=True)
        self.worker, self.station = worker, station
        self._steps, self._report = steps, report
        self._compilations = steps.compilations
        self.inbox: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self.outcome: Outcome | None = None
        self._end = threading.Event()
        self._since = 0.0  # stamp: when the last step began
        self._compiled = 0.0  # [s] of this thread before that

    def cancel(self) -> None:
        """End soon."""
        self._end.set()
        self.inbox.put(None)

    def run(self) -> None:
        """Take assignments until one is None."""
        while (assignment := self.inbox.get()) is not None and not self._end.is_set():
            taken, failure, outcome = time.perf_counter(), "", None
            compiled = self._compilations.own_seconds
            try:
                outcome = self._work(assignment)
            except _Cancelled:
                pass  # whoever was silent has answered now
            except BaseException:
                failure = traceback.format_exc()
            finished = time.perf_counter()
            # a program that was compiled meanwhile is not the worker's time
            began = taken + self._compilations.own_seconds - compiled
            began = min(began, finished)
            self.outcome = outcome
            del assignment, outcome  # what is handed over is not held here
            done = Completion(self.worker, began, finished, failure, taken)
            self._report(self, done)

    def _work(self, assignment: Assignment) -> Outcome:
        station = self.station
        self._since = time.perf_counter()
        self._compiled = self._compilations.own_seconds
        # NumPy arrays go to a CPU device within the call, without a copy of their own
        device = None if station.device.platform == "cpu" else station.device
        outcome = self._steps.run(assignment, station.form, device, self._between)
        jax.block_until_ready((outcome.replica, outcome.mean, outcome.finite))
        return outcome

    def _between(self, replica: Any) -> None:
        """After each program: who is slow waits, who is not wanted any more stops."""
        if self._end.is_set():
            raise _Cancelled
        slowdown = self.station.slowdown * self.station.factor
        if slowdown <= 1:
            return
        jax.block_until_ready(replica)
        compiled = self._compilations.own_seconds
        took = time.perf_counter() - self._since - (compiled - self._compiled)
        rest = (slowdown - 1) * took
        if self._end.wait(rest):
            raise _Cancelled
        self._since, self._compiled = time.perf_counter(), compiled
