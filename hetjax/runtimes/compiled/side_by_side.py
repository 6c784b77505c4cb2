"""Several runs that have one schedule, played side by side in one program.

They differ in their learning rates or in their seeds, and thus in their models, but not
in what happens when: the tape is written once. Each number of a run is an array [n].
What a policy or a sampler would be told differs from run to run, so that strategies
that look at it are played one by one.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.data.batching import Batch
from hetjax.engine.programs.metrics import means_of
from hetjax.engine.protocols import EvaluatedModel
from hetjax.engine.replica_store import Model, counters
from hetjax.machine import Arrival
from hetjax.metric_mode import better
from hetjax.runtimes.compiled.compiled_player import CompiledPlayer, UnavailableMetrics
from hetjax.runtimes.compiled.parts import Parts, RunState
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
    """What the runs that are played side by side differ in: a number for each."""

    seeds: tuple[int, ...]
    rate_factors: tuple[float, ...]  # learning rates, by that of the tape

    @property
    def num_runs(self) -> int:
        """How many runs there are."""
        return len(self.seeds)


class DiffersBetweenRuns(Exception):
    """Something would be decided by a number that differs from run to run."""


class _EvaluatedRuns(EvaluatedModel):
    """What is seen of the first run, with the metrics and models of `all` runs."""

    all: list[dict[str, float]]
    models: Model  # [n, ...]

    @classmethod
    def of(
        cls, first: EvaluatedModel, every: list[dict[str, float]], models: Model
    ) -> "_EvaluatedRuns":
        """What is seen of all."""
        seen = cls(*first)
        seen.all, seen.models = every, models
        return seen


class SideBySidePlayer(CompiledPlayer):
    """Plays several runs at once; what it answers is of the first one."""

    variants: RunVariants

    def __init__(self, *args: Any, variants: RunVariants, **fields: Any):
        """As `CompiledPlayer`, for the runs of `side`."""
        super().__init__(*args, **fields)
        self.variants = variants
        # by run: metrics of each look
        self.evaluations: list[list[dict[str, float]]] = [[] for _ in variants.seeds]
        self.best: list[tuple[float, Model] | None] = [None] * variants.num_runs
        self._visible: Model = ((), ())  # of the last look, [n, ...]
        self.failed = np.zeros(
            variants.num_runs, bool
        )  # is a number of the run not finite?
        self._since: list[
            PendingOutcome
        ] = []  # rounds that arrived since the last point
        self._factors = np.array(variants.rate_factors, np.float32)
        self._seeds = np.array(variants.seeds, np.uint32)

    # -- what is told of all -----------------------------------------------------------

    def policy_metrics(self, seen: EvaluatedModel, metrics: Any) -> UnavailableMetrics:
        """Keep what was seen of every run, and their mean losses since then."""
        assert isinstance(seen, _EvaluatedRuns)
        losses = [_every(o.mean) for o in self._since if o.steps]
        self._since = []
        means = np.zeros(self.variants.num_runs)
        for each in losses:  # one after the other, as of a single run
            means = means + each
        self._visible = seen.models
        for i, (points, mine) in enumerate(
            zip(self.evaluations, seen.all, strict=True)
        ):
            found = {"train_loss": means[i] / len(losses)} if losses else {}
            points.append({**found, **mine})
            self.failed[i] |= not math.isfinite(mine["loss"])
            if self._job.keeps_best:
                self._update_best(i, mine)
        return UnavailableMetrics(DiffersBetweenRuns())

    def _update_best(self, i: int, seen: dict[str, float]) -> None:
        task, best = self._parts.programs.task, self.best[i]
        before = math.nan if best is None else best[0]
        if better(seen[task.metric], before, task.mode):
            model = jax.tree.map(lambda x: x[i], self._visible)
            self.best[i] = seen[task.metric], model

    def models(self, *, visible: bool) -> list[Model]:
        """The model of each run: of the last evaluation if `visible`, or of now."""
        self.synchronize()
        every = self._visible if visible else self._models()
        n = self.variants.num_runs
        return [jax.tree.map(lambda x, i=i: x[i], every) for i in range(n)]

    # -- as of one run, along a new first axis ---------------------------------------

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
        parts, source = self._parts, self._source
        program = parts.programs.once(
            ("stretches", parts, shape, source.batch_maker),
            lambda: jax.jit(_side_by_side(parts, shape, source.batch_maker)),
        )
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
        """The first run's, where they are finite, which know those of all."""
        every = np.moveaxis(means, 0, -1)[place]
        self.failed |= ~np.isfinite(every).all(axis=0)
        return [MeansOfRuns(x) for x in every]

    def model(self) -> Model:
        """The first run's model."""
        return jax.tree.map(lambda x: x[0], self._models())

    def _models(self) -> Model:
        """The models of all runs, [n, ...]."""
        if self._merges_pending:
            self.launch()
        get = self._parts.programs.model(self._parts.merges[-1])
        return jax.vmap(get)(self._root(), *self._initial_model)


class MeansOfRuns(float):
    """The mean loss of the first run, with those of `every` one; 0 if it is none."""

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
    """As `stretch`, of several runs: (run_state [n, ...], arrays, tables, factors [n])."""
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
