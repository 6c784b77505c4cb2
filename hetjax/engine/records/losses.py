"""What steps lose: checked, averaged between evaluations, shown to the sampler."""

import math
from collections.abc import Iterator

import jax
import numpy as np

from hetjax.engine.protocols import Outcome
from hetjax.machine import Arrival


class Losses:
    """The losses of local rounds, on the device until somebody has to look."""

    def __init__(self):
        """There are none yet."""
        self._unchecked: tuple[Arrival, jax.Array | np.ndarray] | None = None
        self._unobserved: dict[int, list] = {}  # by worker
        self._total, self._rounds = 0.0, 0  # since the last `take_mean`

    def add(self, arrival: Arrival, outcome: Outcome) -> None:
        """A round arrived; the one before it has been looked at by `take_diverged`."""
        self._unobserved.setdefault(arrival.worker, []).extend(outcome.losses)
        self._unchecked = (arrival, outcome.mean)

    def forget(self, worker: int) -> None:
        """What a worker did since its last merge is lost."""
        self._unobserved.pop(worker, None)

    def take_diverged(self) -> tuple[Arrival, float] | None:
        """Look at the round that arrived last: it and its loss, if that is not finite.

        Called one arrival late, looking does not hold up what was just dispatched.
        """
        if self._unchecked is None:
            return None
        (arrival, mean), self._unchecked = self._unchecked, None
        loss = float(np.asarray(mean))
        if arrival.local_round.local_steps:
            self._total += loss
            self._rounds += 1
        return None if math.isfinite(loss) else (arrival, loss)

    def take_mean(self) -> dict[str, float]:
        """{"train_loss": mean of the rounds since this was last asked}, or nothing."""
        total, rounds = self._total, self._rounds
        self._total, self._rounds = 0.0, 0
        return {"train_loss": total / rounds} if rounds else {}

    def take_steps(self, worker: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(rows, losses) of every step since the worker's last merge, told once."""
        for indices, values in self._unobserved.pop(worker, ()):
            # of one step, or of several that ran at once
            several = zip(np.atleast_2d(indices), np.atleast_2d(values), strict=True)
            yield from ((rows, losses[: len(rows)]) for rows, losses in several)
