"""The clock of a mesh: wall-clock time, which advances by whole supersteps.

The host handles the arrivals of a superstep before the devices have done its steps, so
their times are planned: the superstep begins when the previous one is expected to end,
and takes the measured seconds of its workers, times the ratio of true to planned
seconds of recent supersteps. When it is done, its true end is known, and `time_map`
maps planned times to true ones. Only the end of a superstep is measured: a worker
counts as busy for the measured step times of its device's workers, and the rest of the
superstep, after its slowest worker, as merging.
"""

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from hetjax.checkpointable import Checkpointable
from hetjax.machine import (
    Arrival,
    Event,
    LocalRound,
    Merged,
    MergeRequest,
    PlannedMerge,
    Roster,
    Stamps,
    Timer,
    WorkerInfo,
)
from hetjax.machine.event_queue import check_members
from hetjax.runtimes.mesh.mesh_times import RateEstimate, TimeMap
from hetjax.runtimes.mesh.superstep import ControlMessage, Superstep

LAUNCH_SECONDS = 16e-3  # [s] target for launches of several short supersteps
MAX_PER_LAUNCH = 16  # supersteps
_MIN_MEASURED = 10  # supersteps measured before their number per launch is chosen
_MICRO = 1_000_000
_SHORTEST = 1e-4  # [s] of any superstep, even without steps


