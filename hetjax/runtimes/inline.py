"""Executors that run steps on the caller's thread, or on a few host threads.

They serve the virtual clock, where outcomes do not depend on when assignments run.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hetjax.engine.placement import Device
from hetjax.engine.player_parts import Assignment, TakeTurns
from hetjax.engine.step_runner import RoundOutcome

TIMED_ASSIGNMENTS = 3  # assignments that are timed to decide; the first compiles
SHORTEST_POOLED = 1e-3  # [s] shortest assignment that is worth waking a thread

Result = Callable[[], RoundOutcome]  # may block until the outcome is known


def run_turns_alone(take_turns: TakeTurns) -> None:
    """Take all turns on the caller's thread."""
    if take_turns(lambda: False):
        raise RuntimeError("the clock has no more events, but the run is not over")


class InlineExecutor:
    """Runs an assignment when it starts, on the caller's thread.

    JAX only enqueues the steps, so that the host continues while they run.
    """

    run_turns = staticmethod(run_turns_alone)

    def __init__(self, run: Any):
        """`run(assignment)` returns a `RoundOutcome`; see `StepRunner.run`."""
        self._run = run
        self._results: dict[int, Result] = {}

    def flush(self) -> None:
        """Do nothing: `start` has begun every assignment."""

    def start(self, assignment: Assignment) -> None:
        """Begin an assignment."""
        self._results[assignment.worker] = self.begin(assignment)

    def begin(self, assignment: Assignment) -> Result:
        """Enqueue all steps."""
        outcome = self._run(assignment)
        return lambda: outcome

    def finish(self, worker: int) -> RoundOutcome:
        """Return the outcome; reraise an exception of another thread.

        Its arrays may not be computed yet.
        """
        return self._results.pop(worker)()

    def discard(self, worker: int) -> None:
        """Discard an outcome."""
        self._results.pop(worker, None)

    def cancel(self, worker: int) -> None:
        """Discard an outcome."""
        self.discard(worker)

    def outcome(self, worker: int) -> RoundOutcome:
        """Return the outcome of a worker's assignment without removing it."""
        return self._results[worker]()

    def restore_outcome(self, worker: int, outcome: RoundOutcome) -> None:
        """Restore an assignment that was saved with its outcome."""
        self._results[worker] = lambda: outcome

    def close(self) -> list[int]:
        """Do nothing: there are no threads to end."""
        return []


def group_assignments(
    assignments: Sequence[Assignment], device_classes: Sequence[tuple[str, float]]
) -> list[list[Assignment]]:
    """Group assignments that one program can run.

    These have the same device class, steps and batch size. A worker's device class is
    its (device, slowdown): a worker that waits after each step must not delay workers
    with another slowdown.
    """
    groups: dict[tuple, list[Assignment]] = {}
    for a in assignments:
        shape = (len(a.rows), len(a.rows[0])) if a.rows else (a.worker,)
        groups.setdefault((*device_classes[a.worker], shape), []).append(a)
    return list(groups.values())


class GroupedExecutor(InlineExecutor):
    """Runs the assignments of a turn of the loop in groups, as a real run does."""

    def __init__(self, run: Any, device_classes: Sequence[tuple[str, float]]):
        """`run(assignments) -> outcomes`; `device_classes` has one for each worker."""
        super().__init__(run)
        self._device_classes = device_classes
        self._pending: list[Assignment] = []

    def start(self, assignment: Assignment) -> None:
        """Defer the assignment to the end of the turn."""
        self._pending.append(assignment)

    def discard(self, worker: int) -> None:
        """Discard a worker's assignment and outcome."""
        self._pending = [a for a in self._pending if a.worker != worker]
        super().discard(worker)

    def flush(self) -> None:
        """Run the assignments that were started in this turn."""
        for group in group_assignments(self._pending, self._device_classes):
            for a, outcome in zip(group, self._run(group), strict=True):
                self.restore_outcome(a.worker, outcome)
        self._pending = []


class PooledExecutor(InlineExecutor):
    """Runs long assignments on several host threads at the same time.

    It serves CPUs, where a single program seldom keeps all cores busy. Short
    assignments stay on the caller's thread, as waking another thread takes equally
    long. The first few assignments are timed to decide.
    """

    def __init__(self, run: Any, threads: int):
        """`run` as for `InlineExecutor`."""
        super().__init__(run)
        self._pool = ThreadPoolExecutor(threads, "hetjax pool")
        self._seconds: list[float] = []  # of the first assignments

    def begin(self, assignment: Assignment) -> Result:
        """Run the assignment, or submit it to the pool."""
        if not assignment.rows:  # nothing to compute or to time
            return super().begin(assignment)
        if len(self._seconds) < TIMED_ASSIGNMENTS:
            began = time.perf_counter()
            outcome = self._run(assignment).wait()
            self._seconds.append(time.perf_counter() - began)
            return lambda: outcome
        if min(self._seconds) < SHORTEST_POOLED:
            return super().begin(assignment)
        return self._pool.submit(lambda: self._run(assignment).wait()).result

    def close(self) -> list[int]:
        """Wait for running assignments and cancel those that have not begun."""
        self._pool.shutdown(cancel_futures=True)
        return []


Shape = tuple[int, int]  # steps of a local round, and the batch size of its first step


class SpreadExecutor(InlineExecutor):
    """Runs the first assignments of each shape itself, and passes on all others.

    It serves several devices of the host, each of which compiles its own program: one
    after the other, eight devices would take eight times as long as one. The first
    assignment of a shape runs on the caller's thread: where the compiler measures which
    kernel is fastest, the other devices then find its choice and compute the same bits.
    On every other device, the first assignment of the shape, and those that follow
    while it runs, run on a thread of that device.
    """

    def __init__(
        self,
        run: Callable[[Assignment], RoundOutcome],
        devices: Sequence[Device],
        others: InlineExecutor,
    ):
        """`devices` has one for each worker; `others` runs compiled programs."""
        super().__init__(run)
        self._devices, self._others = devices, others
        self._threads = {d: ThreadPoolExecutor(1, f"hetjax {d}") for d in set(devices)}
        # the latest assignment of each device's own thread
        self._latest: dict[Device, Future[RoundOutcome]] = {}
        self._seen: dict[Shape, set[Device]] = {}  # devices that began to compile

    def begin(self, assignment: Assignment) -> Result:
        """Run the assignment here, on its device's own thread, or with `others`."""
        worker, rows = assignment.worker, assignment.rows
        if not rows:  # nothing to compile
            return self._others.begin(assignment)
        device, shape = self._devices[worker], (len(rows), len(rows[0]))
        if shape not in self._seen:
            self._seen[shape] = {device}
            return super().begin(assignment)
        busy = device in self._latest and not self._latest[device].done()
        if device in self._seen[shape] and not busy:
            return self._others.begin(assignment)
        self._seen[shape].add(device)
        self._latest[device] = self._threads[device].submit(self._run, assignment)
        return self._latest[device].result

    def close(self) -> list[int]:
        """Wait for running assignments and cancel those that have not begun."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)
        return self._others.close()
