"""The loop: take the next event, ask the policy what to do, and do it.

This is the one place that connects the host world and the device world. It asks the
clock for the next event, records it, tells the policy, and carries out the policy's
actions. It depends on no particular strategy or kind of machine: those are behind the
protocols in `hetjax.engine.protocols`.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hetjax.data.batching import nonzeros_of
from hetjax.engine.bookkeeping import Bookkeeping
from hetjax.engine.cut import Cuts, Saver, outcome_of
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
from hetjax.schedule.checks import begin, react
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
        on_eval: Callable[[dict[str, float]], str],
        *,
        saver: Saver | None = None,
        saved: dict[str, Any] | None = None,
    ):
        """`on_eval` is called with each evaluation and returns why to stop, or "".

        `saver` keeps cuts of the run; `saved` is one from which it continues.
        """
        self._saver, self._saved, self._kept = saver, saved, runtime.kept
        if runtime.kept is None and saver is not None:
            raise ValueError(
                f"{name}: runs on this machine cannot be kept: leave out checkpoint"
            )
        self._policy, self._job = strategy.policy, job
        self._clock, self._executor = runtime.clock, runtime.executor
        self._hear_interrupt, self._shared = runtime.hear_interrupt, runtime.shared
        self._leave = runtime.leave
        self._set_up = lambda: Bookkeeping(name, strategy, job, runtime, on_eval)
        self._roster = Roster.of(runtime.clock.workers)
        self._awaited = 0  # merges and timers of which the policy will be told
        self._last: Event | None = None  # the last one that the policy was told
        self._cuts: Cuts | None = None
        self._pending = Actions()  # of a cut: what the policy has decided already

    def run(self) -> History:
        """Train until the last instant, a stop, or Ctrl-C; return the history."""
        began = time.perf_counter()
        compilations = self._job.compilations
        kept = self._saver is not None
        with compilations.counting(), interruptible(kept=kept) as pressed:
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
            came = self._shared(pressed()) if in_step else pressed()
            if came:
                self._books.history.signal = came
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
            miss=books.miss,
        )
        if self._saver is not None and self._kept is not None:
            leaves_of = books.store.leaves_of
            rests = self._policy.bulk_synchronous
            self._cuts = Cuts(
                self._saver, self._kept, self.save, leaves_of, rests=rests
            )
        if self._saved is not None and self._fits(self._saved):
            self._load(self._saved)
            clock.begin()
            self._go_on(self._pending)
            return
        if self._saved is not None:
            self._load_for_others(self._saved)
        for instant in books.evaluations.due:
            clock.set_timer(_EVALUATE, instant)
        clock.begin()
        self._state, actions = begin(self._policy, clock.workers, len(job.train))
        self._merge(actions)
        self._go_on(actions)

    def save(self) -> dict[str, Any]:
        """Return the run between two events, but for the rounds under way."""
        assert self._kept is not None  # else there are no cuts
        return {
            "machine": self._machine,
            "policy": self._state,
            "roster": self._roster,
            "awaited": self._awaited,
            "last": self._last,
            "pending": self._pending,
            "clock": self._kept.clock.save(),
            "books": self._books.save(),
        }

    @property
    def _machine(self) -> list[Any]:
        """The workers' names, and the kind of machine: a cut fits only the same."""
        assert self._kept is not None  # else there are no cuts
        names = [w.name for w in self._clock.workers]
        return [names, self._kept.kind]

    def _fits(self, saved: dict[str, Any]) -> bool:
        return saved["run"]["machine"] == self._machine

    def _load_for_others(self, saved: dict[str, Any]) -> None:
        """Continue with other workers: the policy begins anew at the root's model."""
        assert self._kept is not None  # checked in `__init__`
        run = saved["run"]
        names, _ = run["machine"]
        self._books.load_for_others(run["books"], names)
        self._kept.clock.start_at(self._books.history.duration)

    def _load(self, saved: dict[str, Any]) -> None:
        """Continue from a cut: what `save` returned, and the outcomes of rounds."""
        assert self._kept is not None  # checked in `__init__`
        clock, executor = self._kept.clock, self._kept.executor
        run, store = saved["run"], self._books.store
        self._books.load(run["books"])
        self._state, self._roster = run["policy"], run["roster"]
        self._awaited, self._last = run["awaited"], run["last"]
        self._pending = run["pending"]
        clock.load(run["clock"])
        for worker in sorted(self._roster.working):
            fields = saved.get(f"outcome {worker}")
            if fields:
                replica_of = partial(store.replica_of, worker)
                executor.load(worker, outcome_of(fields, replica_of))
            clock.take_up(worker, fields and fields["arrival"])

    def take_turns(self, yields: Callable[[], bool] = lambda: False) -> bool:
        """Handle event after event; return whether there is more to do.

        See `hetjax.engine.protocols.TakeTurns`.
        """
        self._executor.flush()  # rounds that were started before the first turn
        while not self._books.over:
            self._look_after_cuts()
            if self._interrupted() and self._may_end():
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

    def _look_after_cuts(self) -> None:
        """Keep the run, if that is due now."""
        if self._cuts is not None:
            self._cuts.between_events(*self._progress)
            if self._cuts.problem:
                self._books.stop(self._cuts.problem)

    @property
    def _progress(self) -> tuple[int, frozenset[int]]:
        """The number of evaluations, and the workers that have a local round."""
        return len(self._books.history.evals), self._roster.working

    def _may_end(self) -> bool:
        """Interrupted: is the run kept up to now, if it is kept at all?"""
        return self._cuts is None or self._cuts.is_done(*self._progress)

    # -- events ------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        """Record an event, then tell the policy and carry out its actions."""
        books, again = self._books, False
        books.history.duration = event.time
        if isinstance(event, Timer) and event.name == _EVALUATE:
            self._evaluate(event.time)
            return
        if isinstance(event, Arrival):
            outcome = self._executor.finish(event.worker)
            if self._cuts is not None:
                self._cuts.arrived(event, outcome)
            books.check_in(event, outcome)
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
            if self._cuts is not None:
                self._cuts.lost(leave.worker)
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
            self._tell(Evaluated(metrics, instant))
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
        self._state, actions = react(self._policy, self._state, event)
        self._merge(actions)
        if isinstance(event, Arrival) and self._cuts is not None:
            self._pending = actions._replace(merges=())
            self._cuts.between_rounds(*self._progress)
            self._pending = Actions()
        self._go_on(actions)

    def _merge(self, actions: Actions) -> None:
        """Carry out merges, which come before everything else."""
        for action in actions.merges:
            self._merging.carry_out(action)
            self._awaited += 1

    def _go_on(self, actions: Actions) -> None:
        """Carry out starts, local rounds, timers and stops."""
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
        local_round.check()
        rows = books.draw(worker, local_round)
        learning_rate = np.float32(books.learning_rate() * local_round.lr_scale)
        nonzeros = nonzeros_of(self._job.train, rows)
        planned = self._clock.dispatch(worker, local_round, nonzeros)
        self._roster = self._roster.dispatched((worker,))
        self._executor.start(
            books.check_out(worker, local_round, planned.start, rows, learning_rate)
        )
