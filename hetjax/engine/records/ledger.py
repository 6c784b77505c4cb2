"""The books of a run: what each worker did since its last merge, and all in all."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetjax.engine.records.history import Timeline, WorkerRecord
from hetjax.machine.topology import Topology
from hetjax.machine.types import (
    ROOT,
    Arrival,
    LocalRound,
    MergeAction,
    MergeOp,
    Stamps,
    WorkerInfo,
)


class Recent(NamedTuple):
    """What a worker, or everybody below a node, did since its last merge."""

    updates: int = 0
    examples: int = 0


class Ledger:
    """Counters per worker. Only finished rounds count as updates and examples."""

    def __init__(self, workers: Sequence[WorkerInfo], topology: Topology):
        """All zero."""
        self._topology = topology
        n = len(workers)
        self.records = [WorkerRecord(w.name) for w in workers]
        self.timeline = Timeline()
        self.updates = 0
        self.examples = 0
        self._recent: dict[int | str, Recent] = {}
        self._last: dict[int | str, tuple[float, float]] = {}
        # batch size and learning rate of the last round
        self._under_way: dict[int, float] = {}  # workers at work, and since when [s]
        self._merging_until = [0.0] * n  # [s]
        self._versions: dict[str, int] = {}  # of a node's model
        # the version of its node's model that a member has, or that its mailbox has
        self._fetched: dict[int | str, int] = {}
        self._mail: dict[int | str, int] = {}

    def record_dispatch(
        self, worker: int, local_round: LocalRound, start: float, learning_rate: float
    ) -> None:
        """A worker was given a round that begins at `start`."""
        sizes = self.records[worker].batch_size_over_time
        if local_round.local_steps and (
            not sizes or sizes[-1][1] != local_round.batch_size
        ):
            sizes.append((start, float(local_round.batch_size)))
        self._under_way[worker] = start
        self._last[worker] = (local_round.batch_size, learning_rate)

    def record_merge(self, worker: int, start: float, stamps: Stamps) -> None:
        """A worker is in a merge, or queues for it; of two at once one comes first."""
        start = max(start, self._merging_until[worker])
        add, (began, gathered, merged, finish) = self.timeline.add, stamps
        if gathered > began:  # the models have a way to go
            add(worker, "merging", start, began)
            add(worker, "transfer", began, gathered)
            start = gathered
        add(worker, "merging", start, merged)
        add(worker, "transfer", merged, finish)
        self._merging_until[worker] = max(start, finish)

    def record_fetch(self, worker: int) -> None:
        """A worker got a copy of the root's model as it is now."""
        self._fetched[worker] = self._versions.get(ROOT, 0)

    def has_merged(self, worker: int) -> bool:
        """Is nothing that a worker did, or does, still to be merged?"""
        return worker not in self._under_way and worker not in self._recent

    def record_arrival(
        self, arrival: Arrival, padded: int, *, finite: bool = True
    ) -> None:
        """A worker finished its round; of a replica that is not finite none counts."""
        worker, local_round = arrival.worker, arrival.local_round
        record = self.records[worker]
        self.timeline.add(worker, "busy", arrival.start, arrival.finish)
        del self._under_way[worker]
        if not finite:
            record.nans += 1
            self._recent.pop(worker, None)
            return
        record.updates += local_round.local_steps
        record.examples += local_round.examples
        record.padded += padded
        self.updates += local_round.local_steps
        self.examples += local_round.examples
        self._recent[worker] = _sum(
            self._recent.get(worker, Recent()),
            Recent(local_round.local_steps, local_round.examples),
        )

    def record_loss(self, worker: int, time: float) -> None:
        """A worker is gone, with what it did since its last merge."""
        self._recent.pop(worker, None)
        # its merge under way, or the queue for it, ends here, too
        self.timeline.cut(worker, time)
        self._merging_until[worker] = min(self._merging_until[worker], time)
        if worker in self._under_way:
            self.timeline.add(worker, "busy", self._under_way.pop(worker), time)
            self.records[worker].lost += 1

    def take_stats(
        self,
        order: MergeAction,
        *,
        share: np.ndarray | None = None,
        accuracy: Sequence[float] | None = None,
        learning_rate: float = 0.0,
    ) -> np.ndarray:
        """What the members of a merge did; this is their last merge from now on.

        As the table [fields, members] that `WorkerStats.unpacked` takes. Whoever had no
        round yet has the given learning rate.
        """
        members = (*order.members, *order.partners)
        staleness = self._take_staleness(order)
        gives = MergeOp.PUSH in order.op
        recent = [
            self._recent.pop(m, Recent()) if gives and m in order.members else Recent()
            for m in members
        ]
        last = [self._last.get(m, (0.0, learning_rate)) for m in members]
        leaves = [self._topology.workers_of(m) for m in members]
        if gives:
            total = self._recent.get(order.node, Recent())
            self._recent[order.node] = _sum(total, *recent)
            did = [x for x, r in zip(last, recent, strict=True) if r.updates]
            self._last[order.node] = _mean(did or last)
        rows = []  # in the order of the fields of `WorkerStats`
        for i, m in enumerate(members):
            shares = 1.0 if share is None else sum(share[k] for k in leaves[i])
            did = recent[i].updates > 0
            rows.append(
                (
                    m if isinstance(m, int) else -1,
                    recent[i].updates,
                    last[i][0] if did else 0.0,
                    recent[i].examples,
                    last[i][1],
                    staleness[i],
                    len(leaves[i]),
                    shares,
                    accuracy[i] if accuracy else 0.0,
                    order.server_steps or 0,
                    len(self.records),
                )
            )
        return np.array(rows, np.float32).T

    def _take_staleness(self, order: MergeAction) -> list[int]:
        """Versions of the node's model since each member's; and what they have now."""
        op, node = order.op, order.node
        version = self._versions.get(node, 0) + (order.server_steps or 0)
        members = (*order.members, *order.partners)
        staleness = [version - self._fetched.get(m, 0) for m in members]
        for member, s in zip(order.members, staleness, strict=False):
            if isinstance(member, int) and MergeOp.PUSH in op:
                histogram = self.records[member].staleness
                histogram[s] = histogram.get(s, 0) + 1
            if MergeOp.DELIVER in op:
                self._fetched[member] = self._mail[member]
        if (
            MergeOp.PUSH in op and order.server_steps is None
        ):  # else only ticks change the model
            version += 1
        for member in order.members:
            if MergeOp.FETCH in op:
                self._fetched[member] = version
            if MergeOp.REQUEST in op:
                self._mail[member] = version
        self._versions[node] = version
        return staleness

    def close(self, duration: float) -> list[WorkerRecord]:
        """Each worker's time, cut off at the span: the five kinds sum to it.

        What is none of the others is waiting, of a worker that never computed idle.
        """
        for worker, start in sorted(self._under_way.items()):
            self.timeline.add(worker, "busy", start, duration)
        table = np.array(self.timeline.numbers).reshape(-1, 4)
        seconds = np.clip(table[:, 3], 0, duration) - np.clip(table[:, 2], 0, duration)
        for k, record in enumerate(self.records):
            mine = table[:, 0] == k
            record.busy = float(seconds[mine & (table[:, 1] == 0)].sum())
            record.merging = float(seconds[mine & (table[:, 1] == 1)].sum())
            record.transfer = float(seconds[mine & (table[:, 1] == 2)].sum())
            used = record.busy + record.merging + record.transfer
            rest = max(0.0, duration - used)
            record.waiting = rest if mine.any() else 0.0
            record.idle = 0.0 if mine.any() else duration
            sizes = record.batch_size_over_time
            record.batch_size_over_time = [
                size for size in sizes if size[0] <= duration
            ]
        return self.records


def _sum(*recent: Recent) -> Recent:
    return Recent(sum(r.updates for r in recent), sum(r.examples for r in recent))


def _mean(last: Sequence[tuple[float, float]]) -> tuple[float, float]:
    n = len(last)
    return sum(size for size, _ in last) / n, sum(
        learning_rate for _, learning_rate in last
    ) / n
