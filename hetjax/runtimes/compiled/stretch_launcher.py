"""Launches the programs of a compiled run, and reads their numbers."""

from typing import Any

import jax
import numpy as np

from hetjax.data.batching import make_batch
from hetjax.engine.evaluation import Evaluator
from hetjax.engine.job import Job
from hetjax.engine.protocols import RoundNotFinite
from hetjax.engine.replica_store import Model, counters
from hetjax.machine import WorkerInfo
from hetjax.runtimes.compiled.parts import (
    Held,
    Parts,
    Places,
    begun,
    changed_leaves,
    copied_leaves,
)
from hetjax.runtimes.compiled.stretch import Chunk, PendingOutcome
from hetjax.runtimes.compiled.stretch_program import stretch
from hetjax.runtimes.compiled.stretch_types import (
    BEGIN,
    Kind,
    Numbers,
    Shape,
    StretchTables,
)
from hetjax.runtimes.compiled.tables import (
    Buckets,
    Lengths,
    lengths_of,
    links_of,
    places_of,
    tables_of,
)
from hetjax.strategies.types import Strategy

STEPS = 512  # of a chunk


class StretchLauncher:
    """Launches what was collected, and reads what came of it."""

    _initial: Model  # set when the player is opened, as are all replicas and states
    _held: Held

    def __init__(
        self,
        strategy: Strategy,
        job: Job,
        workers: tuple[WorkerInfo, ...],
        source: Any,
        device: Any,
        *,
        width: int,
        most: float,
    ):
        """`source` makes batches. `width` rounds, at most, run side by side.

        `most` steps, at most, are played until it is seen what came of them.
        """
        self._job, self._device, self._source = job, device, source
        self._width, self._most = width, most
        self.evaluator = Evaluator(job, device)
        self.look_at_all = self.evaluator.of_all
        programs = job.programs
        merges = programs.merges_of(strategy)
        topology = strategy.policy.topology(workers)
        self._places = Places.in_topology(topology, len(merges))
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
            self._places.num_nodes,
            width > 1,
            changes,
            copied_leaves(programs, merges[0], local, changes, vmapped=width > 1),
            checks=job.on_nan == "reset",
            keeps=strategy.sampler.observe is not None,
        )
        self._buckets = Buckets(job.buckets, source, exact=programs.exact)
        self._kinds: dict[Kind, int] = {BEGIN: 0}  # their numbers
        self._copies = any(self._parts.copied)  # when a round begins
        self._everyone = tuple(range(len(workers)))
        self._single = True
        self._lengths = Lengths()
        self._steps = min(max(STEPS, 4 * len(workers)), source.most)  # of a chunk
        self._chunk = Chunk()
        # launched, and not read yet: numbers, their chunks, and what runs side by side
        self._launched: list[tuple[Any, Chunk, Any]] = []
        self._running: dict[int, PendingOutcome] = {}  # of workers at work
        self._arrived: list[
            PendingOutcome
        ] = []  # since it was last seen what came of them
        self._moved: set[int] = set()  # workers whose replicas merges have moved
        self._played = 0  # steps, since then
        self.knows_in_time = False  # is each result known when it arrives?
        self.times_known = 0  # how often it was seen what came of everything

    def _first_model(self) -> Model:
        return self._job.programs.init(jax.random.key(self._job.seed))

    def _begun(self, model: Model) -> Held:
        # not as one program: of its parts, most are those of other strategies, too
        return begun(self._parts, *model)

    def flush(self) -> None:
        """See what came of everything, if that is due."""
        if self.knows_in_time or self._played + len(self._chunk.rows) >= self._most:
            self.synchronize()

    def launch(self) -> None:
        """Launch what was collected."""
        chunk, self._chunk = self._chunk, Chunk()
        if not (chunk.merges or chunk.rounds):
            return
        parts, source = self._parts, self._source
        buckets, of_round, rows, steps = self._buckets.of(chunk)
        links = links_of(chunk, of_round, self._width) if self._width > 1 else None
        self._lengths = self._lengths.holding(lengths_of(chunk, links))
        members = max(len(kind.members) for kind in self._kinds)
        most = self._steps
        least = Lengths(most, most, most, members=max(1, members))
        if links is not None:
            least = least._replace(rounds=16)
        self._lengths = self._lengths.holding(least)
        arrays, table = source.given(rows, steps, self._lengths.steps)
        tables = tables_of(
            chunk,
            links,
            of_round,
            table,
            self._lengths,
            seed=self._job.seed,
            absent=parts.num_workers,
        )
        shape = Shape(tuple(self._kinds), buckets, self._single)
        with self._job.compilations.of("stretch"):
            self._held, numbers = self._call(shape, arrays, tables)
        self._launched.append((numbers, chunk, links))
        self._played += len(chunk.rows)

    def _call(
        self, shape: Shape, arrays: Any, tables: StretchTables
    ) -> tuple[Held, Numbers]:
        """Launch the program of a shape."""
        parts, source = self._parts, self._source
        program = parts.programs.once(
            ("stretch", parts, shape, source.maker),
            lambda: jax.jit(stretch(parts, shape, source.maker)),
        )
        return program(self._held, arrays, tables)

    @property
    def _merges_wait(self) -> bool:
        """Are there merges that are not launched yet?"""
        kinds = list(self._kinds)
        return any(kinds[kind].what == "merge" for kind, *_ in self._chunk.merges)

    def synchronize_if_needed(self) -> None:
        """Let what came of all rounds that arrived be known."""
        if self._arrived:
            self.synchronize()

    def synchronize(self) -> None:
        """Play everything, and know what came of it.

        Errors: `NotFinite` if the run has to go back to its last mark.
        """
        self.launch()
        self._read_all()
        arrived, self._arrived, self._played = self._arrived, [], 0
        self.times_known += 1
        checks = self._parts.checks
        for outcome in arrived:
            fine = np.isfinite(outcome.mean) and (outcome.finite or not checks)
            if not fine and not self.knows_in_time:
                raise RoundNotFinite

    def _read_all(self) -> None:
        """Read the numbers of all that was launched."""
        for numbers, chunk, links in self._launched:
            self._read(jax.device_get(numbers), chunk, links)
        self._launched = []

    def _read(self, numbers: Any, chunk: Chunk, links: Any) -> None:
        means, finite, losses = numbers
        n = len(chunk.rounds)
        if links is not None and n:
            order, lines, slots = places_of(links)
            back = np.empty(n, int)
            back[order] = np.arange(n)
            place = lines[back], slots[back]
        else:
            place = np.arange(n)
        each = finite[place].tolist() if self._parts.checks else [True] * n
        every = zip(chunk.outcomes, self._means(means, place), each, strict=True)
        for i, (outcome, mean, fine) in enumerate(every):
            kept = None
            if self._parts.keeps:
                _, start, steps, _, size = chunk.rounds[i]
                kept = losses[start : start + steps, :size]
            outcome.learn(mean, fine, kept)

    def _means(self, means: np.ndarray, place: Any) -> list[Any]:
        """The mean losses of rounds, by their places."""
        return means[place].tolist()

    def close(self) -> list[int]:
        """Let go of outcomes, which know the player; no thread has to end."""
        launched = [o for _, chunk, _ in self._launched for o in chunk.outcomes]
        for outcome in (*launched, *self._chunk.outcomes, *self._running.values()):
            outcome.let_go()
        return []

    def model(self) -> Model:
        """Return the root's current model, in the dtypes of the initial model."""
        if self._merges_wait:
            self.launch()
        merge, programs = self._parts.merges[-1], self._parts.programs
        return programs.model(merge)(self._root(), *self._initial)

    def _root(self) -> Any:
        """The root's state."""
        return self._parts.state(self._held.states, -1, 0)

    def report(self) -> dict[str, float]:
        """Return the counters of the root's merge."""
        return counters(self._parts.merges[-1], self._root())
