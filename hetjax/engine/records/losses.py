"""The losses of steps: checked, averaged between evaluations, shown to the sampler."""

import math
from collections.abc import Iterator

import jax
import numpy as np

from hetjax.engine.protocols import Outcome
from hetjax.machine import Arrival


class Losses:
    """The losses of local rounds; they stay on the device until they are needed."""

    def __init__(self):
        """Start without losses."""
        self._unchecked: tuple[Arrival, jax.Array | np.ndarray] | None = None
        self._unobserved: dict[int, list] = {}  # by worker
        self._total, self._rounds = 0.0, 0  # since the last `take_mean`

    def add(self, arrival: Arrival, outcome: Outcome) -> None:
        """Add an arrived round; call `take_diverged` for the previous one before."""
        self._unobserved.setdefault(arrival.worker, []).extend(outcome.losses)
        self._unchecked = (arrival, outcome.mean)

    def forget(self, worker: int) -> None:
        """Drop the losses of a worker since its last merge."""
        self._unobserved.pop(worker, None)

    def take_diverged(self) -> tuple[Arrival, float] | None:
        """Return the round that arrived last and its loss, if that is not finite.

        It is called one arrival late, so that reading the loss does not delay the
        rounds that were just dispatched.
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
        """{"train_loss": mean over the rounds since the last call}; {} without any."""
        total, rounds = self._total, self._rounds
        self._total, self._rounds = 0.0, 0
        return {"train_loss": total / rounds} if rounds else {}

    def take_steps(self, worker: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (rows, losses) of the worker's steps since its last merge, once."""
        for indices, values in self._unobserved.pop(worker, ()):
            # of one step, or of several steps that ran in one program
            several = zip(np.atleast_2d(indices), np.atleast_2d(values), strict=True)
            yield from ((rows, losses[: len(rows)]) for rows, losses in several)
