"""The player of a compiled run: it collects the tape in stretches, and launches them.

The tape is written ahead of the devices up to the next point where a result is needed:
an evaluation, losses that a sampler observes, or metrics that weigh a merge. If a
number turns out not to be finite at such a point (`RoundNotFinite`), the player goes
back to its last mark and plays again, with each result known when its round arrives, so
that the run continues as with the reference player.
"""

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax import tree
from hetjax.checkpointable import Leaves
from hetjax.data.batching import Batch
from hetjax.engine import tape
from hetjax.engine.capabilities import RoundNotFinite
from hetjax.engine.evaluation import Evaluator
from hetjax.engine.job import Job
from hetjax.engine.programs.evaluation_batches import means_of
from hetjax.engine.protocols import EvaluatedModel, Plays, Traits
from hetjax.engine.replica_store import Model, counters
from hetjax.machine import Arrival, WorkerInfo
from hetjax.runtimes.compiled.player_choice import MAX_EVAL_BATCHES
from hetjax.runtimes.compiled.program_parts import NodeIndices, RunState, parts_of
from hetjax.runtimes.compiled.stacks import tree_row
from hetjax.runtimes.compiled.stretch import PendingOutcome, Stretch
from hetjax.runtimes.compiled.stretch_collector import StretchCollector, members_of
from hetjax.runtimes.compiled.stretch_launcher import StretchLauncher
from hetjax.runtimes.inline import run_turns_alone
from hetjax.strategies.types import Strategy


class Mark(NamedTuple):
    """A point to which `undo` returns."""

    run_state: RunState
    stretch: Stretch
    running: dict[int, PendingOutcome]
    moved: set[int]


