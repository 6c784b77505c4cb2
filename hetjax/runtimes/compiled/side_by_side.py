"""Several runs with one schedule, played at once in one program.

The runs differ in their learning rates or seeds, but not in their schedule, so that the
tape is written once. Each number of a run becomes an array [n] over the runs. As
results differ, a strategy whose policy or sampler reads them is played one run at a
time.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.data.batching import Batch
from hetjax.engine.programs.evaluation_batches import means_of
from hetjax.engine.protocols import EvaluatedModel
from hetjax.engine.replica_store import Model, counters
from hetjax.machine import Arrival
from hetjax.metric_mode import better
from hetjax.runtimes.compiled.compiled_player import CompiledPlayer, UnavailableMetrics
from hetjax.runtimes.compiled.program_parts import Parts, RunState
from hetjax.runtimes.compiled.stacks import tree_row
from hetjax.runtimes.compiled.stretch import PendingOutcome
from hetjax.runtimes.compiled.stretch_program import stretch_program
from hetjax.runtimes.compiled.stretch_types import (
    ProgramShape,
    StretchResults,
    StretchTables,
    scale_rates,
)


class RunVariants(NamedTuple):
    """The seeds and learning rates of runs that are played at once."""

    seeds: tuple[int, ...]
    rate_factors: tuple[float, ...]  # learning rates, divided by the tape's

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        return len(self.seeds)


class DiffersBetweenRuns(Exception):
    """A decision depends on a number that differs between runs."""


class _EvaluatedRuns(EvaluatedModel):
    """The first run's evaluation, with the metrics and models of `all` runs."""

    all: list[dict[str, float]]
    models: Model  # [n, ...]

    @classmethod
    def of(
        cls, first: EvaluatedModel, every: list[dict[str, float]], models: Model
    ) -> "_EvaluatedRuns":
        """Return the evaluation of all runs."""
        seen = cls(*first)
        seen.all, seen.models = every, models
        return seen


