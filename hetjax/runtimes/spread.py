"""Simulated workers on several devices of the host, which compile side by side.

A program is compiled once for each device: one after the other, eight devices would
take eight times as long as one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from hetjax.engine.placement import Device
from hetjax.engine.protocols import Assignment, Executor, TakeTurns
from hetjax.engine.steps import Outcome

Shape = tuple[int, int]  # steps of a local round, and the batch size of its first step


class Spread:
    """Runs the first assignments of each shape itself, and hands on all others.

    The very first one runs on the caller's thread: where a compiler measures which
    kernel is fastest, the other devices then find its choice and compute the same bits.
    On each of those, the first one runs on the device's own thread, and so does what
    the device gets in the meantime.
    """

    def __init__(
        self,
        run: Callable[[Assignment], Outcome],
        devices: Sequence[Device],
        others: Executor,
    ):
        """`devices` are those of all workers; `others` runs what is compiled."""
        self._run, self._devices, self._others = run, devices, others
        self._threads = {d: ThreadPoolExecutor(1, f"hetjax {d}") for d in set(devices)}
        self._latest: dict[Device, Future[Outcome]] = {}  # of the device's own thread
        self._seen: dict[Shape, set[Device]] = {}  # devices that compile, or have
        self._results: dict[int, Callable[[], Outcome]] = {}

    def lead(self, take_turns: TakeTurns) -> None:
        """Take all turns as the other executor does."""
        self._others.lead(take_turns)

    def start(self, assignment: Assignment) -> None:
        """Run the assignment here, on its device's own thread, or with `others`."""
        worker, rows = assignment.worker, assignment.rows
        if not rows:  # nothing to compile
            self._others.start(assignment)
            return
        device, shape = self._devices[worker], (len(rows), len(rows[0]))
        if shape not in self._seen:
            self._seen[shape] = {device}
            outcome = self._run(assignment)
            self._results[worker] = lambda: outcome
        elif device in self._seen[shape] and self._is_idle(device):
            self._others.start(assignment)
        else:
            self._seen[shape].add(device)
            future = self._threads[device].submit(self._run, assignment)
            self._latest[device], self._results[worker] = future, future.result

    def _is_idle(self, device: Device) -> bool:
        """Has the device's own thread done all its work?"""
        return device not in self._latest or self._latest[device].done()

    def flush(self) -> None:
        """End the turn of the other executor."""
        self._others.flush()

    def finish(self, worker: int) -> Outcome:
        """Return the outcome; raise what was raised on a device's own thread."""
        return self._results.pop(worker, partial(self._others.finish, worker))()

    def outcome(self, worker: int) -> Outcome:
        """Return the outcome, which stays."""
        return self._results.get(worker, partial(self._others.outcome, worker))()

    def load(self, worker: int, outcome: Outcome) -> None:
        """Take up an assignment that was saved with its outcome."""
        self._others.load(worker, outcome)

    def drop(self, worker: int) -> None:
        """Forget a worker's outcome."""
        self._results.pop(worker, None)
        self._others.drop(worker)

    def close(self) -> list[int]:
        """Wait for running assignments and cancel those that have not begun."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)
        return self._others.close()
