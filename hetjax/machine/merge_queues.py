"""When merges take place on a simulated machine: links and nodes are queues (host).

A merge occupies its link, and later ones wait for it, or a parameter server would be
free at any scale.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

from hetjax.machine.machine import Machine
from hetjax.machine.types import ROOT, MergeAction, WorkerInfo


class Transfer(NamedTuple):
    """When a merge has its link [s]."""

    start: float
    finish: float


class MergeQueues:
    """When links, nodes and workers are free."""

    def __init__(self, machine: Machine, workers: tuple[WorkerInfo, ...]):
        """Everything is free at 0 s."""
        self._machine, self._workers = machine, workers
        self._common_link = machine.link_of(range(len(workers)))
        self._links: dict[str, float] = {}  # [s] by key of the machine's links
        self._nodes: dict[str, float] = {}  # [s]
        self._free = [0.0] * len(workers)  # [s] when each may start

    def worker_free(self, worker: int) -> float:
        """When a worker may start its next round [s]."""
        return self._free[worker]

    def set_worker_free(self, worker: int, time: float) -> None:
        """A worker is busy until then [s]."""
        self._free[worker] = time

    def add(
        self,
        action: MergeAction,
        below: Collection[int],
        num_bytes: float,
        seconds: float,
        now: float,
    ) -> Transfer:
        """Queue a merge, as `SimulatedClock.merge` describes it.

        `below` are the workers that the members are, or stand for.
        """
        self._check(action)
        start = max(now, max(self._member_free(member) for member in action.members))
        node_free = self._nodes.get(action.node, 0.0)
        if action.transfers or action.blocking:
            start = max(start, node_free)
        senders = self._senders(action)
        alone = len(action.members) + len(action.partners) == 1
        if action.transfers and (senders > 1 or alone):  # else all is within one device
            key = self._common_link  # the server stands where all can reach it
            if not alone or action.node != ROOT:
                key = self._machine.link_of((*below, *action.partners))
            start = max(start, self._links.get(key, 0.0))
            link = self._machine.links[key].seconds(senders, num_bytes)
            seconds += action.transfers / 2 * link
            seconds += action.transfers / 2 * num_bytes * self._per_byte(action)
            self._links[key] = start + seconds
        finish = start + seconds
        self._nodes[action.node] = max(node_free, finish)
        for member in action.members:
            self._set_member_free(member, finish if action.blocking else start)
        return Transfer(start, finish)

    def _per_byte(self, action: MergeAction) -> float:
        """Seconds per byte of the members' own ways to the link and back."""
        own = [m for m in (*action.members, *action.partners) if isinstance(m, int)]
        return sum(self._machine.workers[k].per_byte for k in own)

    def _senders(self, action: MergeAction) -> int:
        """How many models go over the link: one for a device, one for a node."""
        ints = [m for m in (*action.members, *action.partners) if isinstance(m, int)]
        devices = {self._workers[worker].device for worker in ints}
        return len(devices) + sum(isinstance(m, str) for m in action.members)

    def _member_free(self, member: int | str) -> float:
        if isinstance(member, int):
            return self._free[member]
        if member not in self._nodes:
            raise ValueError(f"node {member!r} has nothing: nobody merged yet")
        return self._nodes[member]

    def _set_member_free(self, member: int | str, time: float) -> None:
        if isinstance(member, str):
            self._nodes[member] = time
        else:
            self._free[member] = time

    def _check(self, action: MergeAction) -> None:
        if not action.members:
            raise ValueError("a merge needs at least one member")
        everybody = (*action.members, *action.partners)
        if len(set(everybody)) < len(everybody):
            raise ValueError(f"the merge of {everybody} names a member twice")
        if not 0 <= action.transfers < math.inf:
            raise ValueError(f"a merge of {action.transfers} transfers: give 0, 1 or 2")
