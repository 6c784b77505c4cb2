"""The virtual clock: when work arrives and merges are done on a simulated machine.

A heap of coming events. Work takes what its worker's profile says, times noise; a merge
queues for its link, or a parameter server would be free at any scale.
"""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from hetjax.machine.contention import Contention
from hetjax.machine.profile import AS_SCRIPTED, Incident, Machine, check_seed
from hetjax.machine.types import (
    ROOT,
    Alarm,
    Arrival,
    Event,
    Join,
    Leave,
    Merged,
    MergeOrder,
    Slow,
    Work,
)

# What comes first at one and the same time: a merge's result is visible to whoever
# arrives just then, and an alarm sees everything that happened.
_BEGIN, _MERGED, _STAFF, _ARRIVAL, _ALARM = range(-1, 4)


class Transfer(NamedTuple):
    """When a merge has its link, as far as that is known before it."""

    start: float  # [s]
    finish: float  # [s]


class Stamps(NamedTuple):
    """When the parts of a merge took place [s]."""

    start: float
    gathered: float  # the members' models are where the merge is
    merged: float
    finish: float  # they are back


class SimulatedClock:
    """The clock of one run on `machine`; starts at 0 s.

    Events at the same time come in this order: Merged (by order of merging), Join and
    Leave, Arrival (by worker), Alarm (by order of setting). Each worker has its own
    noise, drawn from (machine.seed, seed, worker), so it does not depend on what the
    others do. Workers are there at the start, unless an incident lets them join later;
    `stop` and `start` change that.
    """

    def __init__(
        self, machine: Machine, *, seed: int, nonzeros_per_example: float = 0.0
    ):
        check_seed(seed)
        self.workers = machine.worker_infos(nonzeros_per_example)
        self.now = 0.0  # [s]
        self._to_join = 0  # by incidents to come
        self._machine = machine
        self._noises = [
            np.random.default_rng(np.random.SeedSequence((machine.seed, seed, worker)))
            for worker in range(len(self.workers))
        ]
        # time, kind, tie, event
        self._heap: list[tuple[float, int, int, Event | Incident]] = []
        self._count = 0  # of merges and alarms: breaks their ties
        self._working: set[int] = set()  # workers with work in flight
        self._worker_free = [0.0] * len(self.workers)  # [s] when each may start
        contend = any(worker.contention > 1 for worker in machine.workers)
        self._contention: Any = Contention(machine.workers) if contend else None
        self._plans: dict[int, Arrival] = {}  # of those at work, if they contend
        self._common_link = machine.link_of(range(len(self.workers)))
        self._link_free: dict[str, float] = {}  # [s] by key of the machine's links
        self._node_free: dict[str, float] = {}  # [s]
        self._below: dict[str, set[int]] = {}  # workers whose models came to a node
        self._there = {info.index for info in self.workers if info.present}
        # who cannot be started: not there yet, or killed
        self._absent = set(range(len(self.workers))) - self._there
        # how many workers each device has now
        self._staff = Counter(self.workers[k].device for k in self._there)
        self._factors = [1.0] * len(self.workers)  # of incidents
        self._indices = {info.name: info.index for info in self.workers}
        for incident in machine.incidents:
            self._push_counted(incident.seconds, _STAFF, incident)
            self._to_join += incident.what == "join"

    def dispatch(self, worker: int, work: Work, nonzeros: Sequence[int]) -> Arrival:
        """Starts `work` as soon as the worker is free; its arrival as it is planned.

            finish = start + work.seconds + factor * per_work + m / curve(m) * sum of
                factor * drift(t) * (fixed + per_example * b + per_nonzero * nz) * noise

        over its steps, with t when the step starts, nz in `nonzeros` (one number for
        each step), and m the workers that the device has now. Where workers contend
        (`Profile.contention`) it is later by what the others do meanwhile.
        """
        self._check_at_rest(worker)
        if worker not in self._there:
            name = self.workers[worker].name
            raise ValueError(f"worker {worker} ({name}) was stopped: start it first")
        if len(nonzeros) != work.steps:
            raise ValueError(
                f"work of {work.steps} steps needs as many numbers of non-zeros, "
                f"not {len(nonzeros)}"
            )
        start = max(self.now, self._worker_free[worker])
        profile = self._machine.workers[worker]
        per_work = profile.factor * profile.cost.per_work
        time = start + work.seconds + (per_work if work.steps else 0.0)
        sharing = self._staff[self.workers[worker].device]
        slowdown = self._machine.workers[worker].slowdown(sharing)
        for step_nonzeros in nonzeros:
            seconds = self._step_seconds(worker, work.size, step_nonzeros, time)
            time += slowdown * seconds
        arrival = Arrival(worker, work, start, time)
        self._working.add(worker)
        if self._contention is None:
            self._worker_free[worker] = time
            heapq.heappush(self._heap, (time, _ARRIVAL, worker, arrival))
        else:
            self._push_counted(start, _BEGIN, arrival)
        return arrival

    def merge(
        self, order: MergeOrder, num_bytes: float, seconds: float = 0.0
    ) -> Transfer:
        """Merges the members' models, `num_bytes` each, at the order's node.

        The deepest link that all the members share is a queue: the merge starts when
        the link is free, the node's previous merge is done and every member is free;
        passive members are not asked. It takes `seconds` of the members' own, and the
        link's time for the order's trips. The members are free again at its finish; at
        its start if not blocking. What neither blocks nor needs a link does not wait
        for the node: it is about what the members have already.
        """
        workers = self._workers_of(order)
        start = max(self.now, max(self._free(member) for member in order.members))
        node_free = self._node_free.get(order.node, 0.0)
        if order.trips or order.blocking:
            start = max(start, node_free)
        senders = self._senders(order)
        alone = len(order.members) + len(order.passive) == 1
        if order.trips and (senders > 1 or alone):  # else all is within one device
            key = self._common_link  # the server stands where all can reach it
            if not alone or order.node != ROOT:
                key = self._machine.link_of((*workers, *order.passive))
            start = max(start, self._link_free.get(key, 0.0))
            seconds += (
                order.trips / 2 * self._machine.links[key].seconds(senders, num_bytes)
            )
            own = [m for m in (*order.members, *order.passive) if isinstance(m, int)]
            ways = sum(self._machine.workers[k].per_byte for k in own)
            seconds += order.trips / 2 * num_bytes * ways
            self._link_free[key] = start + seconds
        finish = start + seconds
        self._node_free[order.node] = max(node_free, finish)
        self._below.setdefault(order.node, set()).update(workers)
        for member in order.members:
            self._set_free(member, finish if order.blocking else start)
        merged = Merged(order.node, finish, order.members, order.op)
        self._push_counted(finish, _MERGED, merged)
        return Transfer(start, finish)

    def merged(
        self,
        order: MergeOrder,
        transfer: Transfer,
        stamps: Stamps | None = None,
        compiling: float = 0.0,
    ) -> Stamps:
        """A merge takes place when it was said to."""
        del order, stamps, compiling
        start, finish = transfer
        return Stamps(start, start, finish, finish)

    def begin(self) -> None:
        """Time is at 0 s; it runs from event to event."""

    def paused(self) -> AbstractContextManager[None]:
        """It stands still anyway, while nobody asks for the next event."""
        return nullcontext()

    def _workers_of(self, order: MergeOrder) -> tuple[int, ...]:
        """The workers whose models the order's members are, or come from."""
        if not order.members:
            raise ValueError("a merge needs at least one member")
        everybody = (*order.members, *order.passive)
        if len(set(everybody)) < len(everybody):
            raise ValueError(f"the merge of {everybody} names a member twice")
        if not 0 <= order.trips < math.inf:
            raise ValueError(f"a merge of {order.trips} trips: give 0, 1 or 2")
        found: list[int] = []
        for member in order.members:
            if isinstance(member, str):
                if member not in self._below:
                    raise ValueError(f"node {member!r} has nothing: nobody merged yet")
                found.extend(self._below[member])
            else:
                self._check_at_rest(member)
                found.append(member)
        for member in order.passive:
            self._check_known(member)
        return tuple(found)

    def _senders(self, order: MergeOrder) -> int:
        """How many models go over the link: one for a device, one for a node."""
        ints = [m for m in (*order.members, *order.passive) if isinstance(m, int)]
        devices = {self.workers[worker].device for worker in ints}
        return len(devices) + sum(isinstance(m, str) for m in order.members)

    def _free(self, member: int | str) -> float:
        if isinstance(member, str):
            return self._node_free[member]
        return self._worker_free[member]

    def _set_free(self, member: int | str, time: float) -> None:
        if isinstance(member, str):
            self._node_free[member] = time
        else:
            self._worker_free[member] = time

    def start(self, worker: int) -> None:
        """The worker is there from now on: a Join."""
        self._check_known(worker)
        if worker in self._there:
            raise ValueError(f"worker {worker} cannot be started: it is there")
        if worker in self._absent:
            raise ValueError(f"worker {worker} cannot be started: it is lost")
        self._there.add(worker)
        self._staff[self.workers[worker].device] += 1
        self._push_counted(self.now, _STAFF, Join(worker, self.now))

    def stop(self, worker: int) -> None:
        """The worker gets no more work: a Leave. What it does now it finishes."""
        self._check_known(worker)
        if worker not in self._there:
            raise ValueError(f"worker {worker} cannot be stopped: it is not there")
        self._there.remove(worker)
        self._staff[self.workers[worker].device] -= 1
        self._push_counted(self.now, _STAFF, Leave(worker, self.now))

    def set_alarm(self, name: str, time: float) -> None:
        """Asks for an Alarm at `time` [s], now at the earliest."""
        if not self.now <= time < math.inf:  # also refuses NaN
            raise ValueError(f"alarm {name!r} at {time} s, but it is {self.now} s now")
        self._push_counted(time, _ALARM, Alarm(name, time))

    @property
    def expects(self) -> bool:
        """May somebody who is not there still come?"""
        return self._to_join > 0

    def next(self) -> Event | None:
        """Moves on to the earliest event; None when nothing is pending."""
        while self._heap:
            self.now, kind, worker, event = heapq.heappop(self._heap)
            if kind == _BEGIN:
                self._begin(event)
                continue
            if kind == _ARRIVAL:
                self._working.remove(worker)
                if self._contention:
                    self._worker_free[worker] = self.now
                    self._replan(self._contention.end(worker, self.now))
            if not isinstance(event, Incident):
                return event
            follows = self._happen(event)
            if follows is not None:
                return follows
        return None

    def _begin(self, planned: Any) -> None:
        """A work begins that others slow down, or that slows others down."""
        alone = planned.finish - planned.start
        self._plans[planned.worker] = planned
        steps = planned.work.steps
        self._replan(self._contention.begin(planned.worker, alone, self.now, steps))

    def _replan(self, finishes: dict[int, float]) -> None:
        """The arrivals of those at work, as it is known now."""
        others = [e for e in self._heap if e[1] != _ARRIVAL or e[2] not in finishes]
        for worker, finish in finishes.items():
            arrival = self._plans[worker]._replace(finish=finish)
            others.append((finish, _ARRIVAL, worker, arrival))
        heapq.heapify(others)
        self._heap = others

    def _happen(self, incident: Incident) -> Event | None:
        """What an incident leads to; nothing where it changes nothing."""
        worker = self._indices[incident.worker]
        if incident.what == "slow":  # from its next work on
            self._factors[worker] = incident.factor
            return Slow(worker, self.now, incident.factor)
        joins = incident.what == "join"
        self._to_join -= joins
        if joins != (worker in self._absent):
            return None
        if joins:
            self._absent.remove(worker)
            self._there.add(worker)
            self._staff[self.workers[worker].device] += 1
            self._worker_free[worker] = self.now
            return Join(worker, self.now, AS_SCRIPTED)
        self._absent.add(worker)
        if worker in self._there:
            self._there.remove(worker)
            self._staff[self.workers[worker].device] -= 1
        if worker in self._working:
            self._working.remove(worker)
            self._heap = [e for e in self._heap if not _is_work_of(e, worker)]
            heapq.heapify(self._heap)
            if self._contention:
                self._replan(self._contention.end(worker, self.now))
        why = f"killed, {AS_SCRIPTED}"
        return Leave(worker, self.now, lost=True, why=why)

    def _step_seconds(self, worker: int, size: int, nonzeros: int, time: float):
        """Seconds of one step that starts at `time`, with its noise."""
        if nonzeros < 0:
            raise ValueError(f"a step cannot have {nonzeros} non-zeros")
        seconds = self._machine.workers[worker].seconds(size, nonzeros, time)
        seconds *= self._factors[worker]
        sigma = self._machine.noise
        if sigma == 0:
            return seconds
        z = self._noises[worker].standard_normal()
        return seconds * math.exp(sigma * z - sigma**2 / 2)

    def _push_counted(self, time: float, kind: int, event: Event | Incident) -> None:
        heapq.heappush(self._heap, (time, kind, self._count, event))
        self._count += 1

    def _check_known(self, worker: int) -> None:
        if not 0 <= worker < len(self.workers):  # -1 would be the last one
            raise ValueError(
                f"there is no worker {worker}; they are 0 to {len(self.workers) - 1}"
            )

    def _check_at_rest(self, worker: int) -> None:
        self._check_known(worker)
        if worker in self._working:
            name = self.workers[worker].name
            raise ValueError(f"worker {worker} ({name}) has work in flight already")


def _is_work_of(entry: tuple[float, int, int, Any], worker: int) -> bool:
    """Is this entry of the heap the begin, or the end, of a worker's work?"""
    return entry[1] in (_BEGIN, _ARRIVAL) and entry[3].worker == worker
