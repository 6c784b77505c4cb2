"""Collects the instructions of a tape into stretches for compiled programs."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from hetjax import tree
from hetjax.data.batching import Batch, bucket_of, lengths_of
from hetjax.engine import tape
from hetjax.engine.programs.evaluation_batches import means_of
from hetjax.engine.protocols import EvaluatedModel, Traits
from hetjax.engine.replica_store import Model, busy_partner
from hetjax.machine import ROOT, Arrival, MergeAction
from hetjax.runtimes.compiled.player_choice import MAX_EVAL_BATCHES
from hetjax.runtimes.compiled.stacks import tree_row
from hetjax.runtimes.compiled.stretch import PendingOutcome
from hetjax.runtimes.compiled.stretch_launcher import StretchLauncher
from hetjax.runtimes.compiled.stretch_types import (
    BEGIN,
    CHECK_IN,
    CHECK_IN_MERGED,
    CHECK_OUT,
    RESET,
    WORKER,
    OperationKind,
)
from hetjax.runtimes.compiled.tables import TableLengths

MAX_MERGES = 512  # of a stretch


class InstructionCollector(StretchLauncher):
    """Carries out instructions by adding them to the current stretch."""

    traits: Traits
    plays: dict[type, Callable[[Any], Any]]

    def listen(self) -> None:
        """Set `traits` and `plays`."""
        parts, places = self._parts, self._nodes.of
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
            tape.EvaluateRoot: self._evaluate,
            # nothing to do: the replica begins again before it is used
            tape.DiscardReplica: lambda discard: None,
            tape.DiscardRound: lambda discard: self._running.pop(discard.worker, None),
        }

    def _begin(self, begin: tape.BeginReplica) -> None:
        self._add(BEGIN, (begin.worker,))

    def _start(self, r: tape.StartRound) -> None:
        worker, rows = r.worker, r.rows
        if self._parts.shared:
            self._moved.discard(worker)
            if self._copies_replicas:
                self._add(CHECK_OUT, (worker,))
        stretch = self._stretch  # after `_add`, which may launch the previous one
        if len(rows) != 1:
            self._one_step = False
        outcome = PendingOutcome(
            rows if self._parts.records_losses else (),
            self._padded(rows),
            self.synchronize,
            steps=len(rows),
        )
        stretch.add_round(worker, rows, r.first_step, float(r.learning_rate), outcome)
        self._running[worker] = outcome
        if (
            len(stretch.rows) >= self._max_steps
            or len(stretch.rounds) >= self._max_steps
        ):
            self.launch()

    def _padded(self, rows: Any) -> int:
        """Return the number of examples that pad a round's batches to their bucket."""
        if not rows or self._parts.programs.exact:
            return 0
        buckets, train, n = self._job.buckets, self._job.train, len(rows[0])
        if n == buckets[-1].size:
            return 0
        lengths = []
        if train.sparse:
            lengths = [lengths_of((train.x, train.y), r) for r in rows]
        return len(rows) * (bucket_of(buckets, n, lengths).size - n)

    def _finish(self, arrival: Arrival) -> PendingOutcome:
        """Return the outcome of a round that arrives; its numbers may be pending."""
        worker = arrival.worker
        outcome = self._running.pop(worker)
        if self._parts.shared:
            self._add(CHECK_IN_MERGED if worker in self._moved else CHECK_IN, (worker,))
        if not outcome.known:
            self._arrived.append(outcome)
        elif self._parts.checks_finite and not outcome.finite:
            self._add(RESET, (worker,))
        return outcome

    def _merge(self, merge: tape.MergeReplicas) -> None:
        action = merge.action
        kind, numbers = self._kind_of(action)
        for m in (*action.members, *action.partners):
            if m in self._running:
                self._move(m)
        self._add(kind, numbers, self._nodes.of[action.node][1], merge.stats)

    def _kind_of(self, action: MergeAction) -> tuple[OperationKind, tuple[Any, ...]]:
        """Return the kind of a merge, and the indices of its members."""
        places, members = self._nodes.of, (*action.members, *action.partners)
        if action.node == ROOT and all(isinstance(m, int) for m in members):
            of, numbers = (WORKER,) * len(members), members  # the most frequent case
        else:
            pairs = [(WORKER, m) if isinstance(m, int) else places[m] for m in members]
            of, numbers = zip(*pairs, strict=True)
        everyone = members == self._all_workers
        kind = OperationKind("merge", places[action.node][0], action.op, of, everyone)
        return kind, numbers

    def expect(self, entries: Iterable[Any]) -> None:
        """Prepare for the tape's first entries, so that one program plays the run."""
        kinds = [CHECK_IN, CHECK_IN_MERGED] if self._parts.shared else []
        kinds += [CHECK_OUT] * self._copies_replicas
        merges = steps = 0
        for entry in entries:
            if isinstance(entry, tape.MergeReplicas):
                kinds.append(self._kind_of(entry.action)[0])
                merges += 1
            elif isinstance(entry, tape.StartRound):
                self._one_step = self._one_step and len(entry.rows) == 1
                steps += len(entry.rows)
                merges += 2 * self._parts.shared  # its check-out and check-in
        for kind in kinds:
            self._number_of(kind)
        least = min(MAX_MERGES, self._max_steps * merges // max(1, steps) + 16)
        self._lengths = self._lengths.grown_to(TableLengths(merges=least))

    def _number_of(self, kind: OperationKind) -> int:
        if kind not in self._kinds:
            self._kinds[kind] = len(self._kinds)
        return self._kinds[kind]

    def _move(self, worker: int) -> None:
        """Note that a merge changes the replica of a busy worker."""
        if not self._parts.shared:
            raise busy_partner(worker)
        self._moved.add(worker)

    def _add(
        self,
        kind: OperationKind,
        members: Any,
        node: int = 0,
        stats: np.ndarray | None = None,
    ) -> None:
        """Add a merge or another operation before the rounds of a superstep."""
        number = self._number_of(kind)
        after = members
        if (
            self._parts.shared
            and self._lanes > 1
            and kind not in (CHECK_IN, CHECK_IN_MERGED)
        ):
            after = ()  # rounds in flight have their own copies
        elif kind.members.count(WORKER) < len(kind.members):
            workers = zip(kind.members, members, strict=True)
            after = [m for of, m in workers if of == WORKER]
        self._stretch.add_merge(number, node, members, stats, after)
        if len(self._stretch.merges) >= MAX_MERGES:
            self.launch()

    def _measure(self, measure: tape.MeasureMembers) -> list[float]:
        self.synchronize()
        action = measure.action
        models = [self._member_model(m) for m in (*action.members, *action.partners)]
        return self.evaluator.member_metrics(models)

    def _member_model(self, member: int | str) -> Model:
        if isinstance(member, int):
            replica = tree_row(self._run_state.replicas, member)
        else:
            level, node = self._nodes.of[member]
            merge = self._parts.merges[level]
            of = self._parts.programs.as_member(merge)
            replica = of(self._parts.state(self._run_state.states, level, node))
        return replica.params, replica.model_state

    def _evaluate(self, evaluation: tape.EvaluateRoot) -> EvaluatedModel:
        """Evaluate the root, in one program if all batches are in memory and few."""
        batches = self.evaluator.test
        pending = bool(self._arrived) or self._merges_pending
        if not isinstance(batches, list) or len(batches) > MAX_EVAL_BATCHES:
            if pending:
                self.synchronize()
            return self.evaluator.evaluate(self)
        if pending:  # launch the evaluation, too, before waiting for results
            self.launch()
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
        return EvaluatedModel(
            model, means_of(self._parts.programs, sums) | self.report()
        )
