"""The clock of a mesh: wall-clock seconds, in which whole waves pass.

The host handles a wave's arrivals before the devices have done its steps, so their
times are planned: the wave begins when the one before it is expected to end, and takes
the seconds that the workers were measured to need, times the ratio at which recent
waves took longer. When a wave is done, its true end is known, and `corrected` maps
planned times to true ones. Within a wave only the end is measured: a worker counts as
busy for its measured step times and those of the other workers of its device, or less
if the wave is shorter; the members of a merge wait until the last of them is done, and
what is left of the wave counts as merging.
"""

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from hetjax.checkpointable import Checkpointable
from hetjax.engine.correction import TimeMap
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
from hetjax.runtimes.mesh.superstep import ControlMessage, Superstep

AT_ONCE = 16e-3  # [s] of waves that are launched as one program, if they are shorter
MOST_AT_ONCE = 16  # waves of a launch, at most
_LOOKS = 10  # waves that are measured before their number in a launch is chosen
_MICRO = 1_000_000
_SHORTEST = 1e-4  # [s] of a wave, also of one without steps


class MeshClock(Checkpointable):
    """The clock of one run on a mesh.

    Events of a wave come in the order of the workers, with the merges behind. A timer
    comes between two waves: before the first wave that is expected to end after it.
    """

    changes = (
        "now",
        "_at_once",
        "_several",
        "at_once",
        "_shortest",
        "_events",
        "_timers",
        "_next_timer",
        "_pace",
        "_last_end",
    )

    has_pending_joins = False

    def __init__(self, infos: Sequence[WorkerInfo], *, several: bool = False):
        """`infos` hold the measured seconds of every worker's steps.

        `several`: may waves be launched several at a time, in a loop?
        """
        self.workers = tuple(infos)
        self.roster = Roster.of(self.workers)
        self.now = 0.0  # [s] planned time of the last event
        self._several = several
        self._at_once = 1
        self.at_once = 1  # waves that all processes launch at a time
        self._shortest = math.inf  # [s] of a wave so far
        self._events: deque[Event] = deque()
        self._rounds: dict[int, LocalRound] = {}  # of the wave that is forming
        # its devices' measured seconds: a device makes its workers' steps in turn
        self._busy: dict[int | str, float] = {}
        self._device = [w.device or w.index for w in infos]
        self._timers: list[tuple[float, int, str]] = []
        self._next_timer = 0  # its number: timers of equal time keep their order
        self._origin = self._paused = 0.0
        self._under_way: deque[_Planned] = deque()  # waves that are not done
        self._pace = RateEstimate()
        self._last_end = 0.0  # [s] planned, of the last wave
        self._stops = self._due = False  # did process 0 say so?
        self._is_due: Callable[[int], bool] = lambda evals: False
        self._evals = 0
        self._pressed: Callable[[], str] = lambda: ""  # the signal that came
        self.corrected = TimeMap()  # of begins and ends of waves

    # -- time --------------------------------------------------------------------------

    def begin(self) -> None:
        """Let time run, from 0 s or from where the run was cut."""
        self._origin, self._paused = time.perf_counter() - self.corrected.end, 0.0

    def seconds(self) -> float:
        """The time by now [s]."""
        return time.perf_counter() - self._origin - self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock within the context."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - began

    def learn(
        self, waves: tuple[Superstep, ...], done: float, word: ControlMessage | None
    ) -> None:
        """A launch is done: note when, and what process 0 said with it.

        `waves` are those whose steps it made. They are done in the order in which they
        were planned.
        """
        planned = [self._under_way.popleft() for _ in waves]
        if not planned:  # more merges of a wave that was launched in parts
            self.corrected.end = done
            if word is None:
                self._pace.done = done
            return
        seconds = sum(p.seconds for p in planned)
        learns = seconds if any(p.steps for p in planned) else 0.0
        if word is None:
            self._pace.measure(learns, waves[0].launched, done)
        else:
            self._pace.hear(learns, word.seconds + word.micro / _MICRO)
            self._stops = self._stops or bool(word.interrupted)
            self._due = self._due or bool(word.due)
        # a gap before the launch counts for the wave behind it
        each = (done - self.corrected.end) / seconds
        for p in planned:
            self.corrected.add(p.start, p.end, each * p.seconds)
        self._shortest = min(self._shortest, each * planned[0].seconds)
        # all processes have to launch the same waves together
        own = self._choose_at_once(self._shortest)
        self.at_once = own if word is None else word.at_once

    def word(self) -> ControlMessage:
        """What this process says with a launch, if it is process 0."""
        seconds, micro = divmod(int(_MICRO * self.seconds()), _MICRO)
        pressed, due = bool(self._pressed()), self._is_due(self._evals)
        return ControlMessage(seconds, micro, int(pressed), self._at_once, int(due))

    def hear_interrupt(self, pressed: Callable[[], str]) -> Callable[[], bool]:
        """Tell all with the next launch that Ctrl-C came; none stops by itself."""
        self._pressed = pressed
        return lambda: self._stops

    def hear_due(self, is_due: Callable[[int], bool]) -> Callable[[int], bool]:
        """Tell all with the next launch that the run should be kept."""
        self._is_due = is_due

        def heard(evals: int) -> bool:
            self._evals = evals
            return self._due

        return heard

    def _choose_at_once(self, seconds: float) -> int:
        """How many waves of so many seconds to launch at a time; chosen once."""
        if self._at_once == 1 and self._several and self.corrected.intervals >= _LOOKS:
            number = max(1.0, min(MOST_AT_ONCE, AT_ONCE / seconds))
            self._at_once, self._several = 2 ** int(math.log2(number)), False
        return self._at_once

    def _expected_start(self) -> float:
        """When the wave that is forming can begin [s]; planned ones may end later."""
        seconds = sum(p.seconds for p in self._under_way) * self._pace.ratio
        return self._pace.done + seconds

    # -- saved and taken up again ------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return the clock when no worker has a round, and all waves are done."""
        self._due = False  # what was said with the last one was heard
        return super().save()

    def start_at(self, time: float) -> None:
        """Start at `time` [s]."""
        self.now = self._last_end = self._pace.done = time
        self.corrected.start_at(time)

    # -- actions -----------------------------------------------------------------------

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Give a worker a round in the next wave; only its start is planned so far."""
        del nonzeros
        seconds = local_round.local_steps * self.workers[worker].seconds(
            local_round.size
        )
        device = self._device[worker]
        self._busy[device] = self._busy.get(device, 0.0) + max(seconds, _SHORTEST)
        self._rounds[worker] = local_round
        self.roster = self.roster.dispatched((worker,))
        return Arrival(worker, local_round, self._last_end, math.inf)

    def plan(self, merge: MergeRequest) -> PlannedMerge:
        """Let a merge join the wave; it takes what is left of it."""
        check_members(merge.action, self.workers, self.roster)
        action, end = merge.action, max(self.now, self._last_end)
        merged = Merged(action.node, self.now, action.members, action.op)
        self._events.append(merged)
        return PlannedMerge(self.now, Stamps(self.now, self.now, end, end))

    def start(self, worker: int) -> None:
        """Refuse: the workers of a run on a mesh are fixed."""
        raise _fixed_workers(self.workers[worker])

    def stop(self, worker: int) -> None:
        """Refuse: the workers of a run on a mesh are fixed."""
        raise _fixed_workers(self.workers[worker])

    def set_timer(self, name: str, time: float) -> None:
        """Ask for a Timer event between two waves, at about `time` [s]."""
        heapq.heappush(self._timers, (time, self._next_timer, name))
        self._next_timer += 1

    # -- events ------------------------------------------------------------------------

    def next(self) -> Event | None:
        """The next event of the wave, a timer, or the first event of the next wave."""
        if not self._events:
            if self._timer_is_due():
                seconds, _, name = heapq.heappop(self._timers)
                return Timer(name, seconds)
            if self._rounds:
                self._plan_wave()
        if not self._events:
            return None
        event = self._events.popleft()
        self.now = max(self.now, event.time)
        self.roster = self.roster.after(event)
        return event

    @property
    def superstep_is_over(self) -> bool:
        """Are all events of the wave handled?"""
        return not self._events

    @property
    def has_to_know(self) -> bool:
        """Must waves in flight be waited for, as the next event may be a timer?

        A timer is due before the wave that is forming ends, and then no wave runs on;
        when they are done, it is better known when that will be.
        """
        return bool(self._under_way) and self._timer_is_due()

    def _timer_is_due(self) -> bool:
        return bool(self._timers) and self._timers[0][0] < self._expected_end()

    def _expected_end(self) -> float:
        if not self._rounds:
            return math.inf
        return self._expected_start() + self._pace.ratio * max(self._busy.values())

    def _plan_wave(self) -> None:
        """Plan the times of the wave that was forming."""
        busy, expected = self._busy, self._expected_start()
        ratio, longest = self._pace.ratio, max(busy.values())
        # where the plan is ahead of the devices, it slows down until they catch up
        start = max(self._last_end, expected)
        took = max(expected + ratio * longest - start, 0.5 * ratio * longest)
        end = start + took
        # of the wave, each worker is busy for its device's measured seconds
        share = took / longest * min(1.0, 1 / ratio)
        finish = {k: start + share * busy[self._device[k]] for k in self._rounds}
        steps = any(r.local_steps for r in self._rounds.values())
        planned = _Planned(start, end, max(busy.values()), steps)
        self._under_way.append(planned)
        self._last_end = end
        self._events += [
            Arrival(k, r, start, finish[k]) for k, r in sorted(self._rounds.items())
        ]
        self._rounds, self._busy = {}, {}


class _Planned(NamedTuple):
    """The planned times of a wave."""

    start: float
    end: float
    seconds: float  # that the longest round was measured to need
    steps: bool  # are there any?


def _fixed_workers(info: WorkerInfo) -> ValueError:
    return ValueError(
        f"the policy starts or stops {info.name}, but on a mesh the workers of a run "
        'are fixed: take placement="threads"'
    )


_NEW = 0.3  # weight of the last launch in the ratio


class RateEstimate(Checkpointable):
    """The ratio of true to planned seconds, and when what is known to be done ended."""

    changes = ("ratio", "done")

    def __init__(self):
        """Start at 0 s, with planned seconds as they are."""
        self.ratio = 1.0
        self.done = 0.0  # [s]
        self._last: tuple[float, float] | None = None  # stamp and planned seconds

    def measure(self, planned: float, launched: float, done: float) -> None:
        """A launch of so many planned seconds was launched, and is done, then [s].

        0 planned seconds are those of a launch without steps, which tells nothing.
        """
        self._learn(planned, done - max(self.done, launched))
        self.done = done

    def hear(self, planned: float, stamp: float) -> None:
        """A launch of so many planned seconds is done; process 0 began it at `stamp`.

        Its end is expected, until the next stamp tells more.
        """
        if self._last is not None:
            before, seconds = self._last
            self._learn(seconds, stamp - before)
        self._last = stamp, planned
        self.done = stamp + self.ratio * planned

    def _learn(self, planned: float, took: float) -> None:
        if planned:
            self.ratio += _NEW * (max(took, 0.0) / planned - self.ratio)
