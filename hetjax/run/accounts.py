"""The books of a run: what each worker did since its last merge, and all in all."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetjax.machine.types import Arrival, Work, WorkerInfo
from hetjax.merge.types import Facts
from hetjax.report.history import Timeline, WorkerRecord
from hetjax.schedule.types import ROOT


class Accounts:
    """Counters per worker. Only finished work counts as updates and examples."""

    def __init__(self, workers: Sequence[WorkerInfo]):
        """All zero."""
        n = len(workers)
        self.records = [WorkerRecord(w.name) for w in workers]
        self.timeline = Timeline()
        self.updates = 0
        self.examples = 0
        self._recent = np.zeros((n, 3))  # updates, examples, works since the merge
        self._last = [(0.0, 0.0)] * n  # batch size and rate of the last work
        self._padding = [0] * n  # examples of padding in the work under way
        self._merging_until = [0.0] * n  # [s]
        self._versions: dict[str, int] = {ROOT: 0}  # merges done at a node
        self._fetched = [0] * n  # version of the node's model that a replica started at

    def dispatched(self, arrival: Arrival, rate: float, padded: int) -> None:
        """A worker was given work that will arrive so."""
        worker, work = arrival.worker, arrival.work
        record = self.records[worker]
        self.timeline.add(worker, "busy", arrival.start, arrival.finish)
        sizes = record.batch_size_over_time
        if not sizes or sizes[-1][1] != work.batch_size:
            sizes.append((arrival.start, float(work.batch_size)))
        self._padding[worker] = padded
        self._last[worker] = (work.batch_size, rate)

    def merging(self, worker: int, start: float, finish: float) -> None:
        """A worker is in a merge, or queues for it; of two at once one comes first."""
        start = max(start, self._merging_until[worker])
        self.timeline.add(worker, "merging", start, finish)
        self._merging_until[worker] = max(start, finish)

    def fetched(self, worker: int) -> None:
        """A worker got a copy of the root's model as it is now."""
        self._fetched[worker] = self._versions[ROOT]

    def arrived(self, worker: int, work: Work) -> None:
        """A worker finished its work."""
        record = self.records[worker]
        record.updates += work.steps
        record.examples += work.examples
        record.padded += self._padding[worker]
        self.updates += work.steps
        self.examples += work.examples
        self._recent[worker] += (work.steps, work.examples, 1)

    def facts(self, node: str, members: Sequence[int]) -> Facts:
        """What the members of a merge did; it is their last merge from now on."""
        index = np.array(members)
        version = self._versions.get(node, 0)
        staleness = [version - self._fetched[k] for k in members]
        for k, s in zip(members, staleness, strict=True):
            histogram = self.records[k].staleness
            histogram[s] = histogram.get(s, 0) + 1
        recent = self._recent[index].astype(np.float32).T
        last = np.array([self._last[k] for k in members], np.float32).T
        self._recent[index] = 0
        self._versions[node] = version + 1
        for k in members:
            self._fetched[k] = version + 1
        facts: dict[str, Any] = {  # NumPy: jit takes them as they are
            "worker": index.astype(np.int32),
            "updates": recent[0],
            "batch_size": np.where(recent[0] > 0, last[0], 0).astype(np.float32),
            "examples": recent[1],
            "rate": last[1],
            "staleness": np.array(staleness, np.float32),
            "ticks": recent[2],
        }
        return Facts(**facts)

    def close(self, span: float) -> list[WorkerRecord]:
        """Each worker's time, cut off at the span: the four kinds sum to it.

        What is neither computing nor merging is waiting, of a worker that never
        computed idle.
        """
        table = np.array(self.timeline.numbers).reshape(-1, 4)
        seconds = np.clip(table[:, 3], 0, span) - np.clip(table[:, 2], 0, span)
        for k, record in enumerate(self.records):
            mine = table[:, 0] == k
            record.busy = float(seconds[mine & (table[:, 1] == 0)].sum())
            record.merging = float(seconds[mine & (table[:, 1] == 1)].sum())
            rest = max(0.0, span - record.busy - record.merging)
            record.waiting = rest if mine.any() else 0.0
            record.idle = 0.0 if mine.any() else span
            sizes = record.batch_size_over_time
            record.batch_size_over_time = [size for size in sizes if size[0] <= span]
        return self.records
