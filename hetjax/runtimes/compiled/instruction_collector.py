"""Collects the instructions of a tape for compiled programs."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from hetjax import tree
from hetjax.data.batching import Batch, bucket_of, entries_of
from hetjax.engine import tape
from hetjax.engine.programs.metrics import means_of
from hetjax.engine.protocols import EvaluatedModel, Traits
from hetjax.engine.replica_store import Model, busy_partner
from hetjax.machine import ROOT, Arrival, MergeAction
from hetjax.runtimes.compiled.player_choice import TOGETHER
from hetjax.runtimes.compiled.stacks import row
from hetjax.runtimes.compiled.stretch import PendingOutcome
from hetjax.runtimes.compiled.stretch_launcher import StretchLauncher
from hetjax.runtimes.compiled.stretch_types import (
    BEGIN,
    BEGUN,
    DONE,
    MOVED,
    RESET,
    WORKER,
    Kind,
)
from hetjax.runtimes.compiled.tables import Lengths

MERGES = 512  # of a chunk


class InstructionCollector(StretchLauncher):
    """Collects the instructions of a tape."""

    traits: Traits
    plays: dict[type, Callable[[Any], Any]]

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
