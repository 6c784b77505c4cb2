"""The records of a run: its losses, evaluations, worker events, and history.

They receive the entries of the tape and the observations of players. Their only
decision is whether the run must stop.
"""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from hetjax import tree
from hetjax.checkpointable import Leaves
from hetjax.data.dataset_checks import not_finite_advice, rows_not_finite
from hetjax.data.held_out import FEW, held_out_rows
from hetjax.engine.interruption import INTERRUPTED
from hetjax.engine.job import Job
from hetjax.engine.protocols import RoundResult, Runtime
from hetjax.engine.records.history import Evaluation, History, WorkerEvent
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.records.losses import Losses
from hetjax.engine.tape import EvaluationDone, MergeDone, StartRound
from hetjax.machine import Arrival, Join, Leave, Slow
from hetjax.machine.merge_times import changes_root, counts_as_merge
from hetjax.metric_mode import better
from hetjax.strategies.types import DEFAULT_NAME, Strategy


class RunRecords:
    """The losses and the history of one run."""

    def __init__(
        self,
        strategy: Strategy,
        job: Job,
        runtime: Runtime,
        ledger: Ledger,
        on_eval: Callable[[dict[str, float]], str],
    ):
        """Create empty records; `ledger` is that of the writer."""
        self._job, self._on_eval, self._ledger = job, on_eval, ledger
        self._workers, self._player = runtime.clock.workers, runtime.player
        self._traffic = runtime.player.traits.traffic or tuple
        self._share = runtime.coordination.share
        self._nodes_of = runtime.player.traits.nodes
        self._time_map = runtime.player.traits.time_map
        self.losses = Losses()
        # rows of rounds in flight, by worker, to name those not finite; not saved
        self._rows: dict[int, Sequence[np.ndarray]] = {}
        self._best: tuple[float, Any] | None = None  # metric and model
        self._visible: Any = None  # the model of the last evaluation
        task = job.programs.task
        self.history = History(
            job.name,
            job.seed,
            strategy.recorded_settings,
            task.metric,
            mode=task.mode,
            schedule_seed=int(job.schedule),
            algorithm="" if strategy.name == DEFAULT_NAME else strategy.name,
            parts=strategy.part_names,
            output=task.output,
            real=runtime.real,
            step_modes=runtime.step_modes,
            trace=runtime.recorder and runtime.recorder.recording,
            estimates_busy=self._time_map is not None,
            placement=runtime.notes.get("placement", ""),
            played=runtime.notes.get("played", ""),
        )

    def stop(self, reason: str) -> None:
        """Stop the run early; the first of several reasons is recorded."""
        self.history.stopped = self.history.stopped or reason

    def fail(self, error: Exception, by: str = "") -> None:
        """Record an exception and stop the run; `by` names its source."""
        self.history.error = self.history.error or error
        self.stop(f"{by}{type(error).__name__}: {error}")

    # -- rounds ---------------------------------------------------------------------

    def started(self, local_round: StartRound) -> None:
        """Note the rows of a round."""
        self._rows[local_round.worker] = local_round.rows

    def arrived(self, arrival: Arrival, result: RoundResult) -> None:
        """Note the loss of a round, after checking those of earlier rounds."""
        rows = self._rows.pop(arrival.worker, ())
        if result.known and not result.finite:
            self._note_nan(arrival, float(result.mean), rows)
            return
        self.check_losses()
        self.losses.add(arrival, result, rows)

    def _note_nan(
        self, arrival: Arrival, loss: float, rows: Sequence[np.ndarray]
    ) -> None:
        why = f"its loss was {loss:.6g}; it is reset to the center"
        self._note(arrival, "nan", "; ".join(filter(None, (why, self._bad(rows)))))

    def _bad(self, rows: Sequence[np.ndarray]) -> str:
        """Describe the rows of a round that hold NaN or infinity; "" if none do."""
        job = self._job
        if not rows:  # of a round without steps, or before the run was resumed
            return ""
        bad = rows_not_finite(job.train, np.unique(np.concatenate(rows)))
        if len(job.train) < len(job.data.train):
            bad = held_out_rows(len(job.data.train), job.schedule, FEW)[0][bad]
        of = "training split, which it was given,"
        return not_finite_advice(bad, of) if len(bad) else ""

    def check_losses(self) -> None:
        """Stop the run if a round diverged, among those whose loss is known."""
        for unchecked in self.losses.take_known():
            arrival, _, deferred, rows = unchecked
            loss = unchecked.loss
            if deferred is not None and not deferred.finite:
                self._ledger.undo_arrival(arrival, deferred.padded)
                self._note_nan(arrival, loss, rows)
                continue
            self.losses.count(arrival, loss)
            if not math.isfinite(loss) and not self.history.stopped:
                why = self._bad(rows) or "a smaller learning rate may help"
                self.stop(
                    f"{self.history.strategy}: the loss of worker "
                    f"{self.name_of(arrival.worker)} became {loss} at "
                    f"{arrival.time:.6g} s; {why}"
                )

    # -- merges ---------------------------------------------------------------------

    def merged(self, done: MergeDone) -> None:
        """Count a merge."""
        history, action = self.history, done.action
        if changes_root(action):
            times = history.merge_times  # not before the previous merge
            times.append(max(done.stamps.finish, times[-1] if times else 0.0))
        if counts_as_merge(action):
            history.last_members = action.members
            history.merges += 1

    # -- evaluations ----------------------------------------------------------------

    def evaluate(self, point: EvaluationDone) -> dict[str, float]:
        """Record an evaluation and return its metrics; stop the run if it must end."""
        instant, (self._visible, metrics) = point
        metric, before = metrics[self.history.metric], (self._best or (math.nan,))[0]
        if self._job.tracks_best and better(metric, before, self.history.mode):
            self._best = metric, self._visible
        self.check_losses()  # first: a worker's loss tells more than test loss
        train_loss = self.losses.take_mean()
        if train_loss is not None:
            metrics = {"train_loss": train_loss, **metrics}
        records, unseen = self._ledger.records, self._ledger.unseen(instant)
        moved = sum(r.bytes_received + r.bytes_sent for r in records)
        moved += sum(map(sum, self._traffic())) - sum(m.total_bytes for m in unseen)
        later = sum(counts_as_merge(merge.action) for merge in unseen)
        known = {
            "seconds": instant,
            "updates": self._ledger.updates,
            "examples": self._ledger.examples,
            "merges": self.history.merges - later,
            "bytes": moved,
            **metrics,
        }
        self.history.evals.append(Evaluation(known))
        if not math.isfinite(metrics["loss"]):
            self.stop(self._why_not_finite(instant, metrics["loss"]))
        if not self.history.stopped:
            try:
                if why := self._on_eval(self.history.evals[-1]):
                    self.stop(f"stopped at {instant:.6g} s as asked: {why}")
            except Exception as error:
                self.fail(error, "on_eval raised ")
        self.history.stopped = self._share(self.history.stopped)
        return metrics

    def _why_not_finite(self, instant: float, loss: float) -> str:
        """Return the reason for stopping at a test loss that is NaN or infinite."""
        if not self.history.merges:
            bad = rows_not_finite(self._job.data.test)
            why = (
                "look for such numbers in its weights and the data, and for tokens "
                "that its vocabulary does not have"
            )
            return (
                f"{self.history.strategy}: the test loss of the initial model is "
                f"{loss}; {not_finite_advice(bad, 'test split') if len(bad) else why}"
            )
        members = self.history.last_members
        names = [m if isinstance(m, str) else self.name_of(m) for m in members]
        return (
            f"{self.history.strategy}: the test loss of the model became {loss} by "
            f"{instant:.6g} s, last merged from {', '.join(names) or 'no worker'}; a "
            "smaller learning rate may help"
        )

    # -- worker events --------------------------------------------------------------

    def name_of(self, worker: int) -> str:
        """Return the name of a worker."""
        return self._workers[worker].name

    def happened(self, event: Join | Leave | Slow) -> None:
        """Note that a worker joined, left, was lost, or became slow."""
        match event:
            case Join():
                self._note(event, "joined", event.why)
            case Leave():
                self._note(event, "lost" if event.lost else "left", event.why)
            case Slow():
                why = f"its steps take {event.factor:g} times as long, as scripted"
                self._note(event, "slow", why)

    def _note(self, event: Arrival | Join | Leave | Slow, what: str, why: str) -> None:
        name = self.name_of(event.worker)
        self.history.events.append(WorkerEvent(event.time, name, what, why))

    # -- checkpoints ------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return all records."""
        history = self.history
        best = self._best and (self._best[0], Leaves(jax.tree.leaves(self._best[1])))
        return {
            "losses": self.losses.save(),
            "best": best,
            "time_map": None if self._time_map is None else self._time_map.save(),
            "history": {
                **{name: getattr(history, name) for name in history.growing},
                "evals": list(map(dict, history.evals)),
            },
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned, after the player and ledger."""
        self.losses.load(saved["losses"])
        if self._time_map is not None:
            self._time_map.load(saved["time_map"])
        self._load_history(saved)

    def load_for_others(self, saved: dict[str, Any], before: list[str]) -> None:
        """Continue with other workers than those named `before`.

        The totals and the history continue; rounds that were not merged are lost.
        """
        self.losses.load_for_others(saved["losses"])
        self._load_history(saved)
        times = saved["time_map"]
        if times is not None:  # the new machine's clock may have no time map
            self._map_times(partial(np.interp, xp=times["planned"], fp=times["true"]))
        self.history.last_members = ()  # workers are numbered anew
        now, here = self.history.duration, [w.name for w in self._workers]
        changes = [(name, "left", "continued without it") for name in before]
        changes += [(name, "joined", "continued with it") for name in here]
        for name, what, why in changes:
            if (name in before) != (name in here):
                event = WorkerEvent(now, name, what, f"the run {why}")
                self.history.events.append(event)

    def _map_times(self, time_map: Callable[[Any], Any]) -> None:
        """Map all times, planned to true."""
        history = self.history
        history.map_times(time_map)
        if not history.ends_at_evaluation:
            history.duration = float(time_map(np.array(history.duration)))
        self._ledger.map_times(time_map)

    def _load_history(self, saved: dict[str, Any]) -> None:
        for name in self.history.growing:
            setattr(self.history, name, saved["history"][name])
        self.history.evals = list(map(Evaluation, self.history.evals))
        self._visible = self._player.model()
        if saved["best"]:
            metric, leaves = saved["best"]
            self._best = metric, self._player.model_of(leaves)

    # -- rollback ---------------------------------------------------------------------

    def mark(self) -> dict[str, Any]:
        """Return a point for `undo`; the run is not stopped, and losses are known."""
        history = self.history
        return {
            "losses": self.losses.copy(),
            "rows": dict(self._rows),
            "seen": (self._visible, self._best),
            "history": {
                name: copy.copy(getattr(history, name)) for name in history.growing
            },
        }

    def undo(self, mark: dict[str, Any]) -> None:
        """Roll back to a point of `mark`."""
        self.losses.load(mark["losses"])
        mark["losses"] = self.losses.copy()
        self._rows = dict(mark["rows"])
        self._visible, self._best = mark["seen"]
        self.history.stopped = ""
        for name, value in mark["history"].items():
            setattr(self.history, name, copy.copy(value))

    def close(self, stuck: list[int]) -> None:
        """Complete the history."""
        history, job = self.history, self._job
        if not history.stopped:
            self.check_losses()
        history.stuck = [self.name_of(k) for k in stuck]
        # the model of the last evaluation, unless the run continued after it; after an
        # exception the replicas may be in the middle of a merge
        last = history.ends_at_evaluation or history.error is not None
        if last:
            self._discard_unseen(history.duration)
        history.root_merges = len(history.merge_times)
        if self._time_map is not None:
            self._map_times(self._time_map)
        workers = history.workers = self._ledger.close(history.duration)
        for worker, (received, sent) in zip(workers, self._traffic(), strict=False):
            worker.bytes_received += received
            worker.bytes_sent += sent
        for worker, node in zip(workers, self._nodes_of(), strict=False):
            worker.node = node
        history.timeline = self._ledger.timeline
        model = self._visible if last else self._player.model()
        history.params, history.model_state = model
        history.parameters = tree.size(model[0])
        history.model = job.programs.task.restore(*model)
        if job.whole_test:
            history.eval_examples = job.num_test
            # this takes long: not after Ctrl-C or SIGTERM
            if history.error is None and history.stopped != INTERRUPTED:
                history.at_end = self._share(self._player.evaluate_whole_test(model))
        history.programs = dict(sorted(job.compilations.programs.items()))
        history.compilations = sum(history.programs.values())
        history.compile_seconds = job.compilations.seconds
        if self._best is not None:
            history.best_params, history.best_model_state = self._best[1]

    def _discard_unseen(self, end: float) -> None:
        """Subtract merges that are visible after `end` [s]: no evaluation has them."""
        history, times = self.history, self.history.merge_times
        for merge in reversed(self._ledger.unseen(end)):
            self._ledger.count_bytes(merge, -1)
            history.merges -= counts_as_merge(merge.action)
            if changes_root(merge.action):
                history.unseen_merge = merge.visible
                times.pop()
