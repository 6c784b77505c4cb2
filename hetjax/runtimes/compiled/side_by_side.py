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
from hetjax.runtimes.compiled.compiled_player import CompiledPlayer, Unread
from hetjax.runtimes.compiled.parts import Held, Parts, row
from hetjax.runtimes.compiled.stretch import PendingOutcome
from hetjax.runtimes.compiled.stretch_program import stretch
from hetjax.runtimes.compiled.stretch_types import Numbers, Shape, StretchTables, scaled


class Side(NamedTuple):
    """What the runs that are played side by side differ in: a number for each."""

    seeds: tuple[int, ...]
    rates: tuple[float, ...]  # learning rates, by that of the tape

    @property
    def number(self) -> int:
        """How many runs there are."""
        return len(self.seeds)


class Differs(Exception):
    """Something would be decided by a number that differs from run to run."""


class _SeenOfAll(EvaluatedModel):
    """What is seen of the first run, with the metrics and models of `all` runs."""

    all: list[dict[str, float]]
    models: Model  # [n, ...]

    @classmethod
    def of(
        cls, first: EvaluatedModel, every: list[dict[str, float]], models: Model
    ) -> "_SeenOfAll":
        """What is seen of all."""
        seen = cls(*first)
        seen.all, seen.models = every, models
        return seen


class SideBySidePlayer(CompiledPlayer):
    """Plays several runs at once; what it answers is of the first one."""

    side: Side

    def __init__(self, *args: Any, side: Side, **fields: Any):
        """As `CompiledPlayer`, for the runs of `side`."""
        super().__init__(*args, **fields)
        self.side = side
        # by run: metrics of each look
        self.points: list[list[dict[str, float]]] = [[] for _ in side.seeds]
        self.best: list[tuple[float, Model] | None] = [None] * side.number
        self._visible: Model = ((), ())  # of the last look, [n, ...]
        self.failed = np.zeros(side.number, bool)  # is a number of the run not finite?
        self._since: list[
            PendingOutcome
        ] = []  # rounds that arrived since the last point
        self._factors = np.array(side.rates, np.float32)
        self._seeds = np.array(side.seeds, np.uint32)

    # -- what is told of all -----------------------------------------------------------

    def policy_metrics(self, seen: EvaluatedModel, metrics: Any) -> Unread:
        """Keep what was seen of every run, and their mean losses since then."""
        assert isinstance(seen, _SeenOfAll)
        losses = [_every(o.mean) for o in self._since if o.steps]
        self._since = []
        means = np.zeros(self.side.number)
        for each in losses:  # one after the other, as of a single run
            means = means + each
        self._visible = seen.models
        for i, (points, mine) in enumerate(zip(self.points, seen.all, strict=True)):
            found = {"train_loss": means[i] / len(losses)} if losses else {}
            points.append({**found, **mine})
            self.failed[i] |= not math.isfinite(mine["loss"])
            if self._job.keeps_best:
                self._look_at_best(i, mine)
        return Unread(Differs())

    def _look_at_best(self, i: int, seen: dict[str, float]) -> None:
        task, best = self._parts.programs.task, self.best[i]
        before = math.nan if best is None else best[0]
        if better(seen[task.metric], before, task.mode):
            model = jax.tree.map(lambda x: x[i], self._visible)
            self.best[i] = seen[task.metric], model

    def models(self, *, visible: bool) -> list[Model]:
        """The model of each run: of the last evaluation if `visible`, or of now."""
        self.synchronize()
        every = self._visible if visible else self._models()
        n = self.side.number
        return [jax.tree.map(lambda x, i=i: x[i], every) for i in range(n)]

    # -- as of one run, along a new first axis ---------------------------------------

    def _first_model(self) -> Model:
        keys = jax.vmap(jax.random.key)(self._seeds)
        init, programs = self._job.programs.task.init, self._parts.programs
        return programs.once("several inits", lambda: jax.jit(jax.vmap(init)))(keys)

    def _begun(self, model: Any) -> Held:
        return jax.vmap(super()._begun)(model)

    def _root(self) -> Any:
        return jax.vmap(lambda states: self._parts.state(states, -1, 0))(
            self._held.states
        )

    def _call(
        self, shape: Shape, arrays: Any, tables: StretchTables
    ) -> tuple[Held, Numbers]:
        parts, source = self._parts, self._source
        program = parts.programs.once(
            ("stretches", parts, shape, source.maker),
            lambda: jax.jit(_side_by_side(parts, shape, source.maker)),
        )
        tables = tables._replace(seed=self._seeds)
        return program(self._held, arrays, tables, self._factors)

    def _evaluated(self, batches: list[Batch]) -> tuple[Model, Any]:
        programs, every = self._parts.programs, self._models()
        evaluate = programs.once(
            "evaluate several",
            lambda: jax.jit(jax.vmap(programs.evaluate_all_fn, in_axes=(0, 0, None))),
        )
        return every, evaluate(*every, batches)

    def _what_is_seen(self, every: Model, sums: Any) -> EvaluatedModel:
        merge, states = self._parts.merges[-1], self._root()
        seen = []
        for i in range(self.side.number):
            mine = jax.tree.map(lambda x, i=i: x[i], sums)
            told = counters(merge, row(states, i)) if merge.report else {}
            seen.append(means_of(self._parts.programs, mine) | told)
        first = jax.tree.map(lambda x: x[0], every)
        of_first = EvaluatedModel(first, {k: _finite(v) for k, v in seen[0].items()})
        return _SeenOfAll.of(of_first, seen, every)

    def _finish(self, arrival: Arrival) -> PendingOutcome:
        outcome = super()._finish(arrival)
        self._since.append(outcome)
        return outcome

    def _means(self, means: np.ndarray, place: Any) -> list[Any]:
        """The first run's, where they are finite, which know those of all."""
        every = np.moveaxis(means, 0, -1)[place]
        self.failed |= ~np.isfinite(every).all(axis=0)
        return [Means(x) for x in every]

    def model(self) -> Model:
        """The first run's model."""
        return jax.tree.map(lambda x: x[0], self._models())

    def _models(self) -> Model:
        """The models of all runs, [n, ...]."""
        if self._merges_wait:
            self.launch()
        get = self._parts.programs.model(self._parts.merges[-1])
        return jax.vmap(get)(self._root(), *self._initial)


class Means(float):
    """The mean loss of the first run, with those of `every` one; 0 if it is none."""

    every: np.ndarray

    def __new__(cls, every: np.ndarray) -> "Means":
        """`every` [n]: of all runs."""
        mean = super().__new__(cls, _finite(float(every[0])))
        mean.every = every
        return mean


def _every(mean: Any) -> np.ndarray:
    return mean.every


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _side_by_side(parts: Parts, shape: Shape, source: Any) -> Callable:
    """As `stretch`, of several runs: (held [n, ...], arrays, tables, factors [n])."""
    play = stretch(parts, shape, source)

    def one(
        held: Held, arrays: Any, tables: StretchTables, seed: Any, factor: Any
    ) -> tuple[Held, Numbers]:
        return play(held, arrays, scaled(tables, factor)._replace(seed=seed))

    def several(held: Held, arrays: Any, tables: StretchTables, factors: Any) -> Any:
        seeds, shared = tables.seed, tables._replace(seed=0)
        each = jax.vmap(one, in_axes=(0, None, None, 0, 0))
        return each(held, arrays, shared, seeds, factors)

    return several
