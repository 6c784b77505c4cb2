"""Launches the programs of a compiled run, and reads their results."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hetjax.data.batching import make_batch
from hetjax.engine.capabilities import RoundNotFinite
from hetjax.engine.evaluation import Evaluator
from hetjax.engine.job import Job
from hetjax.engine.replica_store import Model, counters
from hetjax.machine import WorkerInfo
from hetjax.runtimes.compiled.program_parts import (
    NodeIndices,
    Parts,
    RunState,
    changed_leaves,
    copied_leaves,
    initial_run_state,
)
from hetjax.runtimes.compiled.stretch import PendingOutcome, Stretch
from hetjax.runtimes.compiled.stretch_program import stretch_program
from hetjax.runtimes.compiled.stretch_types import (
    BEGIN,
    OperationKind,
    ProgramShape,
    StretchResults,
    StretchTables,
)
from hetjax.runtimes.compiled.tables import (
    Buckets,
    TableLengths,
    group_positions,
    lengths_of,
    round_groups_of,
    tables_of,
)
from hetjax.strategies.types import Strategy

MAX_STEPS = 512  # of a stretch


class StretchLauncher:
    """Launches collected stretches, and reads the results of their rounds."""

    _initial_model: Model  # set by `open`, as is the run state
    _run_state: RunState

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
        self._job, self._device, self._source = job, device, source
        self._lanes, self._max_steps_ahead = lanes, max_steps_ahead
        self.evaluator = Evaluator(job, device)
        self.evaluate_whole_test = self.evaluator.evaluate_whole_test
        programs = job.programs
        merges = programs.merges_of(strategy)
        topology = strategy.policy.topology(workers)
        self._nodes = NodeIndices.in_topology(topology, len(merges))
        requires = (*merges[0].requires, *strategy.local.requires)
        some = np.zeros(job.buckets[-1].size, np.int64)
        batch = make_batch(job.train, some, job.buckets)
        local = strategy.local
        changes = changed_leaves(programs, local, requires, batch)
        self._parts = Parts(
            programs,
            strategy.local,
            merges,
            requires,
            len(workers),
            self._nodes.num_nodes,
            lanes > 1,
            changes,
            copied_leaves(programs, merges[0], local, changes, vmapped=lanes > 1),
            checks_finite=job.on_nan == "reset",
            records_losses=strategy.sampler.observe is not None,
        )
        self._buckets = Buckets(job.buckets, source, exact=programs.exact)
        self._kinds: dict[OperationKind, int] = {BEGIN: 0}  # in tables, by number
        self._copies_replicas = any(self._parts.copied)  # when a round begins
        self._all_workers = tuple(range(len(workers)))
        self._one_step = True
        self._lengths = TableLengths()
        self._max_steps = min(
            max(MAX_STEPS, 4 * len(workers)), source.max_steps
        )  # of a stretch
        self._stretch = Stretch()
        # launched and not read yet: results, stretches, and groups of rounds
        self._launched: list[tuple[Any, Stretch, Any]] = []
        self._running: dict[int, PendingOutcome] = {}  # by busy worker
        self._arrived: list[PendingOutcome] = []  # since the last synchronization
        self._moved: set[int] = set()  # busy workers whose replicas merges have changed
        self._steps_ahead = 0  # launched since the last synchronization
        self.knows_in_time = False  # whether each result is known when it arrives
        self.times_known = 0  # the number of synchronizations

    def _first_model(self) -> Model:
        return self._job.programs.init(jax.random.key(self._job.seed))

    def _initial_run_state(self, model: Model) -> RunState:
        # several small programs: most are shared with other strategies
        return initial_run_state(self._parts, *model)

    def flush(self) -> None:
        """Synchronize if enough steps were played since the last time."""
        if (
            self.knows_in_time
            or self._steps_ahead + len(self._stretch.rows) >= self._max_steps_ahead
        ):
            self.synchronize()

    def launch(self) -> None:
        """Launch the current stretch."""
        stretch, self._stretch = self._stretch, Stretch()
        if not (stretch.merges or stretch.rounds):
            return
        parts, source = self._parts, self._source
        buckets, of_round, rows, bucket_steps = self._buckets.of(stretch)
        groups = (
            round_groups_of(stretch, of_round, self._lanes) if self._lanes > 1 else None
        )
        self._lengths = self._lengths.grown_to(lengths_of(stretch, groups))
        members = max(len(kind.members) for kind in self._kinds)
        steps = self._max_steps
        least = TableLengths(steps, steps, steps, members=max(1, members))
        if groups is not None:
            least = least._replace(rounds=16)
        self._lengths = self._lengths.grown_to(least)
        arrays, table = source.program_inputs(rows, bucket_steps, self._lengths.steps)
        tables = tables_of(
            stretch,
            groups,
            of_round,
            table,
            self._lengths,
            seed=self._job.seed,
            absent=parts.num_workers,
        )
        shape = ProgramShape(tuple(self._kinds), buckets, self._one_step)
        with self._job.compilations.of("stretch"):
            self._run_state, numbers = self._call(shape, arrays, tables)
        self._launched.append((numbers, stretch, groups))
        self._steps_ahead += len(stretch.rows)

    def _call(
        self, shape: ProgramShape, arrays: Any, tables: StretchTables
    ) -> tuple[RunState, StretchResults]:
        """Launch the program of a shape, and return its outputs."""
        return self._program(stretch_program, shape)(self._run_state, arrays, tables)

    def _program(self, make: Callable[..., Callable], shape: ProgramShape) -> Callable:
        """Return the compiled program that `make` writes for a shape."""
        parts, batch_maker = self._parts, self._source.batch_maker
        return parts.programs.once(
            (make, parts, shape, batch_maker),
            lambda: jax.jit(make(parts, shape, batch_maker)),
        )

    @property
    def _merges_pending(self) -> bool:
        """Whether there are merges that are not launched yet."""
        kinds = list(self._kinds)
        return any(kinds[kind].what == "merge" for kind, *_ in self._stretch.merges)

    def synchronize_if_needed(self) -> None:
        """Synchronize if a round has arrived whose numbers are pending."""
        if self._arrived:
            self.synchronize()

    def synchronize(self) -> None:
        """Launch everything, and read the results of all rounds.

        Errors: `RoundNotFinite` if the run has to go back to its last mark.
        """
        self.launch()
        self._read_all()
        arrived, self._arrived, self._steps_ahead = self._arrived, [], 0
        self.times_known += 1
        checks = self._parts.checks_finite
        for outcome in arrived:
            fine = np.isfinite(outcome.mean) and (outcome.finite or not checks)
            if not fine and not self.knows_in_time:
                raise RoundNotFinite

    def _read_all(self) -> None:
        """Read the results of all launched stretches."""
        for numbers, stretch, groups in self._launched:
            self._read(jax.device_get(numbers), stretch, groups)
        self._launched = []

    def _read(self, numbers: Any, stretch: Stretch, groups: Any) -> None:
        means, finite, losses = numbers
        n = len(stretch.rounds)
        if groups is not None and n:
            order, group, lane = group_positions(groups)
            back = np.empty(n, int)
            back[order] = np.arange(n)
            place = group[back], lane[back]
        else:
            place = np.arange(n)
        each = finite[place].tolist() if self._parts.checks_finite else [True] * n
        every = zip(stretch.outcomes, self._means(means, place), each, strict=True)
        for i, (outcome, mean, fine) in enumerate(every):
            own = None
            if self._parts.records_losses:
                _, start, steps, _, size = stretch.rounds[i]
                own = losses[start : start + steps, :size]
            outcome.set_numbers(mean, fine, own)

    def _means(self, means: np.ndarray, place: Any) -> list[Any]:
        """Return the mean losses at the rounds' indices."""
        return means[place].tolist()

    def close(self) -> list[int]:
        """Detach all outcomes from the player; there are no threads to stop."""
        launched = [o for _, stretch, _ in self._launched for o in stretch.outcomes]
        for outcome in (*launched, *self._stretch.outcomes, *self._running.values()):
            outcome.detach()
        return []

    def model(self) -> Model:
        """Return the root's current model, in the dtypes of the initial model."""
        if self._merges_pending:
            self.launch()
        merge, programs = self._parts.merges[-1], self._parts.programs
        return programs.model(merge)(self._root(), *self._initial_model)

    def _root(self) -> Any:
        """Return the root's state."""
        return self._parts.state(self._run_state.states, -1, 0)

    def report(self) -> dict[str, float]:
        """Return the counters of the root's merge."""
        return counters(self._parts.merges[-1], self._root())
