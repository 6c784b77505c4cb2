"""The executor of real devices: a thread for every worker.

A thread runs assignments on its worker's device and reports their times. Then it takes
the loop's next turns itself, one thread at a time, until it has a new assignment: no
other thread has to be woken between an arrival and the worker's next local round. It
launches the assignment at once. While the device computes, it takes more turns, in
which the loop records what happened, and gathers the batches of its next round, if that
can be expected. The caller's thread handles the rest: timers, deadlines, workers that
join, the end of the run. Threads that are stuck in native code (they are daemons) are
named in the history.
"""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from hetjax.engine.expected_draws import RoundRows
from hetjax.engine.placement import Device
from hetjax.engine.player_parts import Assignment, TakeTurns
from hetjax.engine.step_runner import RoundOutcome, StepRunner
from hetjax.runtimes.devices import device_name
from hetjax.runtimes.inline import group_assignments
from hetjax.runtimes.real.throttle import Cancelled, Throttle
from hetjax.runtimes.real.wall_clock import WallClock
from hetjax.runtimes.real.worker_reports import Completion

POLL = 0.05  # [s] after which a thread that waits for another sees that it is cancelled
SHORT = 5e-4  # [s] that a thread waits for another's turns, to draw ahead
END = 5.0  # [s] that threads may take to end, on top of their usual remaining time
DrawAhead = Callable[[int], RoundRows | None]
_TURN: list[Assignment] = []  # in a thread's queue: take the loop's turns


class DeviceWorker(NamedTuple):
    """A worker's device and settings."""

    name: str
    device: Device
    slowdown: float  # its steps take this many times as long: it waits after each
    step_mode: str  # how K steps run
    factor: float = 1.0  # of a scripted fault, on top of the slowdown


