"""The loop: take the next event, write the tape, play it, and record what happens.

This is the one place where the host world and the device world meet: the writer of the
tape (`hetjax.engine.tape_writer`) on one side; on the other the player, the records of
the run, its checkpoints, and its trace.

On real workers the tape of an event is played first, so that workers compute again, and
recorded afterwards, before the next event is taken.
"""

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hetjax.checkpoint.checkpoint_manager import CheckpointManager
from hetjax.engine import tape
from hetjax.engine.capabilities import PlaysAhead, RoundNotFinite
from hetjax.engine.expected_draws import RoundRows
from hetjax.engine.interruption import INTERRUPTED, interruptible
from hetjax.engine.job import Job
from hetjax.engine.job_writer import writer_of
from hetjax.engine.protocols import EvaluatedModel, Runtime
from hetjax.engine.records.history import History, command_line
from hetjax.engine.rollback import Rollback
from hetjax.engine.run_records import RunRecords
from hetjax.engine.snapshots import Snapshots, WholeRun
from hetjax.machine import (
    Arrival,
    Join,
    Leave,
    Merged,
    RunEnded,
    Slow,
    Timer,
)
from hetjax.schedule.types import Actions, Policy
from hetjax.strategies.types import Strategy


class Loop:
    """One run. `run` returns its history."""

    def __init__(
        self,
        strategy: Strategy,
        job: Job,
        runtime: Runtime,
        on_eval: Callable[[dict[str, float]], str],
        *,
        policy: Policy | None = None,
        manager: CheckpointManager | None = None,
        saved: dict[str, Any] | None = None,
    ):
        """`on_eval` is called with each evaluation and returns why to stop, or "".

        `policy` decides in place of the strategy's. `manager` writes checkpoints of the
        run; `saved` is the snapshot from which it continues.
        """
        self._manager, self._saved = manager, saved
        if runtime.checkpoints is None and manager is not None:
            raise ValueError(
                f"{job.name}: runs on this machine cannot be checkpointed: leave out "
                "checkpoint="
            )
        self._policy = policy or strategy.policy
        self._strategy, self._job = strategy, job
        self._runtime, self._on_eval = runtime, on_eval
        self._clock, self._player = runtime.clock, runtime.player
        self._record = runtime.recorder.write if runtime.recorder else None
        # calls that record what was played, in order; None: all is recorded at once,
        # since the clock stands while the host works, or results are not known yet
        self._unrecorded: deque[tuple[Any, ...]] | None = None
        self._began = time.perf_counter()
        self._rollback: Rollback | None = None  # for a player that plays ahead

    def run(self) -> History:
        """Train until the last instant, a stop, or Ctrl-C; return the history."""
        compilations, runtime = self._job.compilations, self._runtime
        began, compiled = time.perf_counter(), compilations.seconds  # before the run
        checkpointed = self._manager is not None
        with (
            compilations.counting(),
            interruptible(checkpointed=checkpointed) as came,
            _little_garbage(),
        ):
            stuck: list[int] = []
            in_step = True  # with the other processes of the run, if any
            self._interrupted = runtime.coordination.interrupt(came)
            try:
                self._open()
                self._begin()
                self._player.run_turns(self.take_turns)
            except RunEnded as ended:
                self._records.stop(str(ended))
            except Exception as error:  # of the policy, a schedule, a merge, ...
                records = getattr(self, "_records", None)
                if records is None or not records.history.evals:
                    raise  # there are no results that it must not lose
                self._records.fail(error)
                in_step = False
            except BaseException as error:
                runtime.coordination.leave(error)
                raise
            finally:
                stuck = self._player.close()
            self._record_the_rest()
            self._records.close(stuck)
            # too late for this run, but a comparison must stop, in all processes
            signal = runtime.coordination.share(came()) if in_step else came()
            if signal:
                self._records.history.signal = signal
        history = self._records.history
        compiled = compilations.seconds - compiled
        history.host_seconds = time.perf_counter() - began - compiled
        # without reference cycles, all arrays of the run are freed now
        self._snapshots.close()
        del self._snapshots
        self._handlers, self._record_of, self._unrecorded = {}, {}, None
        self._rollback, self._player.plays = None, {}
        return history

    def _open(self) -> None:
        """Make the first model, the writer, the records, and the handlers."""
        strategy, job, player = self._strategy, self._job, self._player
        player.open()
        ahead = tape.Synchronize in player.plays  # results may not be known
        if self._runtime.real and not ahead:
            self._unrecorded = deque()
        self._writer = writer_of(
            strategy,
            job,
            self._clock,
            player.traits,
            policy=self._policy,
            stopped=lambda: records.history.stopped,  # made below
        )
        in_order = self._policy.bulk_synchronous or len(self._clock.workers) == 1
        if self._runtime.expect is not None and in_order:
            self._writer.examples.expect()
            self._runtime.expect(self._draw_ahead)
        ledger = self._writer.ledger
        self._records = records = RunRecords(
            strategy, job, self._runtime, ledger, self._on_eval
        )
        records.history.command = command_line()
        self._handlers = {
            **dict.fromkeys((Actions, Merged, Timer), lambda entry: None),
            **player.plays,
            Arrival: self._arrived,
            tape.StartRound: self._start,
            tape.MergeReplicas: self._merge,
            tape.DiscardRound: self._discarded,
            tape.EvaluateRoot: self._evaluate,
            tape.Synchronize: self._synchronize,
            tape.MergesDone: self._merges_done,
            tape.EvaluationDone: self._evaluated,
            tape.EndRun: lambda stop: records.stop(stop.why),
        }
        self._record_of = {
            tape.StartRound: records.started,
            tape.MergeDone: records.merged,
            tape.MergeLaunched: self._settle,
            **dict.fromkeys((Join, Leave, Slow), records.happened),
        }

    def _begin(self) -> None:
        """Begin, or continue from what was saved."""
        run = WholeRun(self._runtime, self._writer, self._records)
        rests = self._strategy.policy.bulk_synchronous
        self._snapshots = Snapshots(self._manager, run, rests=rests)
        begin = self._writer.begin
        if self._saved is not None and run.continue_from(self._saved):
            begin = self._writer.resume
        if self._runtime.real:
            self._clock.begin()
        self._carry_out(begin())
        if isinstance(self._player, PlaysAhead):
            self._rollback = Rollback(
                self._player, self._writer, self._clock, self._records
            )

    @property
    def _over(self) -> bool:
        """Whether the run was stopped, or has reached the last instant."""
        return bool(self._records.history.stopped) or not self._writer.due

    def take_turns(self, yields: Callable[[], bool] = lambda: False) -> bool:
        """Handle event after event; return whether there is more to do.

        See `hetjax.engine.player_parts.TakeTurns`.
        """
        self._player.flush()  # rounds that were started before the first turn
        while True:
            try:
                if not self._turn() or yields():
                    return not self._over
            except RoundNotFinite:
                assert self._rollback is not None
                self._rollback.undo()
            except Exception:
                if self._rollback is None or not self._rollback.is_needed():
                    raise
                self._rollback.undo()  # an earlier round was not finite

    def _turn(self) -> bool:
        """Handle an event; False if none is due, or the run is over."""
        rollback, snapshots = self._rollback, self._snapshots
        self._record_played()
        here = rollback is None or rollback.is_here
        if not self._over and here:
            snapshots.between_events()
        if (
            not self._over
            and self._interrupted()
            and (self._manager is None or (here and snapshots.is_done()))
        ):
            self._records.stop(INTERRUPTED)
        event = None if self._over else self._clock.next()
        if event is None:
            if rollback is not None:
                rollback.synchronize()
            return False
        self._records.history.duration = event.time
        self._carry_out(self._writer.handle(event))
        self._player.flush()
        if rollback is not None:
            rollback.handled()
        return True

    def _draw_ahead(self, worker: int) -> RoundRows | None:
        """Draw the next round of a worker, if nothing can be recorded meanwhile.

        To record a merge is to wait for it.
        """
        launched = self._writer.launched
        if self._unrecorded and all(merge.is_done for _, merge in launched):
            return None
        return self._writer.examples.expected_rows(worker)

    # -- what is written ---------------------------------------------------------------

    def _carry_out(self, written: tape.Tape) -> None:
        """Play and record all entries, and send the answers to the writer."""
        handlers, answer = self._handlers, None
        later = self._unrecorded
        try:
            while True:
                try:
                    entry = written.send(answer)
                except StopIteration:
                    return
                kind = type(entry)
                if later is None:
                    self._note(entry)
                elif kind is tape.StartRound:
                    later.append((self._note_start, entry))
                elif kind is tape.EvaluationDone:  # of all that was played before
                    self._record_played()
                    self._note(entry)
                else:
                    later.append((self._note, entry))
                answer = handlers[kind](entry) if kind in handlers else None
        finally:
            written.close()

    def _note_start(self, entry: tape.StartRound) -> None:
        """Record a round, which begins when its worker's merge is done."""
        start = self._writer.ledger.start_of(entry.worker, entry.start)
        self._note(entry if start == entry.start else entry._replace(start=start))

    def _note(self, entry: Any) -> None:
        """Record an entry."""
        if self._record is not None:
            self._record(entry)
        record = self._record_of.get(type(entry))
        if record is not None:
            record(entry)

    def _start(self, local_round: tape.StartRound) -> None:
        self._look()
        self._player.plays[tape.StartRound](local_round)

    def _look(self) -> None:
        for _, launched in self._writer.launched:
            launched.look()

    def _merge(self, entry: tape.MergeReplicas) -> Any:
        if self._writer.launched:  # times are exact for one launched merge
            self._record_played()
        return self._player.plays[tape.MergeReplicas](entry)

    def _settle(self, entry: tape.MergeLaunched) -> None:
        self._note(self._writer.settle())

    def _record_played(self) -> None:
        """Record everything that was played so far."""
        later = self._unrecorded
        self._look()
        while later:
            function, *arguments = later.popleft()
            function(*arguments)

    def _record_the_rest(self) -> None:
        """Record what was played before the run ended, perhaps by an exception."""
        while self._unrecorded:
            try:
                self._record_played()
            except Exception as error:
                self._records.fail(error)
        if self._runtime.recorder is not None:  # a trace is read from its file
            self._runtime.recorder.flush()

    def _arrived(self, arrival: Arrival) -> Any:
        result = self._player.plays[Arrival](arrival)
        if self._unrecorded is None:
            self._records.arrived(arrival, result)
        else:
            self._unrecorded.append((self._records.arrived, arrival, result))
        return result

    def _discarded(self, entry: tape.DiscardRound) -> None:
        self._player.plays[tape.DiscardRound](entry)
        if entry.cancelled:
            self._snapshots.cancelled(entry.worker)
        else:
            self._snapshots.lost(entry.worker)

    def _evaluate(self, entry: tape.EvaluateRoot) -> EvaluatedModel:
        """Evaluate while the clock stands still; process 0 decides on the metrics."""
        play = self._player.plays[tape.EvaluateRoot]
        if not self._runtime.real:
            seen = play(entry)
            self._player.evaluator.warn_if_slow(self._began)
            return seen
        self._record_played()
        with self._clock.paused():
            if self._runtime.recorder is not None:
                self._runtime.recorder.flush()
            model, metrics = play(entry)
            return EvaluatedModel(model, self._runtime.coordination.share(metrics))

    def _evaluated(self, point: tape.EvaluationDone) -> dict[str, float]:
        """Record an evaluation, after the run can no longer roll back behind it.

        So `on_eval` sees each evaluation once, and a snapshot may be taken here.
        """
        if self._rollback is not None:
            self._rollback.reach()
        metrics = self._records.evaluate(point)
        if self._rollback is None:
            return metrics
        return self._player.policy_metrics(point.seen, metrics)

    def _merges_done(self, entry: tape.MergesDone) -> None:
        if self._rollback is None:
            if self._snapshots.rests:
                self._record_played()
            self._snapshots.between_rounds()

    def _synchronize(self, entry: tape.Synchronize) -> None:
        self._player.plays[tape.Synchronize](entry)
        self._records.check_losses()


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Let the garbage collector run less often.

    By default it visits all objects of the process, for some 100 ms, again and again:
    a third of the host's time of a compiled run.
    """
    before = gc.get_threshold()
    gc.set_threshold(*map(max, before, (50_000, 50, 1_000)))
    try:
        yield
    finally:
        gc.set_threshold(*before)
