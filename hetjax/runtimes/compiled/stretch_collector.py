"""Collects the instructions of a tape in stretches."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hetjax import tree
from hetjax.data.batching import bucket_of, lengths_of
from hetjax.engine import tape
from hetjax.engine.job import Job
from hetjax.engine.protocols import Plays, Traits
from hetjax.engine.replica_store import busy_partner
from hetjax.machine import ROOT, Arrival, MergeAction
from hetjax.runtimes.compiled.program_parts import NodeIndices, Parts
from hetjax.runtimes.compiled.stretch import PendingOutcome, Stretch
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


class StretchCollector:
    """The stretch that is not launched yet, and the rounds in flight."""

    def __init__(
        self,
        parts: Parts,
        nodes: NodeIndices,
        job: Job,
        launcher: StretchLauncher | None = None,
    ):
        """A stretch that is full is launched, if there is a launcher."""
        self.parts, self._nodes, self._job = parts, nodes, job
        self._launcher = launcher
        self._copies_replicas = any(parts.copied)  # when a round begins
        self._all_workers = tuple(range(parts.num_workers))
        self.kinds: dict[OperationKind, int] = {BEGIN: 0}  # in tables, by number
        self.one_step = True  # whether all rounds so far have one step
        self.traits = Traits(
            tree.num_bytes(parts.programs.model_like),
            measured=lambda node: bool(
                parts.merges[nodes.of[node][0]].required_metrics
            ),
        )
        self.stretch = Stretch()
        self.running: dict[int, PendingOutcome] = {}  # by busy worker
        self.moved: set[int] = set()  # busy workers whose replicas merges have changed

    @property
    def plays(self) -> Plays:
        """The instructions that change replicas, which the collector carries out."""
        return {
            tape.BeginReplica: lambda begin: self._add(BEGIN, (begin.worker,)),
            tape.StartRound: self.start,
            Arrival: lambda arrival: self.finish(arrival.worker),
            tape.MergeReplicas: self.merge,
            # nothing to do: the replica begins again before it is used
            tape.DiscardReplica: lambda discard: None,
            tape.DiscardRound: lambda e: self.discard(e.worker),
        }

    def launch(self) -> None:
        """Launch the current stretch."""
        stretch, self.stretch = self.stretch, Stretch()
        if stretch.merges or stretch.rounds:
            assert self._launcher is not None
            self._launcher.launch(stretch, tuple(self.kinds), one_step=self.one_step)

    @property
    def merges_pending(self) -> bool:
        """Whether there are merges that are not launched yet."""
        kinds = list(self.kinds)
        return any(kinds[kind].what == "merge" for kind, *_ in self.stretch.merges)

    def expect(self, entries: Iterable[Any], launcher: StretchLauncher) -> None:
        """Prepare for the tape's first entries, so that one program plays the run."""
        shared = self.parts.shared
        kinds = [CHECK_IN, CHECK_IN_MERGED] if shared else []
        kinds += [CHECK_OUT] * self._copies_replicas
        merges = steps = 0
        for entry in entries:
            if isinstance(entry, tape.MergeReplicas):
                kinds.append(self._kind_of(entry.action)[0])
                merges += 1
            elif isinstance(entry, tape.StartRound):
                self.one_step = self.one_step and len(entry.rows) == 1
                steps += len(entry.rows)
                merges += 2 * shared  # its check-out and check-in
        for kind in kinds:
            self.kinds.setdefault(kind, len(self.kinds))
        least = min(MAX_MERGES, launcher.max_steps * merges // max(1, steps) + 16)
        launcher.lengths = launcher.lengths.grown_to(TableLengths(merges=least))

    # -- instructions ------------------------------------------------------------------

    def reset(self, worker: int) -> None:
        """Begin a worker's replica again, except for the merge's buffers."""
        self._add(RESET, (worker,))

    def start(
        self, r: tape.StartRound, synchronize: Callable[[], object] = lambda: None
    ) -> None:
        """Start a round; `synchronize()` makes its numbers known."""
        worker, rows = r.worker, r.rows
        self.moved.discard(worker)
        if self._copies_replicas:
            self._add(CHECK_OUT, (worker,))
        if len(rows) != 1:
            self.one_step = False
        outcome = PendingOutcome(
            rows if self.parts.records_losses else (),
            self._padded(rows),
            len(rows),
            synchronize,
        )
        stretch = self.stretch  # after `_add`, which may launch the previous one
        stretch.add_round(worker, rows, r.first_step, float(r.learning_rate), outcome)
        self.running[worker] = outcome
        most = max(len(stretch.rows), len(stretch.rounds))
        if self._launcher is not None and most >= self._launcher.max_steps:
            self.launch()

    def _padded(self, rows: Any) -> int:
        """Return the number of examples that pad a round's batches to their bucket."""
        if not rows or self.parts.programs.exact:
            return 0
        buckets, train, n = self._job.buckets, self._job.train, len(rows[0])
        if n == buckets[-1].size:
            return 0
        lengths = []
        if train.sparse:
            lengths = [lengths_of((train.x, train.y), r) for r in rows]
        return len(rows) * (bucket_of(buckets, n, lengths).size - n)

    def finish(self, worker: int) -> PendingOutcome:
        """Return the outcome of a round that arrives; its numbers may be pending."""
        if self.parts.shared:
            self._add(CHECK_IN_MERGED if worker in self.moved else CHECK_IN, (worker,))
        return self.running.pop(worker)

    def discard(self, worker: int) -> None:
        """Discard a round that will not arrive; it need not be played."""
        outcome = self.running.pop(worker, None)
        # without a launcher, events have stored their places in the stretch
        if outcome is not None and self._launcher is not None:
            outcome.discarded = True
            self.stretch.remove_round(outcome)

    def merge(self, merge: tape.MergeReplicas) -> None:
        """Carry out a merge or a fetch."""
        action = merge.action
        kind, numbers = self._kind_of(action)
        for m in members_of(action):
            if m in self.running:
                if not self.parts.shared:
                    raise busy_partner(m)
                self.moved.add(m)
        self._add(kind, numbers, self._nodes.of[action.node][1], merge.stats)

    def _kind_of(self, action: MergeAction) -> tuple[OperationKind, tuple[Any, ...]]:
        """Return the kind of a merge, and the indices of its members."""
        places, members = self._nodes.of, members_of(action)
        if action.node == ROOT and all(isinstance(m, int) for m in members):
            of, numbers = (WORKER,) * len(members), members  # the most frequent case
        else:
            pairs = [(WORKER, m) if isinstance(m, int) else places[m] for m in members]
            of = tuple(level for level, _ in pairs)
            numbers = tuple(number for _, number in pairs)
        everyone, level = members == self._all_workers, places[action.node][0]
        return OperationKind(
            "merge", level, action.op, of, everyone, action.part
        ), numbers

    def _add(
        self,
        kind: OperationKind,
        members: Any,
        node: int = 0,
        stats: np.ndarray | None = None,
    ) -> None:
        """Add a merge or another operation before the rounds of a superstep."""
        after, checks_in = members, kind in (CHECK_IN, CHECK_IN_MERGED)
        if self.parts.shared and self.parts.vmapped and not checks_in:
            after = ()  # rounds in flight have their own copies
        elif kind.members.count(WORKER) < len(kind.members):
            workers = zip(kind.members, members, strict=True)
            after = [m for of, m in workers if of == WORKER]
        number = self.kinds.setdefault(kind, len(self.kinds))
        self.stretch.add_merge(number, node, members, stats, after)
        if self._launcher is not None and len(self.stretch.merges) >= MAX_MERGES:
            self.launch()


def members_of(action: MergeAction) -> tuple[int | str, ...]:
    """Return all members of a merge, with the partners."""
    return (*action.members, *action.partners)
