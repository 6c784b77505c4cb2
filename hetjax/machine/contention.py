"""Contention: workers that compute at the same time slow each other down (host).

CPU devices of a host share its cores, and the driver thread of a GPU needs one of them.
The duration of a local round then depends on which other workers compute during it,
which is unknown when it begins: finish times are recomputed whenever a worker begins or
ends a round.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hetjax.checkpointable import Checkpointable
from hetjax.machine.workers_and_links import Profile


@dataclass
class _RemainingRound:
    """The remaining part of a local round, which computes and then may rest."""

    computing: float  # [s] of computing left, if it computed alone
    weight: float  # how much its computing slows down the other workers
    rest: float  # [s] of rest afterwards, per second of computing
    took: float = 0.0  # [s] of computing so far
    resting: float = 0.0  # [s] of rest left, once it has computed

    @property
    def over(self) -> bool:
        """Whether the round has ended."""
        return self.computing == 0 and self.resting == 0


class Contention(Checkpointable):
    """The computing workers, and the remaining parts of their rounds.

    While other workers j compute, a worker takes c(u) times as long:

        c(u) = 1 + (contention - 1) u,         u = sum_j weight_j / (n - 1)

    with n workers in all: c is linear from 1 (alone) to contention (all at once). A
    worker with a duty below 1 also rests. If it `bursts`, or its round has one step, it
    rests after the round, and its weight is 1 while it computes. Otherwise it rests
    after every step: its whole round is slowed down, and its weight is its duty.
    """

    changes = ("_left", "_since")

    def __init__(self, workers: Sequence[Profile]):
        """Start with no worker computing."""
        self._workers = workers
        self._left: dict[int, _RemainingRound] = {}
        self._since = 0.0  # [s] the time for which `_left` is correct

    def begin(
        self, worker: int, seconds: float, now: float, local_steps: int = 1
    ) -> dict[int, float]:
        """Begin a round that takes `seconds` alone; return all new finish times."""
        self._advance_to(now)
        profile = self._workers[worker]
        duty = profile.duty
        if profile.bursts or local_steps == 1:
            self._left[worker] = _RemainingRound(seconds * duty, 1.0, (1 - duty) / duty)
        else:
            self._left[worker] = _RemainingRound(seconds, duty, 0.0)
        return self._finishes()

    def end(self, worker: int, now: float) -> dict[int, float]:
        """End or interrupt a round; return the other workers' new finish times."""
        self._advance_to(now)
        self._left.pop(worker, None)
        return self._finishes()

    def _advance_to(self, now: float) -> None:
        """Advance all rounds to their state at `now`."""
        self._advance(self._left, now - self._since)
        self._since = now

    def _finishes(self) -> dict[int, float]:
        """Return finish times by worker, if no other round begins."""
        left = {k: copy.copy(mine) for k, mine in self._left.items()}
        ends = self._advance(left, math.inf)
        return {k: self._since + ends[k] for k in left}

    def _advance(
        self, left: dict[int, _RemainingRound], seconds: float
    ) -> dict[int, float]:
        """Let at most `seconds` pass; return when each round was over."""
        ends = {k: 0.0 for k, mine in left.items() if mine.over}
        passed = 0.0
        while len(ends) < len(left) and passed < seconds:
            slow = {k: self._slowness(left, k) for k in left if left[k].computing}
            until = {
                k: mine.computing * slow[k] if k in slow else mine.resting
                for k, mine in left.items()
                if k not in ends
            }
            step = min(seconds - passed, *until.values())
            passed += step
            for k, mine in left.items():
                if k in ends:
                    continue
                reached = until[k] <= step
                if k in slow:
                    mine.took += step
                    rest = mine.computing - step / slow[k]
                    mine.computing = 0.0 if reached else max(rest, 0.0)
                    mine.resting = 0.0 if mine.computing else mine.rest * mine.took
                else:
                    mine.resting = 0.0 if reached else mine.resting - step
                if mine.over:
                    ends[k] = passed
        return ends

    def _slowness(self, left: dict[int, _RemainingRound], worker: int) -> float:
        """Return c(u) of a worker."""
        others = sum(x.weight for k, x in left.items() if k != worker and x.computing)
        share = others / max(1, len(self._workers) - 1)
        return 1 + (self._workers[worker].contention - 1) * share
