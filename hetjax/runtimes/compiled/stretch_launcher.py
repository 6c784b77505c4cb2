"""Launches the programs of a compiled run, and reads their results."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.engine.job import Job
from hetjax.engine.replica_store import Model
from hetjax.runtimes.compiled.program_parts import Parts, RunState, initial_run_state
from hetjax.runtimes.compiled.stretch import Stretch
from hetjax.runtimes.compiled.stretch_program import stretch_program
from hetjax.runtimes.compiled.stretch_types import (
    OperationKind,
    ProgramShape,
    StretchResults,
    StretchTables,
    scale_rates,
)
from hetjax.runtimes.compiled.tables import (
    Buckets,
    TableLengths,
    group_positions,
    lengths_of,
    round_groups_of,
    tables_of,
)

MAX_STEPS = 512  # of a stretch


class RunVariants(NamedTuple):
    """The seeds and learning rates of runs that are played at once."""

    seeds: tuple[int, ...]
    rate_factors: tuple[float, ...]  # learning rates, divided by the tape's

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        return len(self.seeds)


class StretchLauncher:
    """Launches stretches, and reads the results of their rounds.

    If `job.variants` are several runs, each array has a first axis [n] over them.
    """

    initial_model: Model  # set by `open`, as is the run state
    run_state: RunState

    def __init__(self, parts: Parts, job: Job, source: Any, *, lanes: int):
        """`source` makes batches. At most `lanes` rounds run side by side."""
        self.parts, self._job, self._source, self.lanes = parts, job, source, lanes
        self._each_run, runs = (lambda f: f), 0
        if job.variants is not None:
            self._each_run, runs = jax.vmap, job.variants.num_runs
        self.failed = np.zeros(runs, bool)  # of several runs, by NaN or infinity
        self.buckets = Buckets(job.buckets, source, exact=parts.programs.exact)
        self.lengths = TableLengths()
        self.max_steps = min(max(MAX_STEPS, 4 * parts.num_workers), source.max_steps)
        # not read yet: results, stretches, and groups of rounds
        self.launched: list[tuple[Any, Stretch, Any]] = []
        self.steps_ahead = 0  # launched, whose results are not known

    def open(self, device: Any) -> None:
        """Initialize the model, all replicas and all states."""
        job, programs = self._job, self.parts.programs
        init, seeds = programs.init, job.seed
        if job.variants is not None:
            init = programs.once(
                "several inits", lambda: jax.jit(jax.vmap(programs.task.init))
            )
            seeds = np.array(job.variants.seeds, np.uint32)
        model = init(self._each_run(jax.random.key)(seeds))
        self.initial_model = jax.device_put(model, device)
        self.run_state = self.initial_run_state(self.initial_model)

    def initial_run_state(self, model: Model) -> RunState:
        """Return the run state in which everything has this model."""
        # several small programs: most are shared with other strategies
        return self._each_run(lambda m: initial_run_state(self.parts, *m))(model)

    def root(self) -> Any:
        """Return the root's state."""
        return self._each_run(lambda states: self.parts.state(states, -1, 0))(
            self.run_state.states
        )

    def model(self, root: Any = None) -> Model:
        """Return the model of the root, or of its state, in the initial dtypes."""
        root = self.root() if root is None else root
        get = self.parts.programs.model(self.parts.merges[-1])
        return self._each_run(get)(root, *self.initial_model)

    def launch(
        self, stretch: Stretch, kinds: tuple[OperationKind, ...], *, one_step: bool
    ) -> None:
        """Launch a stretch, in a program of these kinds of operations.

        `one_step`: whether all rounds have one step.
        """
        buckets, of_round, rows, bucket_steps = self.buckets.of(stretch)
        groups, steps = None, self.max_steps
        if self.lanes > 1:
            groups = round_groups_of(stretch, of_round, self.lanes)
        members = max(1, *(len(kind.members) for kind in kinds))
        rounds = steps if groups is None else 16
        least = TableLengths(steps, rounds, steps, members=members)
        self.lengths = self.lengths.grown_to(lengths_of(stretch, groups))
        self.lengths = self.lengths.grown_to(least)
        arrays, table = self._source.program_inputs(
            rows, bucket_steps, self.lengths.steps
        )
        tables = tables_of(
            stretch,
            groups,
            of_round,
            table,
            self.lengths,
            seed=self._job.seed,
            absent=self.parts.num_workers,
        )
        shape = ProgramShape(kinds, buckets, one_step)
        with self._job.compilations.of("stretch"):
            self.run_state, results = self._call(shape, arrays, tables)
        self.launched.append((results, stretch, groups))
        self.steps_ahead += len(stretch.rows)

    def _call(
        self, shape: ProgramShape, arrays: Any, tables: StretchTables
    ) -> tuple[RunState, StretchResults]:
        """Call the program of a shape."""
        parts, batch_maker, variants = (
            self.parts,
            self._source.batch_maker,
            self._job.variants,
        )
        make = stretch_program if variants is None else _side_by_side
        program = parts.programs.once(
            (make, parts, shape, batch_maker),
            lambda: jax.jit(make(parts, shape, batch_maker)),
        )
        if variants is None:
            return program(self.run_state, arrays, tables)
        tables = tables._replace(seed=np.array(variants.seeds, np.uint32))
        factors = np.array(variants.rate_factors, np.float32)
        return program(self.run_state, arrays, tables, factors)

    def read(self) -> None:
        """Read the results of all launched stretches."""
        for results, stretch, groups in self.launched:
            self._read(jax.device_get(results), stretch, groups)
        self.launched = []

    def _read(self, results: StretchResults, stretch: Stretch, groups: Any) -> None:
        (means, finite, losses), n = results, len(stretch.rounds)
        place: Any = np.arange(n)
        if groups is not None and n:
            order, group, lane = group_positions(groups)
            back = np.empty(n, int)
            back[order] = np.arange(n)
            place = group[back], lane[back]
        each = finite[place].tolist() if self.parts.checks_finite else [True] * n
        if self._job.variants is None:
            means = means[place].tolist()
        else:
            of_runs = np.moveaxis(means, 0, -1)[place]
            unused = np.array([o.discarded for o in stretch.outcomes], bool)
            self.failed |= ~(np.isfinite(of_runs) | unused[:, None]).all(axis=0)
            means = map(MeansOfRuns, of_runs)
        every = zip(stretch.outcomes, means, each, strict=True)
        for i, (outcome, mean, fine) in enumerate(every):
            own = None
            if self.parts.records_losses:
                _, start, steps, _, size = stretch.rounds[i]
                own = losses[start : start + steps, :size]
            outcome.numbers = mean, fine, own


class MeansOfRuns(float):
    """The first run's mean loss (0 if not finite), with those of `every` run."""

    every: np.ndarray

    def __new__(cls, every: np.ndarray) -> "MeansOfRuns":
        """`every` [n]: of all runs."""
        mean = super().__new__(cls, every[0] if np.isfinite(every[0]) else 0.0)
        mean.every = every
        return mean


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
