"""The records of a run: replicas, the ledger, losses, evaluations, the history.

The loop tells it what happened. Its only decision is whether the run has to stop.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hetjax.data.finite import named, rows_not_finite
from hetjax.data.held_out import FEW, rows_apart
from hetjax.direction import better
from hetjax.engine.correction import Correction
from hetjax.engine.evaluation import Evaluations
from hetjax.engine.interruption import INTERRUPTED
from hetjax.engine.job import Job
from hetjax.engine.merging import changes_root, counts_as_merge
from hetjax.engine.protocols import Assignment, RoundResult, Runtime
from hetjax.engine.records.history import Evaluation, History, WorkerEvent
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.records.losses import Losses
from hetjax.machine import Arrival, Event, Leave, LocalRound, MergeAction
from hetjax.saved import Leaves
from hetjax.schedule.learning_rates import Progress, learning_rate_at
from hetjax.strategies.types import OWN, Strategy
from hetjax.summaries import maker


class Bookkeeping:
    """The replicas, records and history of one run."""

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        job: Job,
        runtime: Runtime,
        on_eval: Callable[[dict[str, float]], str],
    ):
        """Set up empty records."""
        self._strategy, self._job, self._on_eval = strategy, job, on_eval
        self._clock = clock = runtime.clock
        self.topology = strategy.policy.topology(clock.workers)
        overwrites = "grad_sum" in strategy.local.provides
        self.ledger = Ledger(
            clock.workers,
            self.topology,
            overwrites=overwrites,
            accrues=any("grad_sum" in merge.requires for merge in strategy.merges)
            and not overwrites,
        )
        self.store = runtime.open_store(
            strategy,
            job,
            runtime.placement,
            self.topology,
            on_fetch=self.ledger.record_fetch,
        )
        self.losses = Losses(keeps=strategy.sampler.observe is not None)
        # the rows of rounds under way, by worker, and of those whose loss is not known;
        # not saved: they only name rows that are not finite
        self._rows: dict[int, list[np.ndarray]] = {}
        self._unchecked: deque[tuple[Arrival, list[np.ndarray]]] = deque()
        self._shared = runtime.shared
        self.evaluations = Evaluations(
            name, job, clock, runtime.placement, self.store, self._shared
        )
        self._corrected, self._nodes_of = runtime.corrected, runtime.nodes
        self._best: tuple[float, Any] | None = None  # metric and model
        self._visible: Any = None  # the model of the last evaluation
        self.sampler = strategy.sampler.init(clock.workers, len(job.train), job.seed)
        task = job.programs.task
        self.history = History(
            name,
            job.seed,
            strategy.recorded_settings,
            task.metric,
            mode=task.mode,
            algorithm="" if strategy.name == OWN else strategy.name,
            output=task.output,
            real=runtime.real,
            step_modes=runtime.step_modes,
            trace=runtime.recording,
            placement=runtime.note,
            estimates_busy=runtime.estimates_busy,
        )

    @property
    def over(self) -> bool:
        """Was the run stopped, or has it reached the last instant?"""
        return bool(self.history.stopped) or not self.evaluations.due

    def stop(self, reason: str) -> None:
        """Stop the run early; of several reasons the first is kept."""
        self.history.stopped = self.history.stopped or reason

    def fail(self, error: Exception, by: str = "") -> None:
        """Stop the run because of an exception, which is kept; `by` says whose."""
        self.history.error = self.history.error or error
        self.stop(f"{by}{type(error).__name__}: {error}")

    # -- rounds ---------------------------------------------------------------------

    def draw(self, worker: int, local_round: LocalRound) -> list[np.ndarray]:
        """Draw the rows of the training split for each step of a round."""
        wanted = local_round.examples
        drawn = self._strategy.sampler.draw(self.sampler, worker, wanted)
        pair = isinstance(drawn, tuple | list) and len(drawn) == 2
        if not pair or len(drawn[1]) != wanted:
            found = f"{len(drawn[1])} rows" if pair else f"a {type(drawn).__name__}"
            raise ValueError(
                f"the sampler {maker(self._strategy.sampler.draw)}: draw returned "
                f"{found}: return a pair (state, rows) with {wanted} rows"
            )
        self.sampler, indices = drawn
        size = local_round.size
        steps = range(local_round.local_steps)
        return [indices[i * size : (i + 1) * size] for i in steps]

    def learning_rate(self) -> float:
        """The schedule's value now, at the largest batch size."""
        if isinstance(self._strategy.learning_rate, float):  # asked at every arrival
            return self._strategy.learning_rate
        examples, updates = self.ledger.examples, self.ledger.updates
        epochs = examples / len(self._job.train)
        progress = Progress(examples, epochs, updates, self._clock.now)
        return learning_rate_at(self._strategy.learning_rate, progress)

    def check_out(
        self,
        worker: int,
        local_round: LocalRound,
        start: float,
        rows: list[np.ndarray],
        learning_rate: np.float32,
    ) -> Assignment:
        """Return the assignment of a worker's round, which begins at `start`."""
        replica = self.store.check_out(worker)
        self._rows[worker] = rows
        first_step = self.ledger.steps_of(worker)
        self.ledger.record_dispatch(worker, local_round, start, float(learning_rate))
        return Assignment(worker, replica, rows, learning_rate, first_step)

    def check_in(self, arrival: Arrival, outcome: RoundResult) -> None:
        """Take back a worker's replica after its round; reset it if not finite.

        Where it is not known yet whether it is finite, the program resets it, and
        `check_losses` tells later.
        """
        worker = arrival.worker
        resets = self._job.on_nan == "reset" and outcome.known
        finite = not resets or bool(np.asarray(outcome.finite))
        self.store.check_in(worker, outcome.replica)
        self.ledger.record_arrival(arrival, outcome.padded, finite=finite)
        if not finite:
            self.store.reset_to_center(worker)
            rows = self._rows.pop(worker, [])
            self._note_nan(arrival, float(outcome.mean), rows)
            return
        self.check_losses()
        self.losses.add(arrival, outcome)
        self._unchecked.append((arrival, self._rows.pop(worker, [])))

    def _note_nan(self, arrival: Arrival, loss: float, rows: list[np.ndarray]) -> None:
        found = self._not_finite(rows)
        why = f"its loss was {loss:.6g}; it is reset to the center"
        self.note(arrival, "nan", f"{why}; {found}" if found else why)

    def _not_finite(self, rows: list[np.ndarray]) -> str:
        """Which rows of a round hold NaN or infinity, for a message, or ""."""
        job = self._job
        if not rows:  # of a round without steps, or before the run was resumed
            return ""
        bad = rows_not_finite(job.train, np.unique(np.concatenate(rows)))
        if len(job.train) < len(job.data.train):
            bad = rows_apart(len(job.data.train), job.seed, FEW)[0][bad]
        if not len(bad):
            return ""
        return (
            f"{named(bad)} of the training split, which it was given, hold"
            f"{'s' * (len(bad) == 1)} NaN or infinity: correct or remove such rows"
        )

    def forget(self, leave: Leave) -> None:
        """Drop a lost worker's replica and what it did since its last merge."""
        worker = leave.worker
        self.ledger.record_loss(worker, leave.time)
        self.store.forget(worker)
        self.losses.forget(worker)
        if self._job.on_lost_worker == "stop":
            self.stop(f"worker {self.name_of(worker)} was lost: {leave.why}")

    def miss(self, worker: int) -> None:
        """A worker is absent from a merge: drop what it did since its last one.

        It takes part like a worker that has just begun from the root's model.
        """
        self.ledger.record_loss(worker, self._clock.now)
        self.ledger.record_fetch(worker)
        self.losses.forget(worker)

    def share(self) -> np.ndarray | None:
        """Each worker's share of the data; None if all workers draw from all of it."""
        share = self._strategy.sampler.share
        return share(self.sampler) if share else None

    def observe(self, worker: int) -> None:
        """Show a worker's losses to the sampler, at the worker's merge."""
        observe = self._strategy.sampler.observe
        if observe:
            for rows, losses in self.losses.take_steps(worker):
                self.sampler = observe(self.sampler, worker, rows, losses)

    def check_losses(self) -> None:
        """Stop the run if a round diverged whose loss is known by now."""
        for arrival, loss, late in self.losses.take_known():
            rows: list[np.ndarray] = []
            # those before the run was resumed have none, and come first
            if self._unchecked and self._unchecked[0][0] is arrival:
                _, rows = self._unchecked.popleft()
            resets = self._job.on_nan == "reset"
            if late is not None and resets and not bool(np.asarray(late.finite)):
                self.ledger.take_back(arrival, late.padded)
                self._note_nan(arrival, loss, rows)
                continue
            self.losses.count(arrival, loss)
            if not math.isfinite(loss) and not self.history.stopped:
                why = self._not_finite(rows) or "a smaller learning rate may help"
                self.stop(
                    f"{self.history.strategy}: the loss of worker "
                    f"{self.name_of(arrival.worker)} became {loss} at "
                    f"{arrival.time:.6g} s; {why}"
                )

    def settle(self, action: MergeAction) -> None:
        """Before nodes merge: take back the rounds of workers that were not finite.

        Of workers that merge, the program itself knows that.
        """
        nodes = any(isinstance(m, str) for m in action.members)
        if nodes and self._job.on_nan == "reset" and self.store.settle():
            self.check_losses()

    # -- evaluations ----------------------------------------------------------------

    def evaluate(self, instant: float) -> dict[str, float]:
        """Record the evaluation at this instant; stop the run if it has to end."""
        self._visible, metrics = self.evaluations.at(instant)
        self._look_at_best(metrics[self.history.metric])
        self.check_losses()  # first: a worker's loss tells more than the test loss
        train_loss = self.losses.take_mean()
        told = metrics if train_loss is None else {"train_loss": train_loss, **metrics}
        unseen, coming = self.ledger.unseen(instant)
        later = sum(counts_as_merge(action) for _, action in unseen)
        known = {
            "seconds": instant,
            "updates": self.ledger.updates,
            "examples": self.ledger.examples,
            "merges": self.history.merges - later,
            "bytes": self._bytes_moved() - coming,
            **told,
        }
        point = Evaluation(known)
        self.history.evals.append(point)
        if not math.isfinite(metrics["loss"]):
            self.stop(self._why_not_finite(instant, metrics["loss"]))
        if not self.history.stopped and (why := self._asks_to_stop(point)):
            self.stop(f"stopped at {instant:.6g} s as asked: {why}")
        self.history.stopped = self._shared(self.history.stopped)
        return told

    def _bytes_moved(self) -> int:
        """Bytes that have moved so far from and to all workers."""
        records = self.ledger.records
        moved = (self.store.traffic(k) for k, _ in enumerate(self._clock.workers))
        before = sum(r.bytes_received + r.bytes_sent for r in records)
        return before + sum(map(sum, moved))

    def _why_not_finite(self, instant: float, loss: float) -> str:
        """What is said of a test loss that is NaN or infinite."""
        if not self.history.merges:
            initial = f"{self.history.strategy}: the test loss of the initial model is "
            bad = rows_not_finite(self._job.data.test)
            if len(bad):
                return (
                    f"{initial}{loss}; {named(bad)} of the test split hold"
                    f"{'s' * (len(bad) == 1)} NaN or infinity: correct or remove such "
                    "rows"
                )
            return (
                f"{initial}{loss}"
                "; look for such numbers in its weights and the data, and for tokens "
                "that its vocabulary does not have"
            )
        return (
            f"{self.history.strategy}: the test loss of the model became {loss} by "
            f"{instant:.6g} s, last merged from {self._last_members()}; a smaller "
            "learning rate may help"
        )

    def _look_at_best(self, metric: float) -> None:
        """Keep the model of the best evaluation, if that was asked for."""
        before = math.nan if self._best is None else self._best[0]
        if self._job.keeps_best and better(metric, before, self.history.mode):
            self._best = metric, self._visible

    def _asks_to_stop(self, point: dict[str, float]) -> str:
        """Ask the user why to stop, or ""; an exception ends it, as Ctrl-C does."""
        try:
            return self._on_eval(point)
        except Exception as error:
            self.fail(error, "on_eval raised ")
            return ""

    def _last_members(self) -> str:
        members = self.history.last_members
        names = [m if isinstance(m, str) else self.name_of(m) for m in members]
        return ", ".join(names) or "no worker"

    # -- worker events --------------------------------------------------------------

    def name_of(self, worker: int) -> str:
        """The name of a worker."""
        return self._clock.workers[worker].name

    def note(self, event: Event, what: str, why: str) -> None:
        """Add a worker event to the history."""
        name = self.name_of(event.worker)  # pyright: ignore[reportAttributeAccessIssue]
        self.history.events.append(WorkerEvent(event.time, name, what, why))

    # -- saved and taken up again ---------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return all records and replicas."""
        history = self.history
        if self.store.settle():
            self.check_losses()
        best = self._best and (self._best[0], Leaves(jax.tree.leaves(self._best[1])))
        return {
            "sampler": self.sampler,
            "ledger": self.ledger.save(),
            "losses": self.losses.save(),
            "evaluations": self.evaluations.save(),
            "store": self.store.save(),
            "best": best,
            "corrected": None if self._corrected is None else self._corrected.save(),
            "history": {
                **{name: getattr(history, name) for name in history.growing},
                "evals": list(map(dict, history.evals)),
            },
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self.store.load(saved["store"])
        self.sampler = saved["sampler"]
        self.ledger.load(saved["ledger"])
        self.losses.load(saved["losses"])
        self.evaluations.load(saved["evaluations"])
        if self._corrected is not None:
            self._corrected.load(saved["corrected"])
        self._load_history(saved)

    def load_for_others(self, saved: dict[str, Any], before: list[str]) -> None:
        """Continue with other workers than those that were called `before`.

        The root, the totals and the history go on; replicas begin from the root's
        model, and what was not merged is lost.
        """
        self.store.load_root(saved["store"]["root"])
        sampler, workers = self._strategy.sampler, self._clock.workers
        if sampler.for_workers is not None:
            self.sampler = sampler.for_workers(saved["sampler"], workers)
        self.ledger.load_for_others(saved["ledger"])
        self.losses.load_for_others(saved["losses"])
        self.evaluations.due = saved["evaluations"]["due"]
        self._load_history(saved)
        if saved["corrected"] is not None:
            before_now = Correction()
            before_now.load(saved["corrected"])
            self._correct(before_now)
        self.history.last_members = ()  # workers have other numbers now
        now, here = self.history.duration, [w.name for w in workers]
        changes = [(name, "left", "went on without it") for name in before]
        changes += [(name, "joined", "went on with it") for name in here]
        for name, what, why in changes:
            if (name in before) != (name in here):
                event = WorkerEvent(now, name, what, f"the run {why}")
                self.history.events.append(event)

    def _correct(self, corrected: Correction) -> None:
        """Replace planned times by what they turned out to be."""
        history = self.history
        history.correct(corrected)
        if not history.ends_at_evaluation:
            history.duration = float(corrected(np.array(history.duration)))
        self.ledger.correct(corrected)

    def _load_history(self, saved: dict[str, Any]) -> None:
        for name in self.history.growing:
            setattr(self.history, name, saved["history"][name])
        self.history.evals = list(map(Evaluation, self.history.evals))
        self._visible = self.store.model()
        if saved["best"]:
            metric, leaves = saved["best"]
            self._best = metric, self.store.model_of(leaves)

    # -- the end --------------------------------------------------------------------

    def close(self, stuck: list[int]) -> None:
        """Complete the history."""
        history, compilations = self.history, self._job.compilations
        if not history.stopped:
            self.check_losses()
        history.stuck = [self.name_of(k) for k in stuck]
        # the model of the last evaluation, unless the run went on after it; after an
        # exception the replicas may be amid a merge
        last = history.ends_at_evaluation or history.error is not None
        if last:
            self._drop_unseen(history.duration)
        if self._corrected is not None:
            self._correct(self._corrected)
        history.workers = self.ledger.close(history.duration)
        nodes = self._nodes_of()
        for k, _ in enumerate(self._clock.workers):
            came, went = self.store.traffic(k)
            history.workers[k].bytes_received += came
            history.workers[k].bytes_sent += went
            history.workers[k].node = nodes[k] if nodes else ""
        history.timeline = self.ledger.timeline
        model = self._visible if last else self.store.model()
        history.params, history.model_state = model
        history.model = self._job.programs.task.restore(*model)
        if self._job.whole_test:
            history.eval_examples = self._job.num_test
            # a look at all of it takes long: not after Ctrl-C or SIGTERM
            if history.error is None and history.stopped != INTERRUPTED:
                history.at_end = self.evaluations.of_all(model)
        counts = compilations.programs
        history.programs = dict(sorted(counts.items()))
        history.compilations = sum(counts.values())
        history.compile_seconds = compilations.seconds
        if self._best is not None:
            history.best_params, history.best_model_state = self._best[1]

    def _drop_unseen(self, end: float) -> None:
        """No longer count merges that are visible after `end` [s]: in no evaluation."""
        history, times = self.history, self.history.merge_times
        unseen, _ = self.ledger.unseen(end)
        self.ledger.drop_unseen(end)
        for visible, action in reversed(unseen):
            history.merges -= counts_as_merge(action)
            if changes_root(action):
                history.unseen_merge = visible
                times.pop()
