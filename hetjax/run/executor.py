"""Who runs the steps: here and now, a few threads, or a thread for every worker.

The loop gives an executor assignments and fetches their outcomes at their arrivals;
`Inline` and `Pooled` are of the virtual clock, `hetjax.run.threads` has that of real
devices.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hetjax.replica import Replica

FIRST = 3  # assignments that tell how long they are; one of them compiles
LONG = 1e-3  # [s] of an assignment that is worth waking a thread
Device = Any  # a jax.Device, which is no type to a type checker


class Assignment(NamedTuple):
    """Work as an executor sees it."""

    worker: int
    replica: Replica  # to begin from
    rows: Sequence[np.ndarray]  # of the training split, for every step
    rate: np.float32
    first_step: int  # the number of the first one among the worker's


class Outcome(NamedTuple):
    """What came of an assignment."""

    replica: Replica
    losses: Sequence[tuple[np.ndarray, Any]]  # rows and losses, of a step or of all
    mean: jax.Array | np.ndarray  # loss of the last step
    padded: int  # examples of padding computed besides
    finite: Any = True  # are all numbers of the replica?

    def wait(self) -> "Outcome":
        """Itself, once its arrays are there."""
        jax.block_until_ready((self.replica, self.mean, self.finite))
        return self


class Turns(Protocol):
    """The loop, as an executor sees it."""

    @property
    def over(self) -> bool:
        """Is there nothing more to do?"""
        ...

    def turn(self) -> bool:
        """Handle the next event, if one is due; was there one?"""
        ...


class Executor(Protocol):
    """Runs assignments; a worker has one at a time."""

    def play(self, loop: Turns) -> None:
        """Have the loop take its turns until it is over."""
        ...

    def start(self, assignment: Assignment) -> None:
        """Begin an assignment."""
        ...

    def finish(self, worker: int) -> Outcome:
        """The outcome of a worker's assignment, which has arrived."""
        ...

    def drop(self, worker: int) -> None:
        """Nobody will ask for the outcome of a worker's assignment."""
        ...

    def close(self) -> list[int]:
        """End everything; the workers whose threads are stuck and were left behind."""
        ...


class Inline:
    """Runs an assignment when it starts, on the caller's thread.

    JAX only enqueues the steps then, so that the host goes on while they run.
    """

    def __init__(self, run: Any):
        """`run(assignment) -> outcome`, such as `hetjax.run.steps.Steps.run`."""
        self._run = run
        self._outcomes: dict[int, Outcome] = {}

    def play(self, loop: Turns) -> None:
        """One turn after the other."""
        while not loop.over:
            loop.turn()

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

    def play(self, loop: Turns) -> None:
        """What a turn starts runs behind it."""
        self._hand_out()
        while not loop.over:
            loop.turn()
            self._hand_out()

    def start(self, assignment: Assignment) -> None:
        """Remember it for the end of the turn."""
        self._pending.append(assignment)

    def drop(self, worker: int) -> None:
        """Forget it."""
        self._pending = [a for a in self._pending if a.worker != worker]
        super().drop(worker)

    def _hand_out(self) -> None:
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
