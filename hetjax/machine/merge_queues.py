"""Times of merges on a simulated machine: links and nodes are queues (host world).

A merge occupies its link, and later merges wait for it; otherwise a parameter server
would cost nothing at any scale.
"""

import math
from collections.abc import Collection, Iterator
from typing import NamedTuple

from hetjax.checkpointable import Checkpointable
from hetjax.machine.merge_times import Traffic, moves_of
from hetjax.machine.simulated_machine import Machine
from hetjax.machine.types import ROOT, MergeAction, WorkerInfo


class Transfer(NamedTuple):
    """The time [s] during which a merge occupies its link."""

    start: float
    finish: float


class MergeQueues(Checkpointable):
    """The times at which links, nodes and workers are free again."""

    changes = ("_links", "_nodes", "_free")

    def __init__(self, machine: Machine, workers: tuple[WorkerInfo, ...]):
        """Start with everything free at 0 s."""
        self._machine, self._workers = machine, workers
        self._common_link = machine.link_of(range(len(workers)))
        self._links: dict[str, float] = {}  # [s] by key of the machine's links
        self._nodes: dict[str, float] = {}  # [s]
        self._free = [0.0] * len(workers)  # [s] at which each worker may start

    def worker_free(self, worker: int) -> float:
        """Return the time at which a worker may start its next round [s]."""
        return self._free[worker]

    def set_worker_free(self, worker: int, time: float) -> None:
        """Note that a worker is busy until `time` [s]."""
        self._free[worker] = time

    def add(
        self,
        action: MergeAction,
        below: Collection[int],
        num_bytes: float | Traffic,
        seconds: float,
        now: float,
    ) -> Transfer:
        """Queue a merge, as described by `SimulatedClock.merge`.

        `below` are the workers that are members or below a member node.
        """
        all_members = (*action.members, *action.partners)
        _check(action, all_members)
        start = max([now, *map(self._member_free, action.members)])
        node_free = self._nodes.get(action.node, 0.0)
        if action.transfers or action.blocking:
            start = max(start, node_free)
        ints = [m for m in all_members if isinstance(m, int)]
        senders = self._senders(all_members, ints)
        alone = len(all_members) == 1
        if action.transfers and (senders > 1 or alone):  # else all are on one device
            key = self._common_link  # the link that connects all workers to the server
            if not alone or action.node != ROOT:
                key = self._machine.link_of((*below, *action.partners))
            start = max(start, self._links.get(key, 0.0))
            link, per_byte = self._machine.links[key], self._per_byte(ints)
            for share, moved, down in _ways(action, num_bytes):
                seconds += share * link.one_way(senders, moved, down=down)
                seconds += share / 2 * moved * per_byte
            self._links[key] = start + seconds
        finish = start + seconds
        self._nodes[action.node] = max(node_free, finish)
        for member in action.members:
            self._set_member_free(member, finish if action.blocking else start)
        return Transfer(start, finish)

    def _per_byte(self, workers: list[int]) -> float:
        """Return the seconds per byte from the workers to the link and back."""
        return sum([self._machine.workers[k].per_byte for k in workers])

    def _senders(self, all_members: tuple[int | str, ...], workers: list[int]) -> int:
        """Return the number of models sent over the link: one per device and node."""
        nodes = sum([isinstance(m, str) for m in all_members])
        return len({self._workers[worker].device for worker in workers}) + nodes

    def _member_free(self, member: int | str) -> float:
        if isinstance(member, int):
            return self._free[member]
        if member not in self._nodes:
            raise ValueError(f"node {member!r} has no model yet: nothing was merged")
        return self._nodes[member]

    def _set_member_free(self, member: int | str, time: float) -> None:
        if isinstance(member, str):
            self._nodes[member] = time
        else:
            self._free[member] = time


def _ways(
    action: MergeAction, num_bytes: float | Traffic
) -> Iterator[tuple[float, float, bool]]:
    """Yield the transfers of an action: their number, their bytes, whether downwards.

    An operation that only sends or receives has all its transfers in one direction.
    """
    both = (num_bytes, num_bytes) if isinstance(num_bytes, (int, float)) else num_bytes
    moves = moves_of(action.op)
    up, down = moves.pushes, moves.fetches or moves.requests
    directions = (up, down) if up or down else (True, True)
    for moved, way, downwards in zip(both, directions, (False, True), strict=True):
        if way:
            yield action.transfers / sum(directions), moved, downwards


def _check(action: MergeAction, everyone: tuple[int | str, ...]) -> None:
    if len(everyone) > 1 and len(set(everyone)) < len(everyone):
        raise ValueError(f"the merge of {everyone} names a member twice")
    if not 0 <= action.transfers < math.inf:
        raise ValueError(f"a merge has {action.transfers} transfers: pass 0, 1 or 2")
