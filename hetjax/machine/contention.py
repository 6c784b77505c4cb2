"""Workers that slow each other down while they compute at the same time (host world).

CPU devices of one host share its cores; a card's driver thread needs one of them. What
a work takes then depends on who else computes meanwhile, which nobody knows when it
begins: finish times are found anew whenever somebody begins or ends.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hetjax.machine.profile import Profile


@dataclass
class _Left:
    """What is left of a work: it computes, and then may rest."""

    computing: float  # [s] that it would take alone
    weight: float  # of its computing for the others
    rest: float  # [s] of rest behind it, for each that it took
    took: float = 0.0  # [s] so far
    resting: float = 0.0  # [s] left, once it has computed

    @property
    def over(self) -> bool:
        """Is nothing left?"""
        return self.computing == 0 and self.resting == 0


class Contention:
    """Who computes now, and how much each has left.

    While others compute, a worker's seconds of computing pass c(u) times as slowly:

        c(u) = 1 + (contention - 1) u,         u = sum_j weight_j / (n - 1) over them

    with n workers in all: linear between alone (1) and all at once (contention). A
    worker with a duty below 1 rests: behind its work if it has one step, or `bursts`;
    then its weight is 1 while it computes. Else behind every step: all its time passes
    so, and its weight is its duty.
    """

    def __init__(self, workers: Sequence[Profile]):
        """Nobody computes."""
        self._workers = workers
        self._left: dict[int, _Left] = {}
        self._since = 0.0  # [s] when `_left` was right

    def begin(
        self, worker: int, seconds: float, now: float, local_steps: int = 1
    ) -> dict[int, float]:
        """A work of so many seconds, alone, begins: everybody's finish as it is now."""
        self._pass(now)
        profile = self._workers[worker]
        duty = profile.duty
        if profile.bursts or local_steps == 1:
            self._left[worker] = _Left(seconds * duty, 1.0, (1 - duty) / duty)
        else:
            self._left[worker] = _Left(seconds, duty, 0.0)
        return self._finishes()

    def end(self, worker: int, now: float) -> dict[int, float]:
        """A work ended, or was cut off: the others' finish as it is now."""
        self._pass(now)
        self._left.pop(worker, None)
        return self._finishes()

    def _pass(self, now: float) -> None:
        """Time has passed: everybody has less left."""
        self._advance(self._left, now - self._since)
        self._since = now

    def _finishes(self) -> dict[int, float]:
        """If nobody else begins."""
        left = {k: copy.copy(mine) for k, mine in self._left.items()}
        ends = self._advance(left, math.inf)
        return {k: self._since + ends[k] for k in left}

    def _advance(self, left: dict[int, _Left], seconds: float) -> dict[int, float]:
        """So many seconds pass, or until all is over; when each was over."""
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

    def _slowness(self, left: dict[int, _Left], worker: int) -> float:
        others = sum(x.weight for k, x in left.items() if k != worker and x.computing)
        share = others / max(1, len(self._workers) - 1)
        return 1 + (self._workers[worker].contention - 1) * share
