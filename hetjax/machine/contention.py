"""Workers that slow each other down while they compute at the same time (host world).

CPU devices of one host share its cores; a card's driver thread needs one of them. What
a work takes then depends on who else computes meanwhile, which nobody knows when it
begins: finish times are found anew whenever somebody begins or ends.
"""

from collections.abc import Sequence

from hetjax.machine.profile import Profile


class Contention:
    """Who computes now, and how much each has left.

    While the others of share u compute, a worker's seconds pass c(u) times as slowly:

        c(u) = 1 + (contention - 1) u,      u = sum_j duty_j / (n - 1) over those others

    with n workers in all: linear between alone (1) and all at once (contention).
    """

    def __init__(self, workers: Sequence[Profile]):
        """Nobody computes."""
        self._factors = [w.contention for w in workers]
        self._duties = [w.duty for w in workers]
        self._left: dict[int, float] = {}  # [s] that a worker would still take alone
        self._since = 0.0  # [s] when `_left` was right

    def begin(self, worker: int, seconds: float, now: float) -> dict[int, float]:
        """A work of so many seconds, alone, begins: everybody's finish from now on."""
        self._pass(now)
        self._left[worker] = seconds
        return self._finishes()

    def end(self, worker: int, now: float) -> dict[int, float]:
        """A work ended, or was cut off: the others' finish from now on."""
        self._pass(now)
        self._left.pop(worker, None)
        return self._finishes()

    def _pass(self, now: float) -> None:
        """Time has passed: everybody has less left."""
        passed, self._since = now - self._since, now
        slow = {k: self._slowness(k) for k in self._left}
        for k in self._left:
            self._left[k] = max(0.0, self._left[k] - passed / slow[k])

    def _finishes(self) -> dict[int, float]:
        return {
            k: self._since + left * self._slowness(k) for k, left in self._left.items()
        }

    def _slowness(self, worker: int) -> float:
        others = sum(self._duties[k] for k in self._left if k != worker)
        share = others / max(1, len(self._factors) - 1)
        return 1 + (self._factors[worker] - 1) * share