class ThreadExecutor:
    """Runs every worker's assignments in its own thread."""

    def __init__(
        self, steps: StepRunner, workers: Sequence[DeviceWorker], clock: WallClock
    ):
        """Report each worker's completed assignments to the clock."""
        self.steps, self.workers, self._clock = steps, list(workers), clock
        self._device_classes = [(device_name(w.device), w.slowdown) for w in workers]
        self._threads: dict[int, _WorkerThread] = {}
        self._busy: dict[int, _WorkerThread] = {}  # by worker with an assignment
        self._discarded: list[_WorkerThread] = []
        self._ending: dict[int, _WorkerThread | None] = {}  # of cancelled rounds
        self._pending: list[Assignment] = []  # until the turn is over
        self._outcomes: dict[int, RoundOutcome] = {}
        self._turns = threading.Lock()  # its holder takes the loop's turns
        self._idle: set[_WorkerThread] = set()  # threads that may take them
        self._take_turns: TakeTurns | None = None  # None when the run is over
        self._raised: BaseException | None = None
        self._draw_ahead: DrawAhead | None = None

    def expect(self, draw_ahead: DrawAhead) -> None:
        """Gather what is expected next while devices compute."""
        self._draw_ahead = draw_ahead

    def slow(self, worker: int, factor: float) -> None:
        """Make a worker's steps take `factor` times as long as at the start."""
        self.workers[worker] = self.workers[worker]._replace(factor=factor)

    def is_compiling(self, worker: int) -> bool:
        """Whether a worker's thread waits for a compilation."""
        thread = self._busy.get(worker)
        threads = () if thread is None else (thread, thread.after)
        return any(t and self.steps.compilations.is_compiling(t) for t in threads)

    def run_turns(self, take_turns: TakeTurns) -> None:
        """Take the turns that no worker's thread takes, until the run is over."""
        self._take_turns = take_turns
        try:
            while self._lead_turns(take_turns):
                self._clock.wait()
        finally:  # also if a second Ctrl-C ends the wait
            with self._turns:
                self._take_turns = None
        if self._raised is not None:
            raise self._raised

    def _lead_turns(self, take_turns: TakeTurns) -> bool:
        """Take turns until nothing is due or a worker's thread can take over.

        Return whether the run continues.
        """
        more = False
        with self._turns:
            if self._raised is None:
                try:
                    more = take_turns(self._should_pass_on)
                    self._clock.prepare_wait()
                except BaseException as error:
                    self._raised, more = error, False
        self._pass_on()
        return more

    def _should_pass_on(self) -> bool:
        """Whether there is an unhandled report and an idle thread for it."""
        return self._clock.has_reports and bool(self._idle)

    def _pass_on(self) -> None:
        """After this thread's turns, let an idle thread handle new reports."""
        if self._should_pass_on():
            with suppress(KeyError):  # another thread took it first
                self._idle.pop().queue.put(_TURN)

    def completed(
        self,
        thread: "_WorkerThread",
        done: Sequence[Completion],
        outcomes: list[RoundOutcome],
    ) -> None:
        """Report completed assignments, on a worker's thread; clear `outcomes`."""
        # after a failure `outcomes` is empty
        for completion, outcome in zip(done, outcomes, strict=False):
            if self._busy.get(completion.worker) is thread:
                self._outcomes[completion.worker] = outcome
        outcomes.clear()
        outcome = None
        for completion in done:
            self._clock.report(completion)

    def run_turns_on(self, thread: "_WorkerThread") -> None:
        """Take turns on a worker's thread, unless another thread takes them.

        The thread continues until nothing is due, or until it has a new assignment. It
        never waits for another thread, which would put new assignments into its queue.
        """
        self._idle.add(thread)  # the lock's holder checks this afterwards
        if thread.ending:  # a turn that is passed to it would be lost
            self._idle.discard(thread)
            self._clock.wake_leader(urgent=True)
            return
        self._try_turns(thread, lambda: not thread.queue.empty())

    def run_turns_during(
        self, thread: "_WorkerThread", launched: Sequence[RoundOutcome]
    ) -> None:
        """Take turns until these assignments are computed or another thread can."""
        self._try_turns(
            thread, lambda: self._should_pass_on() or all(o.done for o in launched)
        )

    def gather_ahead(
        self, thread: "_WorkerThread", launched: Sequence[RoundOutcome]
    ) -> None:
        """Gather the batches of the thread's next round while these are computed.

        Its present round is reported afterwards, as if it had lasted that long: reading
        that takes longer than the steps is still a part of the rounds.
        """
        draw_ahead, worker = self._draw_ahead, self.workers[thread.worker]
        if draw_ahead is None or thread.cancelled or worker.step_mode == "vmapped":
            return
        if all(o.done for o in launched) or not self._turns.acquire(timeout=SHORT):
            return
        try:
            over = self._take_turns is None or self._raised is not None
            rows = None if over else draw_ahead(thread.worker)
        finally:
            self._turns.release()
        self._pass_on()
        if rows is not None and rows.gathered is None:
            self.steps.gather(rows, worker.step_mode, worker.device)

    def _try_turns(self, thread: "_WorkerThread", yields: Callable[[], bool]) -> None:
        """Take turns, unless another thread takes them."""
        if not self._turns.acquire(blocking=False):
            return
        try:
            self._idle.discard(thread)
            take_turns = self._take_turns
            if take_turns is None or self._raised is not None:
                return
            more = False
            try:
                more = take_turns(yields)
            except BaseException as error:
                self._raised = error
            self._clock.wake_leader(urgent=not more)
        finally:
            self._turns.release()
        self._pass_on()

    def start(self, assignment: Assignment) -> None:
        """Pass an assignment to its worker's thread.

        In the step mode "vmapped" it waits for the end of the turn, and runs in a group
        on the thread of one of the group's workers.
        """
        if self.workers[assignment.worker].step_mode == "vmapped":
            self._pending.append(assignment)
        else:
            self._assign([assignment])

    def flush(self) -> None:
        """Pass the assignments that were started in this turn to threads, in groups."""
        if self._pending:
            for group in group_assignments(self._pending, self._device_classes):
                self._assign(group)
            self._pending = []

    def _assign(self, group: list[Assignment]) -> None:
        first = group[0].worker
        if first not in self._threads:
            after = self._ending.pop(first, None)
            self._threads[first] = _WorkerThread(first, self, after)
            self._threads[first].start()
        for a in group:
            self._busy[a.worker] = self._threads[first]
        self._idle.discard(self._threads[first])
        self._threads[first].queue.put(group)

    def finish(self, worker: int) -> RoundOutcome:
        """Return a worker's outcome; its arrays are computed."""
        self._busy.pop(worker, None)  # a continued run has none
        return self._outcomes.pop(worker)

    def outcome(self, worker: int) -> None:
        """Return None: an outcome is unknown until it arrives."""

    def restore_outcome(self, worker: int, outcome: RoundOutcome) -> None:
        """Restore an assignment that was saved with its outcome."""
        self._outcomes[worker] = outcome

    def discard(self, worker: int) -> None:
        """Discard a worker's assignment; its thread ends after the current step."""
        self._pending = [a for a in self._pending if a.worker != worker]
        self._busy.pop(worker, None)
        self._outcomes.pop(worker, None)
        if worker in self._threads:
            thread = self._threads.pop(worker)
            # it first completes a group with other workers' assignments
            thread.cancel(at_once=thread not in self._busy.values())
            self._idle.discard(thread)  # afterwards: see `run_turns_on`
            self._discarded = [t for t in self._discarded if t.is_alive()]
            self._discarded.append(thread)

    def cancel(self, worker: int) -> None:
        """Discard a worker's assignment; its next thread waits for this one to end.

        A thread that still waits itself never begins: the next one waits for the same.
        The program of a group goes on, for its other workers.
        """
        thread = self._threads.get(worker)
        self.discard(worker)
        if thread is not None and thread.cancelled:
            thread = thread.after or thread
        self._ending[worker] = thread

    def close(self) -> list[int]:
        """End all threads; return the workers whose threads did not end."""
        self._draw_ahead = None
        threads = [*self._discarded, *self._threads.values()]
        for thread in threads:
            thread.cancel()
        deadline = time.perf_counter() + self._clock.seconds_left + END
        for thread in threads:
            thread.join(max(0.0, deadline - time.perf_counter()))
        self._threads, self._discarded = {}, []
        return sorted({t.worker for t in threads if t.is_alive()})