class SideBySidePlayer(CompiledPlayer):
    """Plays several runs at once; what it returns to the loop is the first run's."""

    variants: RunVariants

    def __init__(self, *args: Any, variants: RunVariants, **fields: Any):
        """Take the arguments of `CompiledPlayer`, and the runs."""
        super().__init__(*args, **fields)
        self.variants = variants
        # by run: the metrics of each evaluation
        self.evaluations: list[list[dict[str, float]]] = [[] for _ in variants.seeds]
        self.best: list[tuple[float, Model] | None] = [None] * variants.num_runs
        self._visible: Model = ((), ())  # at the last evaluation, [n, ...]
        self.failed = np.zeros(variants.num_runs, bool)  # by NaN or infinity
        self._since: list[PendingOutcome] = []  # arrived since the last evaluation
        self._factors = np.array(variants.rate_factors, np.float32)
        self._seeds = np.array(variants.seeds, np.uint32)

    # -- results of all runs -----------------------------------------------------------

    def policy_metrics(self, seen: EvaluatedModel, metrics: Any) -> UnavailableMetrics:
        """Record every run's metrics, and its mean loss since the last evaluation."""
        assert isinstance(seen, _EvaluatedRuns)
        losses = [_every(o.mean) for o in self._since if o.steps]
        self._since = []
        means = np.zeros(self.variants.num_runs)
        for each in losses:  # in the order of a single run, to the bit
            means = means + each
        self._visible = seen.models
        for i, (points, mine) in enumerate(
            zip(self.evaluations, seen.all, strict=True)
        ):
            found = {"train_loss": means[i] / len(losses)} if losses else {}
            points.append({**found, **mine})
            self.failed[i] |= not math.isfinite(mine["loss"])
            if self._job.tracks_best:
                self._update_best(i, mine)
        return UnavailableMetrics(DiffersBetweenRuns())

    def _update_best(self, i: int, seen: dict[str, float]) -> None:
        task, best = self._parts.programs.task, self.best[i]
        before = math.nan if best is None else best[0]
        if better(seen[task.metric], before, task.mode):
            model = jax.tree.map(lambda x: x[i], self._visible)
            self.best[i] = seen[task.metric], model

    def models(self, *, visible: bool) -> list[Model]:
        """Return each run's model, at the last evaluation if `visible`, else now."""
        self.synchronize()
        every = self._visible if visible else self._models()
        n = self.variants.num_runs
        return [jax.tree.map(lambda x, i=i: x[i], every) for i in range(n)]

    # -- overrides, with a new first axis [n] --------------------------------------

    def _first_model(self) -> Model:
        keys = jax.vmap(jax.random.key)(self._seeds)
        init, programs = self._job.programs.task.init, self._parts.programs
        return programs.once("several inits", lambda: jax.jit(jax.vmap(init)))(keys)

    def _initial_run_state(self, model: Any) -> RunState:
        return jax.vmap(super()._initial_run_state)(model)

    def _root(self) -> Any:
        return jax.vmap(lambda states: self._parts.state(states, -1, 0))(
            self._run_state.states
        )

    def _call(
        self, shape: ProgramShape, arrays: Any, tables: StretchTables
    ) -> tuple[RunState, StretchResults]:
        program = self._program(_side_by_side, shape)
        tables = tables._replace(seed=self._seeds)
        return program(self._run_state, arrays, tables, self._factors)

    def _evaluate_batches(self, batches: list[Batch]) -> tuple[Model, Any]:
        programs, every = self._parts.programs, self._models()
        evaluate = programs.once(
            "evaluate several",
            lambda: jax.jit(jax.vmap(programs.evaluate_all_fn, in_axes=(0, 0, None))),
        )
        return every, evaluate(*every, batches)

    def _evaluated_model(self, every: Model, sums: Any) -> EvaluatedModel:
        merge, states = self._parts.merges[-1], self._root()
        seen = []
        for i in range(self.variants.num_runs):
            mine = jax.tree.map(lambda x, i=i: x[i], sums)
            told = counters(merge, tree_row(states, i)) if merge.report else {}
            seen.append(means_of(self._parts.programs, mine) | told)
        first = jax.tree.map(lambda x: x[0], every)
        of_first = EvaluatedModel(first, {k: _finite(v) for k, v in seen[0].items()})
        return _EvaluatedRuns.of(of_first, seen, every)

    def _finish(self, arrival: Arrival) -> PendingOutcome:
        outcome = super()._finish(arrival)
        self._since.append(outcome)
        return outcome

    def _means(self, means: np.ndarray, place: Any) -> list[Any]:
        """Return the first run's mean losses, with those of all runs."""
        every = np.moveaxis(means, 0, -1)[place]
        self.failed |= ~np.isfinite(every).all(axis=0)
        return [MeansOfRuns(x) for x in every]

    def model(self) -> Model:
        """Return the first run's model."""
        return jax.tree.map(lambda x: x[0], self._models())

    def _models(self) -> Model:
        """Return the models of all runs, [n, ...]."""
        if self._merges_pending:
            self.launch()
        get = self._parts.programs.model(self._parts.merges[-1])
        return jax.vmap(get)(self._root(), *self._initial_model)


class MeansOfRuns(float):
    """The first run's mean loss (0 if not finite), with those of `every` run."""

    every: np.ndarray

    def __new__(cls, every: np.ndarray) -> "MeansOfRuns":
        """`every` [n]: of all runs."""
        mean = super().__new__(cls, _finite(float(every[0])))
        mean.every = every
        return mean


def _every(mean: Any) -> np.ndarray:
    return mean.every


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _side_by_side(parts: Parts, shape: ProgramShape, source: Any) -> Callable:
    """Return f(run_state [n, ...], arrays, tables, rate factors [n])."""
    play = stretch_program(parts, shape, source)

    def one(
        run_state: RunState, arrays: Any, tables: StretchTables, seed: Any, factor: Any
    ) -> tuple[RunState, StretchResults]:
        return play(run_state, arrays, scale_rates(tables, factor)._replace(seed=seed))

    def several(
        run_state: RunState, arrays: Any, tables: StretchTables, factors: Any
    ) -> Any:
        seeds, shared = tables.seed, tables._replace(seed=0)
        each = jax.vmap(one, in_axes=(0, None, None, 0, 0))
        return each(run_state, arrays, shared, seeds, factors)

    return several
