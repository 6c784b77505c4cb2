"""Executors that run steps on the caller's thread, or on a few threads of the host.

For the virtual clock: what comes of an assignment does not depend on when it runs.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hetjax.engine.protocols import Assignment, Outcome, TakeTurns

FIRST = 3  # assignments that tell how long they are; one of them compiles
LONG = 1e-3  # [s] of an assignment that is worth waking a thread


class Inline:
    """Runs an assignment when it starts, on the caller's thread.

    JAX only enqueues the steps then, so that the host goes on while they run.
    """

    def __init__(self, run: Any):
        """`run(assignment) -> outcome`, such as `hetjax.engine.steps.Steps.run`."""
        self._run = run
        self._outcomes: dict[int, Outcome] = {}

    def lead(self, take_turns: TakeTurns) -> None:
        """All turns are taken here."""
        if take_turns(lambda: False):
            raise RuntimeError("the clock has no event to come, but the run goes on")

    def flush(self) -> None:
        """Everything has begun when it was started."""

    def start(self, assignment: Assignment) -> None:
        """Enqueue all steps."""
        self._outcomes[assignment.worker] = self._run(assignment)

    def finish(self, worker: int) -> Outcome:
        """What the steps lead to, as arrays that may still be under way."""
        return self._outcomes.pop(worker)

    def drop(self, worker: int) -> None:
        """Forget an outcome."""
        self._outcomes.pop(worker, None)

    def close(self) -> list[int]:
        """There is nothing to end."""
        return []


def grouped(
    assignments: Sequence[Assignment], benches: Sequence[tuple[str, float]]
) -> list[list[Assignment]]:
    """Which of them one program can run: of one bench, as many steps of one size.

    A worker's bench is its device, and how much slower it is there on purpose: who
    waits behind each step must not hold up others.
    """
    groups: dict[tuple, list[Assignment]] = {}
    for a in assignments:
        shape = (len(a.rows), len(a.rows[0])) if a.rows else (a.worker,)
        groups.setdefault((*benches[a.worker], shape), []).append(a)
    return list(groups.values())


class Grouped(Inline):
    """Runs what starts in one turn of the loop in groups, as a real run did."""

    def __init__(self, run: Any, benches: Sequence[tuple[str, float]]):
        """`run(assignments) -> outcomes`; the benches of all workers."""
        super().__init__(run)
        self._benches = benches
        self._pending: list[Assignment] = []

    def start(self, assignment: Assignment) -> None:
        """Remember it for the end of the turn."""
        self._pending.append(assignment)

    def drop(self, worker: int) -> None:
        """Forget it."""
        self._pending = [a for a in self._pending if a.worker != worker]
        super().drop(worker)

    def flush(self) -> None:
        """Run what the turn started."""
        for group in grouped(self._pending, self._benches):
            workers = [a.worker for a in group]
            self._outcomes.update(zip(workers, self._run(group), strict=True))
        self._pending = []


class Pooled(Inline):
    """Runs long assignments on threads of the host, several at the same time.

    For the cores of a CPU, which a program of its own seldom keeps busy. Short ones
    stay on the caller's thread: to wake another takes as long. The first few tell which
    they are. What comes of an assignment does not depend on where it runs, or when.
    """

    def __init__(self, run: Any, threads: int):
        """`run` as for `Inline`."""
        super().__init__(run)
        self._pool = ThreadPoolExecutor(threads, "hetjax pool")
        self._futures: dict[int, Future[Outcome]] = {}
        self._seconds: list[float] = []  # of the first assignments

    def start(self, assignment: Assignment) -> None:
        """Run it, or have a thread run it."""
        if not assignment.rows:  # nothing to compute: it tells nothing
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
        """Its outcome; waits for a thread, and raises what it raised there."""
        if worker in self._futures:
            return self._futures.pop(worker).result()
        return super().finish(worker)

    def drop(self, worker: int) -> None:
        """Forget it."""
        self._futures.pop(worker, None)
        super().drop(worker)

    def close(self) -> list[int]:
        """Wait for what is under way; the rest is not begun."""
        self._pool.shutdown(cancel_futures=True)
        return []
