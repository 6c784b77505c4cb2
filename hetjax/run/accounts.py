"""The books of a run: what each worker did since its last merge, and all in all."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetjax.machine.clock import Stamps
from hetjax.machine.types import ROOT, Arrival, MergeOrder, Work, WorkerInfo
from hetjax.report.history import Timeline, WorkerRecord


class Recent(NamedTuple):
    """What a worker, or everybody below a node, did since its last merge."""

    updates: int = 0
    examples: int = 0


class Accounts:
    """Counters per worker. Only finished work counts as updates and examples."""

    def __init__(self, workers: Sequence[WorkerInfo]):
        """All zero."""
        n = len(workers)
        self.records = [WorkerRecord(w.name) for w in workers]
        self.timeline = Timeline()
        self.updates = 0
        self.examples = 0
        self._recent: dict[int | str, Recent] = {}
        self._last: dict[int | str, tuple[float, float]] = {}
        # batch size and rate of the last work
        self._leaves: dict[str, set[int]] = {}  # workers below a node
        self._under_way: dict[int, float] = {}  # workers with work, and since when [s]
        self._merging_until = [0.0] * n  # [s]
        self._versions: dict[str, int] = {}  # of a node's model
        # the version of its node's model that a member has, or that its mailbox has
        self._fetched: dict[int | str, int] = {}
        self._mail: dict[int | str, int] = {}

    def dispatched(self, worker: int, work: Work, start: float, rate: float) -> None:
        """A worker was given work that begins at `start`."""
        sizes = self.records[worker].batch_size_over_time
        if work.steps and (not sizes or sizes[-1][1] != work.batch_size):
            sizes.append((start, float(work.batch_size)))
        self._under_way[worker] = start
        self._last[worker] = (work.batch_size, rate)

    def merging(self, worker: int, start: float, stamps: Stamps) -> None:
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

    def fetched(self, worker: int) -> None:
        """A worker got a copy of the root's model as it is now."""
        self._fetched[worker] = self._versions.get(ROOT, 0)

    def has_merged(self, worker: int) -> bool:
        """Is nothing that a worker did, or does, still to be merged?"""
        return worker not in self._under_way and worker not in self._recent

    def arrived(self, arrival: Arrival, padded: int, *, finite: bool = True) -> None:
        """A worker finished its work; of a replica that is not finite none counts."""
        worker, work = arrival.worker, arrival.work
        record = self.records[worker]
        self.timeline.add(worker, "busy", arrival.start, arrival.finish)
        del self._under_way[worker]
        if not finite:
            record.nans += 1
            self._recent.pop(worker, None)
            return
        record.updates += work.steps
        record.examples += work.examples
        record.padded += padded
        self.updates += work.steps
        self.examples += work.examples
        self._recent[worker] = _sum(
            self._recent.get(worker, Recent()), Recent(work.steps, work.examples)
        )

    def lost(self, worker: int, time: float) -> None:
        """A worker is gone, with what it did since its last merge."""
        self._recent.pop(worker, None)
        if worker in self._under_way:
            self.timeline.add(worker, "busy", self._under_way.pop(worker), time)
            self.records[worker].lost += 1

    def facts(
        self,
        order: MergeOrder,
        *,
        share: np.ndarray | None = None,
        accuracy: Sequence[float] | None = None,
    ) -> np.ndarray:
        """What the members of a merge did; it is their last merge from now on.

        As the table [fields, members] that `Facts.unpacked` takes.
        """
        members = (*order.members, *order.passive)
        staleness = self._staleness(order)
        gives = "push" in order.words
        recent = [
            self._recent.pop(m, Recent()) if gives and m in order.members else Recent()
            for m in members
        ]
        last = [self._last.get(m, (0.0, 0.0)) for m in members]
        leaves = [{m} if isinstance(m, int) else self._leaves[m] for m in members]
        if gives:
            total = self._recent.get(order.node, Recent())
            self._recent[order.node] = _sum(total, *recent)
            did = [x for x, r in zip(last, recent, strict=True) if r.updates]
            self._last[order.node] = _mean(did or last)
            self._leaves.setdefault(order.node, set()).update(*leaves)
        rows = []  # in the order of the fields of `Facts`
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
                    order.ticks or 0,
                    len(self.records),
                )
            )
        return np.array(rows, np.float32).T

    def _staleness(self, order: MergeOrder) -> list[int]:
        """Versions of the node's model since each member's; and what they have now."""
        words, node = order.words, order.node
        version = self._versions.get(node, 0) + (order.ticks or 0)
        members = (*order.members, *order.passive)
        staleness = [version - self._fetched.get(m, 0) for m in members]
        for member, s in zip(order.members, staleness, strict=False):
            if isinstance(member, int) and "push" in words:
                histogram = self.records[member].staleness
                histogram[s] = histogram.get(s, 0) + 1
            if "deliver" in words:
                self._fetched[member] = self._mail[member]
        if "push" in words and order.ticks is None:  # else only ticks change the model
            version += 1
        for member in order.members:
            if "fetch" in words:
                self._fetched[member] = version
            if "request" in words:
                self._mail[member] = version
        self._versions[node] = version
        return staleness

    def close(self, span: float) -> list[WorkerRecord]:
        """Each worker's time, cut off at the span: the five kinds sum to it.

        What is none of the others is waiting, of a worker that never computed idle.
        """
        for worker, start in sorted(self._under_way.items()):
            self.timeline.add(worker, "busy", start, span)
        table = np.array(self.timeline.numbers).reshape(-1, 4)
        seconds = np.clip(table[:, 3], 0, span) - np.clip(table[:, 2], 0, span)
        for k, record in enumerate(self.records):
            mine = table[:, 0] == k
            record.busy = float(seconds[mine & (table[:, 1] == 0)].sum())
            record.merging = float(seconds[mine & (table[:, 1] == 1)].sum())
            record.transfer = float(seconds[mine & (table[:, 1] == 2)].sum())
            used = record.busy + record.merging + record.transfer
            rest = max(0.0, span - used)
            record.waiting = rest if mine.any() else 0.0
            record.idle = 0.0 if mine.any() else span
            sizes = record.batch_size_over_time
            record.batch_size_over_time = [size for size in sizes if size[0] <= span]
        return self.records


def _sum(*recent: Recent) -> Recent:
    return Recent(sum(r.updates for r in recent), sum(r.examples for r in recent))


def _mean(last: Sequence[tuple[float, float]]) -> tuple[float, float]:
    n = len(last)
    return sum(size for size, _ in last) / n, sum(rate for _, rate in last) / n