class MeshClock(Checkpointable):
    """The clock of one run on a mesh.

    The arrivals of a superstep come in the order of the workers, then its merges. A
    timer comes between two supersteps: before the first one expected to end after it.
    """

    changes = (
        "now",
        "_own_per_launch",
        "_several",
        "per_launch",
        "_shortest",
        "_events",
        "_timers",
        "_next_timer",
        "_rate",
        "_last_end",
    )

    has_pending_joins = False

    def __init__(self, infos: Sequence[WorkerInfo], *, several: bool = False):
        """`infos` have the measured seconds of every worker's steps.

        `several` allows launches of several supersteps, in a loop.
        """
        self.workers = tuple(infos)
        self.roster = Roster.of(self.workers)
        self.now = 0.0  # [s] planned time of the last event
        self._several = several
        self._own_per_launch = 1
        self.per_launch = 1  # supersteps per launch of all processes
        self._shortest = math.inf  # [s] of a superstep so far
        self._events: deque[Event] = deque()
        self._rounds: dict[int, LocalRound] = {}  # of the forming superstep
        # its devices' measured seconds; a device runs its workers one after another
        self._busy: dict[int | str, float] = {}
        self._device = [w.device or w.index for w in infos]
        self._timers: list[tuple[float, int, str]] = []
        self._next_timer = 0  # its number, which orders timers of equal time
        self._origin = self._paused = 0.0
        self._in_flight: deque[_Planned] = deque()  # supersteps that are not done
        self._rate = RateEstimate()
        self._last_end = 0.0  # [s] planned end of the last superstep
        self._stops = self._due = False  # as process 0 has broadcast
        self._is_due: Callable[[int], bool] = lambda evals: False
        self._evals = 0
        self._pressed: Callable[[], str] = lambda: ""  # the signal received
        self.time_map = TimeMap()  # of starts and ends of supersteps

    # -- time --------------------------------------------------------------------------

    def begin(self) -> None:
        """Start at 0 s, or at the time of the snapshot that was loaded."""
        self._origin, self._paused = time.perf_counter() - self.time_map.end, 0.0

    def seconds(self) -> float:
        """The current time [s]."""
        return time.perf_counter() - self._origin - self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock within the context."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - began

    def finish_launch(
        self,
        supersteps: tuple[Superstep, ...],
        done: float,
        message: ControlMessage | None,
    ) -> None:
        """Record when a launch was done, and process 0's control message.

        `supersteps` are those whose steps it made. They are done in the planned order.
        """
        planned = [self._in_flight.popleft() for _ in supersteps]
        if not planned:  # more merges of a superstep that was launched in parts
            self.time_map.end = done
            if message is None:
                self._rate.done = done
            return
        seconds = sum(p.seconds for p in planned)
        learns = seconds if any(p.steps for p in planned) else 0.0
        if message is None:
            self._rate.measure(learns, supersteps[0].launched, done)
        else:
            self._rate.receive(learns, message.seconds + message.microseconds / _MICRO)
            self._stops = self._stops or bool(message.interrupted)
            self._due = self._due or bool(message.due)
        # a gap before the launch counts towards the superstep after it
        each = (done - self.time_map.end) / seconds
        for p in planned:
            self.time_map.add(p.start, p.end, each * p.seconds)
        self._shortest = min(self._shortest, each * planned[0].seconds)
        # all processes must launch the same supersteps together
        own = self._choose_per_launch(self._shortest)
        self.per_launch = own if message is None else message.per_launch

    def control_message(self) -> ControlMessage:
        """The control message that process 0 broadcasts with a launch."""
        seconds, micro = divmod(int(_MICRO * self.seconds()), _MICRO)
        pressed, due = bool(self._pressed()), self._is_due(self._evals)
        number = self._own_per_launch
        return ControlMessage(seconds, micro, int(pressed), number, int(due))

    def broadcast_interrupt(self, pressed: Callable[[], str]) -> Callable[[], bool]:
        """Broadcast Ctrl-C with the next launch; no process stops by itself."""
        self._pressed = pressed
        return lambda: self._stops

    def broadcast_due(self, is_due: Callable[[int], bool]) -> Callable[[int], bool]:
        """Broadcast with the next launch that a snapshot is due."""
        self._is_due = is_due

        def received(evals: int) -> bool:
            self._evals = evals
            return self._due

        return received

    def _choose_per_launch(self, seconds: float) -> int:
        """Choose, once, the number of supersteps of these `seconds` per launch."""
        if (
            self._own_per_launch == 1
            and self._several
            and self.time_map.intervals >= _MIN_MEASURED
        ):
            number = max(1.0, min(MAX_PER_LAUNCH, LAUNCH_SECONDS / seconds))
            self._own_per_launch, self._several = 2 ** int(math.log2(number)), False
        return self._own_per_launch

    def _expected_start(self) -> float:
        """When the forming superstep can begin [s]; planned ones may end later."""
        seconds = sum(p.seconds for p in self._in_flight) * self._rate.ratio
        return self._rate.done + seconds

    # -- saved and resumed -------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Save the clock when no worker has a round and all supersteps are done."""
        self._due = False  # this is the snapshot that was due
        return super().save()

    def start_at(self, time: float) -> None:
        """Start at `time` [s]."""
        self.now = self._last_end = self._rate.done = time
        self.time_map.start_at(time)

    # -- actions -----------------------------------------------------------------------

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Add a round to the forming superstep; only its start is planned so far."""
        del nonzeros
        seconds = local_round.local_steps * self.workers[worker].seconds(
            local_round.size
        )
        device = self._device[worker]
        self._busy[device] = self._busy.get(device, 0.0) + max(seconds, _SHORTEST)
        self._rounds[worker] = local_round
        self.roster = self.roster.dispatched((worker,))
        return Arrival(worker, local_round, self._last_end, math.inf)

    def cancel(self, worker: int) -> None:
        """Refuse: one program runs the rounds of all workers."""
        raise ValueError(
            f"the policy cancels the round of worker {worker}, but on a mesh one "
            'program runs all rounds: use placement="threads"'
        )

    def plan(self, merge: MergeRequest) -> PlannedMerge:
        """Add a merge to the superstep; it takes the rest of its time."""
        check_members(merge.action, self.workers, self.roster)
        action, end = merge.action, max(self.now, self._last_end)
        merged = Merged(action.node, self.now, action.members, action.op)
        self._events.append(merged)
        return PlannedMerge(self.now, Stamps(self.now, self.now, end, end))

    def start(self, worker: int) -> None:
        """Refuse: the workers of a run on a mesh are fixed."""
        raise ValueError(
            f"the policy starts or stops {self.workers[worker].name}, but on a mesh "
            'the workers of a run are fixed: use placement="threads"'
        )

    stop = start

    def set_timer(self, name: str, time: float) -> None:
        """Request a Timer event between two supersteps, at about `time` [s]."""
        heapq.heappush(self._timers, (time, self._next_timer, name))
        self._next_timer += 1

    # -- events ------------------------------------------------------------------------

    def next(self) -> Event | None:
        """Return the next event of this superstep, a timer, or one of the next."""
        if not self._events:
            if self._timer_is_due():
                seconds, _, name = heapq.heappop(self._timers)
                return Timer(name, seconds)
            if self._rounds:
                self._plan_superstep()
        if not self._events:
            return None
        event = self._events.popleft()
        self.now = max(self.now, event.time)
        self.roster = self.roster.after(event)
        return event

    @property
    def superstep_is_over(self) -> bool:
        """Whether all events of the superstep are handled."""
        return not self._events

    @property
    def must_wait(self) -> bool:
        """Whether to wait for supersteps in flight, as the next event may be a timer.

        A timer is due before the expected end of the forming superstep, which is
        estimated more precisely when the supersteps in flight are done.
        """
        return bool(self._in_flight) and self._timer_is_due()

    def _timer_is_due(self) -> bool:
        return bool(self._timers) and self._timers[0][0] < self._expected_end()

    def _expected_end(self) -> float:
        if not self._rounds:
            return math.inf
        return self._expected_start() + self._rate.ratio * max(self._busy.values())

    def _plan_superstep(self) -> None:
        busy, expected = self._busy, self._expected_start()
        ratio, longest = self._rate.ratio, max(busy.values())
        # a plan that is ahead of the devices slows down until they catch up
        start = max(self._last_end, expected)
        took = max(expected + ratio * longest - start, 0.5 * ratio * longest)
        end = start + took
        # each worker is busy for its device's measured seconds of the superstep
        share = took / longest * min(1.0, 1 / ratio)
        finish = {k: start + share * busy[self._device[k]] for k in self._rounds}
        steps = any(r.local_steps for r in self._rounds.values())
        planned = _Planned(start, end, max(busy.values()), steps)
        self._in_flight.append(planned)
        self._last_end = end
        self._events += [
            Arrival(k, r, start, finish[k]) for k, r in sorted(self._rounds.items())
        ]
        self._rounds, self._busy = {}, {}


class _Planned(NamedTuple):
    """The planned times of a superstep."""

    start: float
    end: float
    seconds: float  # measured, of the longest round
    steps: bool  # whether it has steps
