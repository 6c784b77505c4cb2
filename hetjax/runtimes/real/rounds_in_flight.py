"""The local rounds that workers' threads have now, and who is late (host world)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetjax.machine.types import LocalRound, WorkerInfo
from hetjax.runtimes.real.deadlines import ALLOWANCE, Deadlines


@dataclass
class RoundInFlight:
    """A local round that a thread has; times are those of the clock [s]."""

    local_round: LocalRound
    start: float
    deadline: float
    stamp: float  # of `time.perf_counter`, when the round was dispatched
    reported: bool = False  # it is done or failed, and its event is in the queue
    abandoned: bool = False  # a pause waited for it until its deadline


class RoundsInFlight:
    """Rounds by worker: those waited for, and those of silent workers.

    A worker is silent when it did not answer by its deadline and was declared lost; it
    may still answer late.
    """

    def __init__(
        self,
        workers: Sequence[WorkerInfo],
        is_compiling: Callable[[int], bool],
        allowance: float = ALLOWANCE,
    ):
        """Nobody has a round; a worker that compiles is given more time."""
        self.deadlines = Deadlines(workers, allowance)
        self._is_compiling = is_compiling
        self._rounds: dict[int, RoundInFlight] = {}
        self.unresponsive: dict[int, RoundInFlight] = {}

    def begin(
        self, worker: int, local_round: LocalRound, start: float, stamp: float
    ) -> None:
        """A worker is given a round at `start` [s]."""
        deadline = start + self.deadlines.allowed(worker, local_round)
        self._rounds[worker] = RoundInFlight(local_round, start, deadline, stamp)

    def end(self, worker: int) -> None:
        """A worker's round is over, or of no interest any more."""
        self._rounds.pop(worker, None)

    def mark_unresponsive(self, worker: int) -> RoundInFlight:
        """A worker missed its deadline: its round is kept among the silent ones."""
        self.unresponsive[worker] = self._rounds.pop(worker)
        return self.unresponsive[worker]

    def abandon(self, worker: int) -> None:
        """A pause waited for a worker until its deadline, in vain."""
        self._rounds[worker].abandoned = True

    def of(self, worker: int) -> RoundInFlight | None:
        """The round that a worker has, waited for or silent."""
        return self.unresponsive.get(worker) or self._rounds.get(worker)

    @property
    def awaited(self) -> dict[int, RoundInFlight]:
        """Rounds by worker that have not been reported."""
        return {k: r for k, r in self._rounds.items() if not r.reported}

    def overdue(self, now: float) -> list[int]:
        """Workers past their deadlines; one that compiles has its deadline moved."""
        late = []
        for worker, under_way in self.awaited.items():
            if under_way.deadline > now and not under_way.abandoned:
                continue
            if self._is_compiling(worker):
                under_way.deadline = now + (under_way.deadline - under_way.start)
                under_way.abandoned = False
                continue
            late.append(worker)
        return late

    @property
    def first_deadline(self) -> float:
        """The earliest deadline [s] of a round that is waited for; inf without one."""
        deadlines = (r.deadline for r in self.awaited.values())
        return min(deadlines, default=float("inf"))

    def seconds_left(self, now: float) -> float:
        """Seconds from `now` until all rounds are usually done."""
        ends = [
            r.start + self.deadlines.usual(k, r.local_round)
            for k, r in self.awaited.items()
        ]
        return max(0.0, max(ends, default=0.0) - now)
