"""The player of a compiled run: it collects what is played, and launches programs.

The tape is written ahead to the next point where something must be seen: an evaluation,
losses that a sampler observes, metrics that are weights of a merge. Until then a
round's result is not known. If a number then turns out not to be finite, all since the
last such point is undone, and played once more with each result known when it arrives
(`NotFinite`): what follows from it is decided as by the reference player.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax import tree
from hetjax.checkpointable import Leaves
from hetjax.data.batching import Batch, bucket_of, entries_of, make_batch
from hetjax.engine import tape
from hetjax.engine.capabilities import RoundNotFinite
from hetjax.engine.evaluation import Evaluator
from hetjax.engine.job import Job
from hetjax.engine.programs.metrics import means_of
from hetjax.engine.protocols import EvaluatedModel, Traits
from hetjax.engine.replica_store import Model, busy_partner, counters
from hetjax.machine import ROOT, Arrival, MergeAction, WorkerInfo
from hetjax.runtimes.compiled.chunk import Chunk, PendingOutcome
from hetjax.runtimes.compiled.parts import (
    Held,
    Parts,
    Places,
    begun,
    changed_leaves,
    copied_leaves,
    row,
)
from hetjax.runtimes.compiled.player_choice import TOGETHER
from hetjax.runtimes.compiled.stretch_program import (
    WORKER,
    Kind,
    Numbers,
    Shape,
    StretchTables,
    stretch,
)
from hetjax.runtimes.compiled.tables import (
    Buckets,
    Lengths,
    lengths_of,
    links_of,
    places_of,
    tables_of,
)
from hetjax.runtimes.inline import run_turns_alone
from hetjax.strategies.types import Strategy

STEPS = 512  # of a chunk
MERGES = 512  # of a chunk
BEGIN, RESET, BEGUN, DONE, MOVED = (
    Kind(what) for what in ("begin", "reset", "begun", "done", "moved")
)


class Mark(NamedTuple):
    """A point to which a player goes back."""

    held: Held
    chunk: Chunk
    running: dict[int, PendingOutcome]
    moved: set[int]


class CompiledPlayer:
    """Plays the tape of one run, stretch by stretch."""

    traits: Traits
    plays: dict[type, Callable[[Any], Any]]
    run_turns = staticmethod(run_turns_alone)

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

    def open(self) -> None:
        """Make the first model."""
        job = self._job
        with job.compilations.of("init"):
            self._initial = jax.device_put(self._first_model(), self._device)
            self._held = self._begun(self._initial)
        self.listen()

    def listen(self) -> None:
        """Be ready for instructions."""
        parts, places = self._parts, self._places.of
        model = jax.eval_shape(parts.programs.init, jax.random.key(0))
        self.traits = Traits(
            tree.num_bytes(model),
            measured=lambda node: bool(parts.merges[places[node][0]].required_metrics),
        )
        self.plays = {
            tape.BeginReplica: self._begin,
            tape.StartRound: self._start,
            Arrival: self._finish,
            tape.MeasureMembers: self._measure,
            tape.MergeReplicas: self._merge,
            tape.EvaluateRoot: self._look,
            tape.DiscardReplica: lambda forget: (
                None
            ),  # it begins again before it is used
            tape.DiscardRound: lambda drop: self._running.pop(drop.worker, None),
        }

    def _first_model(self) -> Model:
        return self._job.programs.init(jax.random.key(self._job.seed))

    def _begun(self, model: Model) -> Held:
        # not as one program: of its parts, most are those of other strategies, too
        return begun(self._parts, *model)

    # -- instructions ------------------------------------------------------------------

    def _begin(self, begin: tape.BeginReplica) -> None:
        self._add(BEGIN, (begin.worker,))

    def _start(self, r: tape.StartRound) -> None:
        worker, rows = r.worker, r.rows
        if self._parts.shared:
            self._moved.discard(worker)
            if self._copies:
                self._add(BEGUN, (worker,))
        chunk = self._chunk  # not the one before, which may just have been launched
        if len(rows) != 1:
            self._single = False
        outcome = PendingOutcome(
            rows if self._parts.keeps else (),
            self._padded(rows),
            self.synchronize,
            steps=len(rows),
        )
        chunk.add_round(worker, rows, r.first_step, float(r.learning_rate), outcome)
        self._running[worker] = outcome
        if len(chunk.rows) >= self._steps or len(chunk.rounds) >= self._steps:
            self.launch()

    def _padded(self, rows: Any) -> int:
        """Examples that pad the batches of a round to their bucket."""
        if not rows or self._parts.programs.exact:
            return 0
        buckets, train, n = self._job.buckets, self._job.train, len(rows[0])
        if n == buckets[-1].size:
            return 0
        lengths = []
        if train.sparse:
            lengths = [[e.lengths for e in entries_of(train, r)] for r in rows]
        return len(rows) * (bucket_of(buckets, n, lengths).size - n)

    def _finish(self, arrival: Arrival) -> PendingOutcome:
        """A round arrives; what came of it may be known later."""
        worker = arrival.worker
        outcome = self._running.pop(worker)
        if self._parts.shared:
            self._add(MOVED if worker in self._moved else DONE, (worker,))
        if not outcome.known:
            self._arrived.append(outcome)
        elif self._parts.checks and not outcome.finite:
            self._add(RESET, (worker,))
        return outcome

    def _merge(self, merge: tape.MergeReplicas) -> None:
        action = merge.action
        kind, numbers = self._kind_of(action)
        for m in (*action.members, *action.partners):
            if m in self._running:
                self._move(m)
        self._add(kind, numbers, self._places.of[action.node][1], merge.stats)

    def _kind_of(self, action: MergeAction) -> tuple[Kind, tuple[Any, ...]]:
        """The kind of a merge, and the numbers of its members."""
        places, members = self._places.of, (*action.members, *action.partners)
        if action.node == ROOT and all(isinstance(m, int) for m in members):
            of, numbers = (WORKER,) * len(members), members  # the most frequent case
        else:
            pairs = [(WORKER, m) if isinstance(m, int) else places[m] for m in members]
            of, numbers = zip(*pairs, strict=True)
        everyone = members == self._everyone
        kind = Kind("merge", places[action.node][0], action.op, of, everyone)
        return kind, numbers

    def expect(self, entries: Iterable[Any]) -> None:
        """Know what a run probably plays, so that one program does for all of it."""
        kinds = [DONE, MOVED] if self._parts.shared else []
        kinds += [BEGUN] * self._copies
        merges = steps = 0
        for entry in entries:
            if isinstance(entry, tape.MergeReplicas):
                kinds.append(self._kind_of(entry.action)[0])
                merges += 1
            elif isinstance(entry, tape.StartRound):
                self._single = self._single and len(entry.rows) == 1
                steps += len(entry.rows)
                merges += 2 * self._parts.shared  # as it begins, and arrives
        for kind in kinds:
            self._number_of(kind)
        least = min(MERGES, self._steps * merges // max(1, steps) + 16)
        self._lengths = self._lengths.holding(Lengths(merges=least))

    def _number_of(self, kind: Kind) -> int:
        if kind not in self._kinds:
            self._kinds[kind] = len(self._kinds)
        return self._kinds[kind]

    def _move(self, worker: int) -> None:
        """A merge moves the replica of a worker at work."""
        if not self._parts.shared:
            raise busy_partner(worker)
        self._moved.add(worker)

    def _add(
        self,
        kind: Kind,
        members: Any,
        node: int = 0,
        stats: np.ndarray | None = None,
    ) -> None:
        """Add a merge, or what else comes before the rounds of a superstep."""
        number = self._number_of(kind)
        after = members
        if self._parts.shared and self._width > 1 and kind not in (DONE, MOVED):
            after = ()  # rounds at work have copies of their own
        elif kind.members.count(WORKER) < len(kind.members):
            workers = zip(kind.members, members, strict=True)
            after = [m for of, m in workers if of == WORKER]
        self._chunk.add_merge(number, node, members, stats, after)
        if len(self._chunk.merges) >= MERGES:
            self.launch()

    def _measure(self, measure: tape.MeasureMembers) -> list[float]:
        self.synchronize()
        action = measure.action
        models = [self._seen(m) for m in (*action.members, *action.partners)]
        return self.evaluator.of_members(models)

    def _seen(self, member: int | str) -> Model:
        if isinstance(member, int):
            replica = row(self._held.replicas, member)
        else:
            level, node = self._places.of[member]
            merge = self._parts.merges[level]
            of = self._parts.programs.as_member(merge)
            replica = of(self._parts.state(self._held.states, level, node))
        return replica.params, replica.model_state

    def _look(self, look: tape.EvaluateRoot) -> EvaluatedModel:
        """Evaluate, all batches in one program if they are at hand."""
        batches = self.evaluator.test
        settles = bool(self._arrived) or self._merges_wait
        if not isinstance(batches, list) or len(batches) > TOGETHER:
            if settles:
                self.synchronize()
            return self.evaluator.look(self)
        if settles:  # and the evaluation, before anything is waited for
            self.launch()
        with self._job.compilations.of("evaluate"):
            model, sums = self._evaluated(batches)
        if settles:
            self.synchronize()
        before = time.perf_counter()
        sums = jax.device_get(sums)
        self.evaluator.seconds += time.perf_counter() - before
        return self._what_is_seen(model, sums)

    def _evaluated(self, batches: list[Batch]) -> tuple[Model, Any]:
        """The current model, and its metrics' sums over each batch."""
        model = self.model()
        return model, self._parts.programs.evaluate_all(*model, batches)

    def _what_is_seen(self, model: Model, sums: Any) -> EvaluatedModel:
        return EvaluatedModel(
            model, means_of(self._parts.programs, sums) | self.report()
        )

    # -- launches ----------------------------------------------------------------------

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

    def policy_metrics(self, seen: EvaluatedModel, metrics: Any) -> Any:
        """What the policy is told of an evaluation."""
        del seen
        return metrics

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

    # -- points to go back to ----------------------------------------------------------

    def mark(self) -> Mark:
        """A point for `undo`: between two events; what has arrived is known."""
        self._read_all()
        return Mark(
            self._held, self._chunk.copy(), dict(self._running), set(self._moved)
        )

    def undo(self, mark: Mark) -> None:
        """Go back to a point; from it on, each result is known when it arrives."""
        self._held, self._chunk = mark.held, mark.chunk.copy()
        self._running, self._moved = dict(mark.running), set(mark.moved)
        self._launched, self._arrived, self._played = [], [], 0
        self.knows_in_time = True

    # -- models ------------------------------------------------------------------------

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

    # -- saved and resumed -------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return all arrays, and what is not launched yet, at a `mark`."""
        self._read_all()
        root = self._root()
        chunk = self._chunk.outcomes
        return {
            "root": Leaves(jax.tree.leaves(root)),
            "held": Leaves(jax.tree.leaves(self._held)),
            "chunk": self._chunk.save(),
            # by their places in the chunk, or themselves
            "running": {
                k: chunk.index(x) if x in chunk else x.save()
                for k, x in self._running.items()
            },
            "moved": self._moved,
            # so that the same programs go on
            "shapes": (
                list(self._kinds),
                self._single,
                self._lengths,
                self._buckets.known,
            ),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        held = tree.filled(self._held, saved["held"], "the replicas")
        self._held = jax.device_put(held, self._device)
        self._chunk = Chunk.restored(saved["chunk"], self.synchronize)
        self._running = {
            k: self._chunk.outcomes[x]
            if isinstance(x, int)
            else PendingOutcome.restored(x, self.synchronize)
            for k, x in saved["running"].items()
        }
        self._moved = saved["moved"]
        kinds, self._single, self._lengths, self._buckets.known = saved["shapes"]
        self._kinds = {kind: i for i, kind in enumerate(kinds)}

    def load_root(self, leaves: list[Any]) -> None:
        """Continue with the root alone: all else begins from its model."""
        root = tree.filled(self._root(), leaves, "the state of the root")
        root = jax.device_put(root, self._device)
        model = self._parts.programs.model(self._parts.merges[-1])(root, *self._initial)
        held = self._begun(model)
        states = self._parts.with_state(held.states, -1, 0, root, None)
        self._held = held._replace(states=states)

    def model_of(self, leaves: list[Any]) -> Model:
        """Return a model from a saved one's arrays."""
        found = tree.filled(self._initial, leaves, "the model")
        return jax.device_put(self._parts.programs.copies(found), self._device)
