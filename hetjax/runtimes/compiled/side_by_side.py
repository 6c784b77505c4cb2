"""Several runs with one schedule, played at once in one program.

The runs differ in their learning rates or seeds, but not in their schedule, so that the
tape is written once. Each number of a run becomes an array [n] over the runs. As
results differ, a strategy whose policy or sampler reads them is played one run at a
time.
"""

import math
from typing import Any

import jax
import numpy as np

from hetjax.data.batching import Batch
from hetjax.engine.programs.evaluation_batches import means_of
from hetjax.engine.protocols import EvaluatedModel
from hetjax.engine.replica_store import Model, counters
from hetjax.machine import Arrival
from hetjax.metric_mode import better
from hetjax.runtimes.compiled.compiled_player import CompiledPlayer
from hetjax.runtimes.compiled.stacks import tree_row
from hetjax.runtimes.compiled.stretch import PendingOutcome, UnavailableMetrics
from hetjax.runtimes.compiled.stretch_launcher import MeansOfRuns


class DiffersBetweenRuns(Exception):
    """A decision depends on a number that differs between runs."""


class _EvaluatedRuns(EvaluatedModel):
    """The first run's evaluation, with the metrics and models of `all` runs."""

    all: list[dict[str, float]]
    models: Model  # [n, ...]


class SideBySidePlayer(CompiledPlayer):
    """Plays several runs at once; what it returns to the loop is the first run's."""

    def __init__(self, *args: Any, **options: Any):
        """Take the arguments of `CompiledPlayer`; the runs are `job.variants`."""
        super().__init__(*args, **options)
        self.num_runs = n = self._job.variants.num_runs
        # by run: the metrics of each evaluation
        self.evaluations: list[list[dict[str, float]]] = [[] for _ in range(n)]
        self.best: list[tuple[float, Model] | None] = [None] * n
        self.failed = self.launcher.failed  # by NaN or infinity
        self._visible: Model = ((), ())  # at the last evaluation, [n, ...]
        self._since: list[PendingOutcome] = []  # arrived since the last evaluation

    def _finish(self, arrival: Arrival) -> PendingOutcome:
        outcome = super()._finish(arrival)
        self._since.append(outcome)
        return outcome

    def policy_metrics(self, seen: EvaluatedModel, metrics: Any) -> UnavailableMetrics:
        """Record every run's metrics, and its mean loss since the last evaluation."""
        assert isinstance(seen, _EvaluatedRuns)
        every = [o.mean for o in self._since if o.steps]
        losses = [mean.every for mean in every if isinstance(mean, MeansOfRuns)]
        self._since = []
        means = np.zeros(self.num_runs)
        for each in losses:  # in the order of a single run, to the bit
            means = means + each
        self._visible = seen.models
        for i, mine in enumerate(seen.all):
            found = {"train_loss": means[i] / len(losses)} if losses else {}
            self.evaluations[i].append({**found, **mine})
            self.failed[i] |= not math.isfinite(mine["loss"])
            if self._job.tracks_best:
                self._update_best(i, mine)
        return UnavailableMetrics(DiffersBetweenRuns())

    def _update_best(self, i: int, seen: dict[str, float]) -> None:
        task, best = self._parts.programs.task, self.best[i]
        before = math.nan if best is None else best[0]
        if better(seen[task.metric], before, task.mode):
            self.best[i] = seen[task.metric], _of_run(self._visible, i)

    def models(self, *, visible: bool) -> list[Model]:
        """Return each run's model, at the last evaluation if `visible`, else now."""
        self.synchronize()
        every = self._visible if visible else super().model()
        return [_of_run(every, i) for i in range(self.num_runs)]

    def model(self) -> Model:
        """Return the first run's model."""
        return _of_run(super().model(), 0)

    def _evaluate_batches(self, batches: list[Batch]) -> tuple[Model, Any]:
        programs, every = self._parts.programs, super().model()
        evaluate = programs.once(
            "evaluate several",
            lambda: jax.jit(jax.vmap(programs.evaluate_all_fn, in_axes=(0, 0, None))),
        )
        return every, evaluate(*every, batches)

    def _evaluated_model(self, every: Model, sums: Any) -> EvaluatedModel:
        merge, states = self._parts.merges[-1], self.launcher.root()
        found = []
        for i in range(self.num_runs):
            told = counters(merge, tree_row(states, i)) if merge.report else {}
            found.append(means_of(self._parts.programs, _of_run(sums, i)) | told)
        first = {k: v if math.isfinite(v) else 0.0 for k, v in found[0].items()}
        seen = _EvaluatedRuns(_of_run(every, 0), first)
        seen.all, seen.models = found, every
        return seen


def _of_run(every: Any, i: int) -> Any:
    """Return the arrays of run i."""
    return jax.tree.map(lambda x: x[i], every)
