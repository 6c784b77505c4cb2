"""The local rounds in flight on real workers, and overdue workers (host world)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetjax.machine.types import LocalRound, WorkerInfo
from hetjax.runtimes.real.deadlines import ALLOWANCE, Deadlines


@dataclass
class RoundInFlight:
    """A local round of a worker's thread; times are those of the clock [s]."""

    local_round: LocalRound
    start: float
    deadline: float
    stamp: float  # of `time.perf_counter`, when the round was dispatched
    reported: bool = False  # done or failed, with its event in the queue
    abandoned: bool = False  # whether a pause waited for it until its deadline
    begins_after: float = 0.0  # the end of a merge that its first step waits for


class RoundsInFlight:
    """The awaited rounds by worker, and the rounds of unresponsive workers.

    An unresponsive worker did not answer by its deadline and was declared lost; it may
    still answer later.
    """

    def __init__(
        self,
        workers: Sequence[WorkerInfo],
        is_compiling: Callable[[int], bool],
        allowance: float = ALLOWANCE,
    ):
        """Start without rounds; a worker that compiles gets more time."""
        self.deadlines = Deadlines(workers, allowance)
        self._is_compiling = is_compiling
        self.begun: dict[int, RoundInFlight] = {}
        self._earliest = math.inf  # no deadline [s] of an awaited round is before it
        self.unresponsive: dict[int, RoundInFlight] = {}

    def begin(
        self, worker: int, local_round: LocalRound, start: float, stamp: float
    ) -> None:
        """Begin a worker's round at `start` [s]."""
        deadline = start + self.deadlines.allowed(worker, local_round)
        self.begun[worker] = RoundInFlight(local_round, start, deadline, stamp)
        self._earliest = min(self._earliest, deadline)

    @property
    def awaited(self) -> dict[int, RoundInFlight]:
        """The rounds by worker that have not been reported."""
        return {k: r for k, r in self.begun.items() if not r.reported}

    def may_be_overdue(self, now: float) -> bool:
        """Whether a worker may be past its deadline; usually, one comparison tells."""
        if now < self._earliest:
            return False
        self._earliest = self.first_deadline
        return self._earliest <= now

    def abandon(self, worker: int) -> None:
        """Note that a pause waited for a worker until its deadline."""
        self.begun[worker].abandoned = True
        self._earliest = -math.inf

    def overdue(self, now: float) -> list[int]:
        """Return workers past their deadlines; extend those of workers that compile."""
        overdue = []
        for worker, round_ in self.awaited.items():
            if round_.deadline > now and not round_.abandoned:
                continue
            if self._is_compiling(worker):
                round_.deadline = now + (round_.deadline - round_.start)
                round_.abandoned = False
                continue
            overdue.append(worker)
        return overdue

    @property
    def first_deadline(self) -> float:
        """The earliest deadline [s] of an awaited round; inf without one.

        That of an abandoned round has passed.
        """
        rounds = self.awaited.values()
        deadlines = (-math.inf if r.abandoned else r.deadline for r in rounds)
        return min(deadlines, default=math.inf)

    def seconds_left(self, now: float) -> float:
        """Return the seconds from `now` after which all rounds are usually done."""
        ends = [
            r.start + self.deadlines.usual(k, r.local_round)
            for k, r in self.awaited.items()
        ]
        return max(0.0, max(ends, default=0.0) - now)