class _WorkerThread(threading.Thread):
    """One worker's thread."""

    def __init__(
        self,
        worker: int,
        executor: ThreadExecutor,
        after: "_WorkerThread | None" = None,
    ):
        """It begins when the thread `after` has ended."""
        name = f"hetjax worker {executor.workers[worker].name}"
        super().__init__(name=name, daemon=True)
        self.worker, self._executor, self.after = worker, executor, after
        self.ending = False  # once it was cancelled
        self._compilations = executor.steps.compilations
        self.queue: queue.SimpleQueue[list[Assignment] | None] = queue.SimpleQueue()
        self._throttle = Throttle(self._compilations)

    def cancel(self, *, at_once: bool = True) -> None:
        """End the thread after its step (`at_once`), or after its assignments."""
        self.ending = True
        if at_once:
            self._throttle.cancel()
        self.queue.put(None)

    @property
    def cancelled(self) -> bool:
        """Whether it begins no other step."""
        return self._throttle.cancelled

    def run(self) -> None:
        """Run groups of assignments until None comes."""
        while self.after is not None and self.after.is_alive():
            if self.cancelled:
                return
            self.after.join(POLL)
        self.after = None
        while (group := self.queue.get()) is not None and not self.cancelled:
            if group is _TURN:
                self._executor.run_turns_on(self)
                continue
            received, failure = time.perf_counter(), ""
            launched = outcomes = []
            compiled = self._compilations.own_seconds
            began = late = 0.0
            workers = [a.worker for a in group]
            try:
                launched = self._launch(group)
                # compiling is not charged to the worker
                began = received + self._compilations.own_seconds - compiled
                late = self._turns_meanwhile(launched)
                outcomes = [outcome.wait() for outcome in launched]
            except Cancelled:
                pass  # an unresponsive worker reports without its outcome
            except BaseException:
                failure = traceback.format_exc()
            finished = max(time.perf_counter() - late, began)
            if not began:  # nothing was launched
                began = received + self._compilations.own_seconds - compiled
            began = min(began, finished)
            done = [Completion(k, began, finished, failure, received) for k in workers]
            group = launched = None  # this thread must not hold its arrays
            self._executor.completed(self, done, outcomes)
            self._executor.run_turns_on(self)

    def _turns_meanwhile(self, launched: Sequence[RoundOutcome]) -> float:
        """Take turns while the device computes.

        Return the seconds by which the end is seen late: it may have come while this
        thread compiled a merge.
        """
        before = self._compilations.own_seconds
        self._executor.gather_ahead(self, launched)
        self._executor.run_turns_during(self, launched)
        self._executor.gather_ahead(self, launched)
        compiled = self._compilations.own_seconds - before
        return compiled if all(outcome.done for outcome in launched) else 0.0

    def _launch(self, group: list[Assignment]) -> list[RoundOutcome]:
        workers, steps = self._executor.workers, self._executor.steps
        first, between = workers[group[0].worker], self._throttle.between
        # the worker with the largest scripted factor slows down the whole group
        factor = max(workers[a.worker].factor for a in group)
        self._throttle.begin(first.slowdown * factor)
        if len(group) > 1:
            return steps.vmapped(group, first.device, between)
        return [steps.run(group[0], first.step_mode, first.device, between)]
