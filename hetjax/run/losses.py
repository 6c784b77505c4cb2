"""What steps lose: checked, averaged between evaluations, shown to the sampler."""

import math
from collections.abc import Iterator

import jax
import numpy as np

from hetjax.machine import Arrival
from hetjax.run.executor import Outcome


class Losses:
    """The losses of works, on the device until somebody has to look."""

    def __init__(self):
        """Nobody worked yet."""
        self._unchecked: tuple[Arrival, jax.Array | np.ndarray] | None = None
        self._unobserved: dict[int, list] = {}  # by worker
        self._total, self._works = 0.0, 0  # since the last `mean`

    def land(self, arrival: Arrival, outcome: Outcome) -> None:
        """A work arrived; the one before it has been looked at by `diverged`."""
        self._unobserved.setdefault(arrival.worker, []).extend(outcome.losses)
        self._unchecked = (arrival, outcome.mean)

    def forget(self, worker: int) -> None:
        """What a worker did since its last merge is lost."""
        self._unobserved.pop(worker, None)

    def diverged(self) -> tuple[Arrival, float] | None:
        """Look at the work that arrived last: it and its loss, if that is not finite.

        Called one arrival late, looking does not hold up what was just dispatched.
        """
        if self._unchecked is None:
            return None
        (arrival, mean), self._unchecked = self._unchecked, None
        loss = float(np.asarray(mean))
        if arrival.work.steps:
            self._total += loss
            self._works += 1
        return None if math.isfinite(loss) else (arrival, loss)

    def mean(self) -> dict[str, float]:
        """{"train_loss": mean of the works since this was last asked}, or nothing."""
        total, works = self._total, self._works
        self._total, self._works = 0.0, 0
        return {"train_loss": total / works} if works else {}

    def of_steps(self, worker: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(rows, losses) of every step since the worker's last merge, told once."""
        for indices, values in self._unobserved.pop(worker, ()):
            # of one step, or of several that ran at once
            several = zip(np.atleast_2d(indices), np.atleast_2d(values), strict=True)
            yield from ((rows, losses[: len(rows)]) for rows, losses in several)
