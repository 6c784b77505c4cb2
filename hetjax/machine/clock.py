"""The virtual clock: when work arrives and merges are done on a simulated machine.

A heap of coming events. Work takes what its worker's profile says, times noise; a merge
queues for its link, or a parameter server would be free at any scale.
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetjax.machine.profile import Machine, check_seed
from hetjax.machine.types import Alarm, Arrival, Event, Merged, Work

# What comes first at one and the same time: a merge's result is visible to whoever
# arrives just then, and an alarm sees everything that happened.
_MERGED, _ARRIVAL, _ALARM = range(3)


class Transfer(NamedTuple):
    """When a merge had its link."""

    start: float  # [s]
    finish: float  # [s]


class SimulatedClock:
    """The clock of one run on `machine`; starts at 0 s.

    Events at the same time come in this order: Merged (by order of merging), Arrival
    (by worker), Alarm (by order of setting). Each worker has its own noise, drawn from
    (machine.seed, seed, worker), so it does not depend on what the others do.
    """

    def __init__(
        self, machine: Machine, *, seed: int, nonzeros_per_example: float = 0.0
    ):
        check_seed(seed)
        self.workers = machine.worker_infos(nonzeros_per_example)
        self.now = 0.0  # [s]
        self._machine = machine
        self._noises = [
            np.random.default_rng(np.random.SeedSequence((machine.seed, seed, worker)))
            for worker in range(len(self.workers))
        ]
        self._heap: list[tuple[float, int, int, Event]] = []  # time, kind, tie, event
        self._count = 0  # of merges and alarms: breaks their ties
        self._working: set[int] = set()  # workers with work in flight
        self._worker_free = [0.0] * len(self.workers)  # [s] when each may start
        self._link_free: dict[str, float] = {}  # [s] by key of the machine's links
        self._node_free: dict[str, float] = {}  # [s]

    def dispatch(self, worker: int, work: Work, nonzeros: Sequence[int]) -> Arrival:
        """Starts `work` as soon as the worker is free.

            finish = start + sum over steps of
                factor * drift(t) * (fixed + per_example * b + per_nonzero * nz) * noise

        with t when the step starts, and nz in `nonzeros`: one number for each step.
        """
        self._check_at_rest(worker)
        if len(nonzeros) != work.steps:
            raise ValueError(
                f"work of {work.steps} steps needs as many numbers of non-zeros, "
                f"not {len(nonzeros)}"
            )
        start = time = max(self.now, self._worker_free[worker])
        for step_nonzeros in nonzeros:
            time += self._step_seconds(worker, work.size, step_nonzeros, time)
        arrival = Arrival(worker, work, start, time)
        self._working.add(worker)
        self._worker_free[worker] = time
        heapq.heappush(self._heap, (time, _ARRIVAL, worker, arrival))
        return arrival

    def merge(
        self, node: str, members: Sequence[int], num_bytes: float, blocking: bool = True
    ) -> Transfer:
        """Merges the members' models, `num_bytes` each, at `node`.

        The deepest link that all the members share is a queue: the merge starts when
        the link is free, the node's previous merge is done and every member is free.
        The members are free again at its finish; at its start if not `blocking`.
        """
        for member in members:
            self._check_at_rest(member)
        if len(set(members)) < len(members):
            raise ValueError(f"the merge of {tuple(members)} names a member twice")
        key = self._machine.link_of(members)
        start = max(
            self.now,
            self._link_free.get(key, 0.0),
            self._node_free.get(node, 0.0),
            max(self._worker_free[member] for member in members),
        )
        finish = start + self._machine.links[key].seconds(len(members), num_bytes)
        self._link_free[key] = self._node_free[node] = finish
        for member in members:
            self._worker_free[member] = finish if blocking else start
        self._push_counted(finish, _MERGED, Merged(node, finish))
        return Transfer(start, finish)

    def set_alarm(self, name: str, time: float) -> None:
        """Asks for an Alarm at `time` [s], now at the earliest."""
        if not self.now <= time < math.inf:  # also refuses NaN
            raise ValueError(f"alarm {name!r} at {time} s, but it is {self.now} s now")
        self._push_counted(time, _ALARM, Alarm(name, time))

    def next(self) -> Event | None:
        """Moves on to the earliest event; None when nothing is pending."""
        if not self._heap:
            return None
        self.now, kind, worker, event = heapq.heappop(self._heap)
        if kind == _ARRIVAL:
            self._working.remove(worker)
        return event

    def _step_seconds(self, worker: int, size: int, nonzeros: int, time: float):
        """Seconds of one step that starts at `time`, with its noise."""
        if nonzeros < 0:
            raise ValueError(f"a step cannot have {nonzeros} non-zeros")
        seconds = self._machine.workers[worker].seconds(size, nonzeros, time)
        sigma = self._machine.noise
        if sigma == 0:
            return seconds
        z = self._noises[worker].standard_normal()
        return seconds * math.exp(sigma * z - sigma**2 / 2)

    def _push_counted(self, time: float, kind: int, event: Event) -> None:
        heapq.heappush(self._heap, (time, kind, self._count, event))
        self._count += 1

    def _check_at_rest(self, worker: int) -> None:
        if not 0 <= worker < len(self.workers):  # -1 would be the last one
            raise ValueError(
                f"there is no worker {worker}; they are 0 to {len(self.workers) - 1}"
            )
        if worker in self._working:
            name = self.workers[worker].name
            raise ValueError(f"worker {worker} ({name}) has work in flight already")
