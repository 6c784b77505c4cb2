"""Executors that run steps on the caller's thread, or on a few threads of the host.

They serve the virtual clock: the outcome of an assignment does not depend on when it
runs.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hetjax.engine.protocols import Assignment, TakeTurns
from hetjax.engine.steps import Outcome

FIRST = 3  # assignments that are timed to decide; one of them compiles
LONG = 1e-3  # [s] shortest assignment for which it pays to wake a thread


class Inline:
    """Runs an assignment when it starts, on the caller's thread.

    JAX only enqueues the steps, so that the host goes on while they run.
    """

    def __init__(self, run: Any):
        """`run(assignment) -> outcome`, such as `hetjax.engine.steps.Steps.run`."""
        self._run = run
        self._outcomes: dict[int, Outcome] = {}

    def lead(self, take_turns: TakeTurns) -> None:
        """Take all turns on the caller's thread."""
        lead_alone(take_turns)

    def flush(self) -> None:
        """Do nothing: `start` has begun every assignment."""

    def start(self, assignment: Assignment) -> None:
        """Enqueue all steps."""
        self._outcomes[assignment.worker] = self._run(assignment)

    def finish(self, worker: int) -> Outcome:
        """Return the outcome; its arrays may not be computed yet."""
        return self._outcomes.pop(worker)

    def drop(self, worker: int) -> None:
        """Forget an outcome."""
        self._outcomes.pop(worker, None)

    def outcome(self, worker: int) -> Outcome:
        """Return the outcome of a worker's assignment, which stays."""
        return self._outcomes[worker]

    def load(self, worker: int, outcome: Outcome) -> None:
        """Take up an assignment that was saved with its outcome."""
        self._outcomes[worker] = outcome

    def close(self) -> list[int]:
        """Do nothing: no thread has to end."""
        return []


def lead_alone(take_turns: TakeTurns) -> None:
    """Take all turns on the caller's thread."""
    if take_turns(lambda: False):
        raise RuntimeError("the clock has no more events, but the run is not over")


def grouped(
    assignments: Sequence[Assignment], benches: Sequence[tuple[str, float]]
) -> list[list[Assignment]]:
    """Group assignments that one program can run: same bench, steps and batch size.

    A worker's bench is its (device, slowdown): a worker that waits after each step must
    not delay workers with another slowdown.
    """
    groups: dict[tuple, list[Assignment]] = {}
    for a in assignments:
        shape = (len(a.rows), len(a.rows[0])) if a.rows else (a.worker,)
        groups.setdefault((*benches[a.worker], shape), []).append(a)
    return list(groups.values())


class Grouped(Inline):
    """Runs the assignments of one turn of the loop in groups, as a real run does."""

    def __init__(self, run: Any, benches: Sequence[tuple[str, float]]):
        """`run(assignments) -> outcomes`; `benches` are those of all workers."""
        super().__init__(run)
        self._benches = benches
        self._pending: list[Assignment] = []

    def start(self, assignment: Assignment) -> None:
        """Keep the assignment until the end of the turn."""
        self._pending.append(assignment)

    def drop(self, worker: int) -> None:
        """Forget a worker's assignment and outcome."""
        self._pending = [a for a in self._pending if a.worker != worker]
        super().drop(worker)

    def flush(self) -> None:
        """Run the assignments that were started in this turn."""
        for group in grouped(self._pending, self._benches):
            workers = [a.worker for a in group]
            self._outcomes.update(zip(workers, self._run(group), strict=True))
        self._pending = []


class Pooled(Inline):
    """Runs long assignments on threads of the host, several at the same time.

    It serves CPUs, as a single program seldom keeps all cores busy. Short assignments
    stay on the caller's thread, as waking another thread takes as long. The first few
    assignments are timed to decide. The outcome of an assignment does not depend on
    where or when it runs.
    """

    def __init__(self, run: Any, threads: int):
        """`run` as for `Inline`."""
        super().__init__(run)
        self._pool = ThreadPoolExecutor(threads, "hetjax pool")
        self._futures: dict[int, Future[Outcome]] = {}
        self._seconds: list[float] = []  # of the first assignments

    def start(self, assignment: Assignment) -> None:
        """Run the assignment, or let a thread run it."""
        if not assignment.rows:  # nothing to compute, so its time tells nothing
            super().start(assignment)
        elif len(self._seconds) < FIRST:
            began = time.perf_counter()
            self._outcomes[assignment.worker] = self._run(assignment).wait()
            self._seconds.append(time.perf_counter() - began)
        elif min(self._seconds) < LONG:
            super().start(assignment)
        else:
            future = self._pool.submit(lambda: self._run(assignment).wait())
            self._futures[assignment.worker] = future

    def finish(self, worker: int) -> Outcome:
        """Return the outcome; wait for its thread, and raise what was raised there."""
        if worker in self._futures:
            return self._futures.pop(worker).result()
        return super().finish(worker)

    def outcome(self, worker: int) -> Outcome:
        """Return the outcome, which stays; wait for its thread."""
        if worker in self._futures:
            return self._futures[worker].result()
        return super().outcome(worker)

    def drop(self, worker: int) -> None:
        """Forget a worker's outcome."""
        self._futures.pop(worker, None)
        super().drop(worker)

    def close(self) -> list[int]:
        """Wait for running assignments and cancel those that have not begun."""
        self._pool.shutdown(cancel_futures=True)
        return []
