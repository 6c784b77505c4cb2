"""Timelines: each worker's busy, merging and transfer times (host world, no JAX)."""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class Segment(NamedTuple):
    """An interval of one worker's time."""

    worker: int
    kind: str  # "busy", "merging" or "transfer"
    start: float  # [s]
    finish: float  # [s]


@dataclass(repr=False)
class Timeline:
    """All segments of a run, 32 bytes each."""

    kinds = ("busy", "merging", "transfer")
    numbers: array = field(default_factory=lambda: array("d"))
    # of each segment: worker, index of its kind (plus the number of kinds for a local
    # round that did not arrive), start, finish

    def __repr__(self) -> str:
        if not len(self):
            return "<Timeline without segments>"
        table = self.table
        workers, finish = len(np.unique(table[:, 0])), table[:, 3].max()
        return (
            f"<Timeline: {len(self):,} segments of {workers} workers over {finish:g} "
            "s; history.log lists them, hj.plot.timeline(history) draws them>"
        )

    @property
    def table(self) -> np.ndarray:
        """A copy of the numbers, [segments, 4]."""
        return np.array(self.numbers).reshape(-1, 4)

    def add(
        self, worker: int, kind: str, start: float, finish: float, *, arrived=True
    ) -> None:
        """Append a segment unless it is empty."""
        if finish > start:
            index = self.kinds.index(kind) + (0 if arrived else len(self.kinds))
            self.numbers.extend((worker, index, start, finish))

    def truncate(self, worker: int, time: float) -> None:
        """End a worker's segments at `time` [s]."""
        table = self.table
        mine = table[:, 0] == worker
        table[mine, 3] = np.minimum(table[mine, 3], time)
        self.numbers = array("d", table[table[:, 3] > table[:, 2]].ravel())

    def map_times(self, time_map: Callable[[np.ndarray], np.ndarray]) -> None:
        """Map all times, planned to true."""
        table = self.table
        table[:, 2:] = time_map(table[:, 2:])
        self.numbers = array("d", table.ravel())

    def __iter__(self) -> Iterator[Segment]:
        for worker, kind, start, finish, _ in self.marked():
            yield Segment(worker, kind, start, finish)

    def marked(self) -> Iterator[tuple[int, str, float, float, bool]]:
        """Yield the segments, and whether each is complete, not cut short."""
        n, kinds = self.numbers, self.kinds
        for i in range(0, len(n), 4):
            unfinished, kind = divmod(int(n[i + 1]), len(kinds))
            yield int(n[i]), kinds[kind], n[i + 2], n[i + 3], not unfinished

    def __len__(self) -> int:
        return len(self.numbers) // 4


@dataclass
class WorkerRecord:
    """One worker's share of a run; the five kinds of seconds sum to the duration."""

    name: str
    node: str = ""  # the last machine that it ran on, in a cluster
    busy: float = 0.0  # [s] computing
    waiting: float = 0.0  # [s] for other workers
    merging: float = 0.0  # [s] in merges, including queues for the link
    transfer: float = 0.0  # [s] moving its replica between real devices
    idle: float = 0.0  # [s] the whole run, if the strategy never used the worker
    updates: int = 0  # local steps
    examples: int = 0
    padded: int = 0  # padding examples that were computed too
    lost: int = 0  # local rounds that never arrived because the worker was lost
    cancelled: int = 0  # local rounds that the policy ended before they arrived
    cancelled_seconds: float = 0.0  # [s] of these rounds, which count as busy
    nans: int = 0  # local rounds after which the replica was not finite
    # received from it: the models that it pushed in merges; sent to it: those that it
    # fetched; on a cluster, everything over the network from it, and to it
    bytes_received: int = 0
    bytes_sent: int = 0
    batch_size_over_time: list[tuple[float, float]] = field(default_factory=list)
    # (seconds, real-valued size): an entry for each change of the size
    staleness: dict[int, int] = field(default_factory=dict)
    # number of versions of the center between fetch and merge -> count

    def __getitem__(self, name: str) -> Any:
        """Return a field by its name, as in evaluations: worker["busy"]."""
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)
