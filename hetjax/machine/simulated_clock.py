"""The virtual clock: the times of rounds and merges on a simulated machine.

The duration of a local round follows from its worker's profile and noise; merges queue
for their links. Events come from an `EventQueue`; time jumps from one to the next.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from hetjax.arguments import HostSeed, checked
from hetjax.checkpointable import Checkpointable
from hetjax.machine.contention import Contention
from hetjax.machine.event_queue import EventQueue, check_known, check_members
from hetjax.machine.faults import ScriptedFault
from hetjax.machine.merge_queues import MergeQueues, Transfer
from hetjax.machine.merge_times import MergeRequest, PlannedMerge, Stamps, Traffic
from hetjax.machine.roster import Roster
from hetjax.machine.simulated_machine import Machine
from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    Merged,
    Slow,
)


class SimulatedClock(Checkpointable):
    """The clock of a run on `machine`; it starts at 0 s.

    Events at the same time come in this order: Merged (by order of merging), Join and
    Leave, Arrival (by worker), Timer (by order of setting). Each worker has its own
    noise, drawn from (machine.seed, seed, worker), independent of the other workers.
    Workers are active at the start, unless a scripted fault lets them join later;
    `stop` and `start` change that.
    """

    changes = (
        "now",
        "_noises",
        "_events",
        "_merges",
        "_contention",
        "_plans",
        "_sharing",
        "_factors",
    )

    @checked
    def __init__(
        self, machine: Machine, *, seed: HostSeed, nonzeros_per_example: float = 0.0
    ):
        self.workers = machine.worker_infos(nonzeros_per_example)
        self.now = 0.0  # [s]
        self._machine = machine
        self._noises = [
            np.random.default_rng(np.random.SeedSequence((machine.seed, seed, worker)))
            for worker in range(len(self.workers))
        ]
        self._events = EventQueue(self.workers, machine.faults)
        self._merges = MergeQueues(machine, self.workers)
        contend = any(worker.contention > 1 for worker in machine.workers)
        self._contention: Any = Contention(machine.workers) if contend else None
        self._plans: dict[int, Arrival] = {}  # of working workers, if workers contend
        # the number of active workers on each device
        active = self._events.roster.active
        self._sharing = Counter(self.workers[k].device for k in active)
        self._factors = [1.0] * len(self.workers)  # from scripted "slow" faults

    @property
    def has_pending_joins(self) -> bool:
        """Whether an inactive worker may still join."""
        return self._events.has_scripted_joins

    @property
    def roster(self) -> Roster:
        """The active, working and lost workers."""
        return self._events.roster

    # -- actions -----------------------------------------------------------------

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Start a local round when its worker is free; return its arrival.

            start = max(now, its last merge's finish) + latency
            finish = start + round.seconds + factor * per_round + m / curve(m) * sum of
                factor * drift(t) * (fixed + per_example * b + per_nonzero * nz) * noise

        The sum is over the steps, where t is the start of the step, nz its entry of
        `nonzeros` (one number per step), and m the number of active workers of the
        device. With contention (`Profile.contention`), other workers that compute
        delay the finish.
        """
        self._events.check_can_start(worker)
        steps = local_round.local_steps
        if len(nonzeros) != steps:
            raise ValueError(
                f"a round of {steps} steps needs {steps} numbers of non-zeros, "
                f"not {len(nonzeros)}"
            )
        if min(nonzeros, default=0) < 0:
            raise ValueError(f"a step cannot have {min(nonzeros)} non-zeros")
        profile = self._machine.workers[worker]
        start = max(self.now, self._merges.worker_free(worker)) + profile.latency
        per_round = profile.factor * profile.cost.per_round if steps else 0.0
        time = start + local_round.seconds + per_round
        slowdown = profile.slowdown(self._sharing[self.workers[worker].device])
        size = local_round.size
        for step_nonzeros in nonzeros:
            seconds = self._step_seconds(worker, size, step_nonzeros, time)
            time += slowdown * seconds
        self._events.dispatch(worker)
        arrival = Arrival(worker, local_round, start, time)
        if self._contention is None:
            self._merges.set_worker_free(worker, time)
            self._events.push(time, arrival)
        else:
            self._events.push_begin(arrival)
        return arrival

    def cancel(self, worker: int) -> None:
        """End a worker's local round now; no Arrival follows.

        A worker whose round has not begun, as its last merge is not done, is free after
        that merge.
        """
        planned = self._events.cancel(worker)
        latency = self._machine.workers[worker].latency
        begins = self.now if planned is None else planned.start - latency
        if self._contention is not None:
            self._replan(self._contention.end(worker, self.now))
        self._merges.set_worker_free(worker, max(self.now, begins))

    def merge(
        self,
        action: MergeAction,
        num_bytes: float | Traffic,
        seconds: float = 0.0,
        below: Collection[int] = (),
    ) -> Transfer:
        """Schedule a merge of the members' models, `num_bytes` each, at the node.

        `num_bytes` may differ for the way there and the way back (`Traffic`). The
        deepest link that all members share is a queue: the merge starts when the link
        is free, the node's previous merge is done and every member is free; it
        does not wait for partners. It takes `seconds` of the members' own time, plus
        the link's time for the action's transfers. The members are free again at its
        finish, or at its start if it is not blocking. A merge that neither blocks nor
        needs a link does not wait for the node, as it only concerns models that the
        members already have. `below` are the workers that are members or below a
        member node.
        """
        check_members(action, self.workers, self.roster)
        for partner in action.partners:
            check_known(partner, self.workers)
        below = below or [m for m in action.members if isinstance(m, int)]
        transfer = self._merges.add(action, below, num_bytes, seconds, self.now)
        merged = Merged(action.node, transfer.finish, action.members, action.op)
        self._events.push(transfer.finish, merged)
        return transfer

    def plan(self, merge: MergeRequest) -> PlannedMerge:
        """Schedule a merge at the time that its queues allow."""
        start, finish = self.merge(*merge)
        return PlannedMerge(finish, Stamps(start, start, finish, finish))

    def start(self, worker: int) -> None:
        """Make a worker active from now on; a Join follows."""
        self._events.start(worker, self.now)
        self._sharing[self.workers[worker].device] += 1

    def stop(self, worker: int) -> None:
        """Make a worker inactive after its current round; a Leave follows."""
        self._events.stop(worker, self.now)
        self._sharing[self.workers[worker].device] -= 1

    def set_timer(self, name: str, time: float) -> None:
        """Request a Timer event at `time` [s], which must not be in the past."""
        if not self.now <= time < math.inf:  # also refuses NaN
            raise ValueError(f"timer {name!r} at {time} s, but it is {self.now} s now")
        self._events.set_timer(name, time)

    def start_at(self, time: float) -> None:
        """Start at `time` [s]."""
        self.now = time

    # -- events --------------------------------------------------------------------

    def next(self) -> Event | None:
        """Advance to the earliest event and return it; None if none is pending."""
        while self._events.next_time < math.inf:
            self.now, event, begins = self._events.pop()
            if begins:
                self._begin_contending(event)
                continue
            if isinstance(event, ScriptedFault):
                event = self._apply_fault(event)
            elif isinstance(event, Arrival) and self._contention:
                self._merges.set_worker_free(event.worker, self.now)
                self._replan(self._contention.end(event.worker, self.now))
            if event is not None:
                return event
        return None

    def _apply_fault(self, fault: ScriptedFault) -> Event | None:
        """Apply a scripted fault and return its event; None if it changes nothing."""
        worker = self._events.index_of(fault)
        was = self._events.roster
        event = self._events.apply_fault(fault, self.now)
        if isinstance(event, Slow):  # counts from the worker's next round on
            self._factors[worker] = event.factor
        elif isinstance(event, Join):
            self._sharing[self.workers[worker].device] += 1
            self._merges.set_worker_free(worker, self.now)
        elif isinstance(event, Leave):
            self._sharing[self.workers[worker].device] -= worker in was.active
            if self._contention and worker in was.working:
                self._replan(self._contention.end(worker, self.now))
        return event

    def _begin_contending(self, planned: Any) -> None:
        """Begin a round of a worker with contention; replan all arrivals."""
        alone = planned.finish - planned.start
        self._plans[planned.worker] = planned
        steps = planned.local_round.local_steps
        self._replan(self._contention.begin(planned.worker, alone, self.now, steps))

    def _replan(self, finishes: dict[int, float]) -> None:
        """Reschedule the arrivals of the working workers to these finish times."""
        self._events.reschedule(
            [self._plans[k]._replace(finish=finish) for k, finish in finishes.items()]
        )

    def _step_seconds(
        self, worker: int, size: int, nonzeros: int, time: float
    ) -> float:
        """Return the seconds of a step that starts at `time`, with noise."""
        seconds = self._machine.workers[worker].seconds(size, nonzeros, time)
        seconds *= self._factors[worker]
        sigma = self._machine.noise
        if sigma == 0:
            return seconds
        z = self._noises[worker].standard_normal()
        return seconds * math.exp(sigma * z - sigma**2 / 2)
