"""The loop: take the next event, ask the policy what to do, and do it.

This is the one place that connects the host world and the device world. It asks the
clock for the next event, records it, tells the policy, and carries out the policy's
actions. It depends on no particular strategy or kind of machine: those are behind the
protocols in `hetjax.engine.protocols`.
"""

import time
from collections.abc import Callable

import numpy as np

from hetjax.data.batching import nonzeros_of
from hetjax.engine.bookkeeping import Bookkeeping
from hetjax.engine.interruption import INTERRUPTED, interruptible
from hetjax.engine.job import Job
from hetjax.engine.merging import Merging
from hetjax.engine.protocols import Runtime
from hetjax.engine.records.history import History
from hetjax.machine import (
    Arrival,
    Evaluated,
    EvaluationDue,
    Event,
    Join,
    Leave,
    LocalRound,
    Merged,
    Roster,
    RunEnded,
    Slow,
    Timer,
)
from hetjax.schedule.types import Actions
from hetjax.strategies.types import Strategy

_EVALUATE = "evaluate"  # the loop's timer; it comes after all arrivals of its time


class Loop:
    """One run. `run` returns its history."""

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        job: Job,
        runtime: Runtime,
        on_eval: Callable[[dict[str, float]], bool],
    ):
        """`on_eval` is called with each evaluation and returns whether to stop."""
        self._policy, self._job = strategy.policy, job
        self._clock, self._executor = runtime.clock, runtime.executor
        self._hear_interrupt, self._shared = runtime.hear_interrupt, runtime.shared
        self._leave = runtime.leave
        self._set_up = lambda: Bookkeeping(name, strategy, job, runtime, on_eval)
        self._roster = Roster.of(runtime.clock.workers)
        self._awaited = 0  # merges and timers of which the policy will be told
        self._last: Event | None = None  # the last one that the policy was told

    def run(self) -> History:
        """Train until the last instant, a stop, or Ctrl-C; return the history."""
        began = time.perf_counter()
        compilations = self._job.compilations
        with compilations.counting(), interruptible() as pressed:
            stuck: list[int] = []
            in_step = True  # with the run's other processes, if there are any
            self._interrupted = self._hear_interrupt(pressed)
            try:
                self._books = self._set_up()
                self._begin()
                self._executor.lead(self.take_turns)
            except RunEnded as ended:
                self._books.stop(str(ended))
            except Exception as error:  # of the policy, a schedule, a merge, ...
                if not self._has_results():
                    raise
                self._books.fail(error)
                in_step = False
            except BaseException as error:
                self._leave(error)
                raise
            finally:
                stuck = self._executor.close()
            self._books.close(stuck)
            # too late for this run, but a comparison must stop, in all processes
            if self._shared(pressed()) if in_step else pressed():
                self._books.stop(INTERRUPTED)
        history = self._books.history
        history.host_seconds = time.perf_counter() - began - compilations.seconds
        return history

    def _has_results(self) -> bool:
        """Is there an evaluation that an exception must not lose?"""
        books = getattr(self, "_books", None)
        return books is not None and bool(books.history.evals)

    def _begin(self) -> None:
        books, clock, job = self._books, self._clock, self._job
        self._merging = Merging(
            clock,
            job,
            books.topology,
            books.store,
            books.ledger,
            books.evaluations,
            books.history,
            share=books.share,
            learning_rate=books.learning_rate,
            observe=books.observe,
            settle=books.settle,
        )
        for instant in job.instants:
            clock.set_timer(_EVALUATE, instant)
        clock.begin()
        self._state, actions = self._policy.init(clock.workers, len(job.train))
        self._carry_out(actions)

    def take_turns(self, yields: Callable[[], bool] = lambda: False) -> bool:
        """Handle event after event; return whether there is more to do.

        See `hetjax.engine.protocols.TakeTurns`.
        """
        self._executor.flush()  # rounds that were started before the first turn
        while not self._books.over:
            if self._interrupted():
                self._books.stop(INTERRUPTED)
                break
            event = self._clock.next()
            if event is None:
                break
            self._handle(event)
            self._executor.flush()
            if yields():
                break
        return not self._books.over

    # -- events ------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        """Record an event, then tell the policy and carry out its actions."""
        books, again = self._books, False
        books.history.duration = event.time
        if isinstance(event, Timer) and event.name == _EVALUATE:
            self._evaluate(event.time)
            return
        if isinstance(event, Arrival):
            books.check_in(event, self._executor.finish(event.worker))
        elif isinstance(event, Merged | Timer):
            self._awaited -= 1
        elif isinstance(event, Join):
            books.note(event, "joined", event.why)
        elif isinstance(event, Leave):
            books.note(event, "lost" if event.lost else "left", event.why)
            again = event.lost and event.worker in self._roster.lost
        elif isinstance(event, Slow):  # not told to the policy, which only measures
            why = f"its steps take {event.factor:g} times as long, as scripted"
            books.note(event, "slow", why)
            return
        self._roster = self._roster.after(event)
        if isinstance(event, Leave) and event.lost:
            self._lose(event, again)
        elif not books.history.stopped:
            self._tell(event)

    def _lose(self, leave: Leave, again: bool) -> None:
        """Drop a lost worker and what it did not merge.

        If it was known to be lost (`again`), this Leave only adds the reason.
        """
        books = self._books
        if not again:
            self._executor.drop(leave.worker)
            books.forget(leave)
            if not books.history.stopped:
                self._tell(leave)  # before the end: other rounds may still be merged
        if not self._roster.active and not self._clock.has_pending_joins:
            name = books.name_of(leave.worker)
            books.stop(f"worker {name}, the last one, was lost: {leave.why}")

    def _evaluate(self, instant: float) -> None:
        books = self._books
        self._tell(EvaluationDue(instant))
        metrics = books.evaluate(instant)
        if books.evaluations.due and not books.history.stopped:
            self._tell(Evaluated(metrics | books.losses.take_mean(), instant))
        self._check_progress()

    def _check_progress(self) -> None:
        """Stop a run in which no worker has a local round, or will ever get one."""
        pending = self._awaited or self._clock.has_pending_joins
        if pending or self._roster.working:
            return
        if self._last is None:
            since, what = 0.0, "when the run began"
        else:
            since, what = self._last.time, f"on {type(self._last).__name__}"
        if not self._roster.active:
            if self._roster.lost:  # one may come back; `_lose` sees to the end
                return
            self._books.stop(
                f"no worker is active since {since:.6g} s: the policy stopped the last "
                "one"
            )
            return
        self._books.stop(
            f"no worker has a local round since {since:.6g} s: the policy returned no "
            f"actions {what}"
        )

    # -- actions -----------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        """Tell the policy of an event and carry out its actions."""
        if not isinstance(event, EvaluationDue | Evaluated):
            self._last = event
        self._state, actions = self._policy.react(self._state, event)
        self._carry_out(actions)

    def _carry_out(self, actions: Actions) -> None:
        """Carry out merges first, then starts, local rounds, timers and stops."""
        for action in actions.merges:
            self._merging.carry_out(action)
            self._awaited += 1
        for worker in actions.start:
            self._clock.start(worker)
            if self._books.ledger.has_merged(worker):
                self._books.store.forget(worker)  # it starts from the center again
        for worker, local_round in actions.dispatch:
            self._dispatch(worker, local_round)
        for name, when in actions.timers:
            if name == _EVALUATE:
                raise ValueError(f"the timer {name!r} is the loop's own: rename yours")
            self._clock.set_timer(name, when)
            self._awaited += 1
        for worker in actions.stop:
            self._clock.stop(worker)

    def _dispatch(self, worker: int, local_round: LocalRound) -> None:
        """Draw the examples, start the clock, and have the steps run.

        They start from the replica that the worker holds now; their result is visible
        to everything else from the arrival on.
        """
        books = self._books
        rows = books.draw(worker, local_round)
        learning_rate = np.float32(books.learning_rate() * local_round.lr_scale)
        nonzeros = nonzeros_of(self._job.train, rows)
        planned = self._clock.dispatch(worker, local_round, nonzeros)
        self._roster = self._roster.dispatched((worker,))
        self._executor.start(
            books.check_out(worker, local_round, planned.start, rows, learning_rate)
        )