class CompiledPlayer:
    """Plays the tape of one run, stretch by stretch."""

    traits: Traits
    plays: Plays
    run_turns = staticmethod(run_turns_alone)

    def __init__(
        self,
        strategy: Strategy,
        job: Job,
        workers: tuple[WorkerInfo, ...],
        source: Any,
        device: Any,
        *,
        lanes: int,
        max_steps_ahead: float,
    ):
        """`source` makes batches. At most `lanes` rounds run side by side.

        At most `max_steps_ahead` steps are played before their results are read.
        """
        self._job, self._device = job, device
        self._max_steps_ahead = max_steps_ahead
        self.evaluator = Evaluator(job, device)
        self.evaluate_whole_test = self.evaluator.evaluate_whole_test
        self._nodes = NodeIndices.of_strategy(strategy, workers)
        self._parts = parts_of(
            job, strategy, len(workers), self._nodes.num_nodes, vmapped=lanes > 1
        )
        self.launcher = StretchLauncher(self._parts, job, source, lanes=lanes)
        self._collector = StretchCollector(self._parts, self._nodes, job, self.launcher)
        self._arrived: list[PendingOutcome] = []  # since the last synchronization
        self.knows_in_time = False  # whether each result is known when it arrives
        self.times_known = 0  # the number of synchronizations

    def open(self) -> None:
        """Initialize the model, all replicas and all states."""
        with self._job.compilations.of("init"):
            self.launcher.open(self._device)
        collector = self._collector
        self.traits = collector.traits
        self.plays = {
            **collector.plays,
            tape.StartRound: lambda start: collector.start(start, self.synchronize),
            Arrival: self._finish,
            tape.MeasureMembers: self._measure,
            tape.EvaluateRoot: self._evaluate,
        }

    def expect(self, entries: Iterable[Any]) -> None:
        """Prepare for the tape's first entries, so that one program plays the run."""
        self._collector.expect(entries, self.launcher)

    def _finish(self, arrival: Arrival) -> PendingOutcome:
        """Return the outcome of a round that arrives; its numbers may be pending."""
        outcome = self._collector.finish(arrival.worker)
        if not outcome.known:
            self._arrived.append(outcome)
        elif self._parts.checks_finite and not outcome.finite:
            self._collector.reset(arrival.worker)
        return outcome

    # -- evaluations -------------------------------------------------------------------

    def _measure(self, measure: tape.MeasureMembers) -> list[float]:
        self.synchronize()
        models = map(self._member_model, members_of(measure.action))
        return self.evaluator.member_metrics([*models])

    def _member_model(self, member: int | str) -> Model:
        parts, run_state = self._parts, self.launcher.run_state
        if isinstance(member, int):
            replica = tree_row(run_state.replicas, member)
        else:
            level, node = self._nodes.of[member]
            of = parts.programs.as_member(parts.merges[level])
            replica = of(parts.state(run_state.states, level, node))
        return replica.params, replica.model_state

    def _evaluate(self, evaluation: tape.EvaluateRoot) -> EvaluatedModel:
        """Evaluate the root, in one program if all batches are in memory and few."""
        batches = self.evaluator.test
        pending = bool(self._arrived) or self._collector.merges_pending
        if not isinstance(batches, list) or len(batches) > MAX_EVAL_BATCHES:
            if pending:
                self.synchronize()
            return self.evaluator.evaluate(self)
        if pending:  # launch the evaluation, too, before waiting for results
            self._collector.launch()
        with self._job.compilations.of("evaluate"):
            model, sums = self._evaluate_batches(batches)
        if pending:
            self.synchronize()
        before = time.perf_counter()
        sums = jax.device_get(sums)
        self.evaluator.seconds += time.perf_counter() - before
        return self._evaluated_model(model, sums)

    def _evaluate_batches(self, batches: list[Batch]) -> tuple[Model, Any]:
        """Return the current model, and the sums of its metrics over each batch."""
        model = self.model()
        return model, self._parts.programs.evaluate_all(*model, batches)

    def _evaluated_model(self, model: Model, sums: Any) -> EvaluatedModel:
        metrics = means_of(self._parts.programs, sums)
        return EvaluatedModel(model, metrics | self.report())

    def policy_metrics(self, seen: EvaluatedModel, metrics: Any) -> Any:
        """Return the metrics of an evaluation for the policy."""
        del seen
        return metrics

    def model(self) -> Model:
        """Return the root's current model, in the dtypes of the initial model."""
        if self._collector.merges_pending:
            self._collector.launch()
        return self.launcher.model()

    def report(self) -> dict[str, float]:
        """Return the counters of the root's merge."""
        return counters(self._parts.merges[-1], self.launcher.root())

    # -- launches ----------------------------------------------------------------------

    def flush(self) -> None:
        """Synchronize if enough steps were played since the last time."""
        ahead = self.launcher.steps_ahead + len(self._collector.stretch.rows)
        if self.knows_in_time or ahead >= self._max_steps_ahead:
            self.synchronize()

    def synchronize_if_needed(self) -> None:
        """Synchronize if a round has arrived whose numbers are pending."""
        if self._arrived:
            self.synchronize()

    def synchronize(self) -> None:
        """Launch everything, and read the results of all rounds.

        Errors: `RoundNotFinite` if the run has to go back to its last mark.
        """
        self._collector.launch()
        self.launcher.read()
        arrived, self._arrived, self.launcher.steps_ahead = self._arrived, [], 0
        self.times_known += 1
        checks = self._parts.checks_finite
        for outcome in arrived:
            fine = np.isfinite(outcome.mean) and (outcome.finite or not checks)
            if not fine and not self.knows_in_time:
                raise RoundNotFinite

    def close(self) -> list[int]:
        """Detach all outcomes from the player; there are no threads to stop."""
        collector = self._collector
        stretches = [collector.stretch, *(s for _, s, _ in self.launcher.launched)]
        outcomes = [o for stretch in stretches for o in stretch.outcomes]
        for outcome in (*outcomes, *collector.running.values()):
            outcome.synchronize = None
        return []

    # -- mark and undo -----------------------------------------------------------------

    def mark(self) -> Mark:
        """Return a point for `undo`; call it between events, with no pending rounds."""
        self.launcher.read()
        now = self._collector
        return Mark(
            self.launcher.run_state,
            now.stretch.copy(),
            dict(now.running),
            set(now.moved),
        )

    def undo(self, mark: Mark) -> None:
        """Return to a mark; from there on, each result is known when it arrives."""
        launcher, collector = self.launcher, self._collector
        launcher.run_state, launcher.launched, launcher.steps_ahead = mark[0], [], 0
        collector.stretch = mark.stretch.copy()
        collector.running, collector.moved = dict(mark.running), set(mark.moved)
        self._arrived, self.knows_in_time = [], True

    # -- save and load -----------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return all arrays and the stretch that is not launched yet, at a `mark`."""
        launcher, collector = self.launcher, self._collector
        launcher.read()
        outcomes = collector.stretch.outcomes
        return {
            "root": Leaves(jax.tree.leaves(launcher.root())),
            "run_state": Leaves(jax.tree.leaves(launcher.run_state)),
            "stretch": collector.stretch.save(),
            # by index in the stretch, or the outcome itself
            "running": {
                k: outcomes.index(x) if x in outcomes else x.save()
                for k, x in collector.running.items()
            },
            "moved": collector.moved,
            # so that the resumed run uses the same programs
            "shapes": (
                list(collector.kinds),
                collector.one_step,
                launcher.lengths,
                launcher.buckets.known,
            ),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        launcher, collector, of = self.launcher, self._collector, self.synchronize
        arrays = tree.filled(launcher.run_state, saved["run_state"], "the replicas")
        launcher.run_state = jax.device_put(arrays, self._device)
        collector.stretch = Stretch.restored(saved["stretch"], of)
        outcomes = collector.stretch.outcomes
        collector.running = {
            k: outcomes[x] if isinstance(x, int) else PendingOutcome.restored(x, of)
            for k, x in saved["running"].items()
        }
        collector.moved = saved["moved"]
        kinds, collector.one_step, launcher.lengths, known = saved["shapes"]
        collector.kinds = {kind: i for i, kind in enumerate(kinds)}
        launcher.buckets.known = known

    def load_root(self, leaves: list[Any]) -> None:
        """Continue from the root alone; everything else starts from its model."""
        launcher = self.launcher
        root = tree.filled(launcher.root(), leaves, "the state of the root")
        root = jax.device_put(root, self._device)
        run_state = launcher.initial_run_state(launcher.model(root))
        states = self._parts.with_state(run_state.states, -1, 0, root, None)
        launcher.run_state = run_state._replace(states=states)

    def model_of(self, leaves: list[Any]) -> Model:
        """Return a model from the arrays of a saved model."""
        found = tree.filled(self.launcher.initial_model, leaves, "the model")
        return jax.device_put(self._parts.programs.copies(found), self._device)
