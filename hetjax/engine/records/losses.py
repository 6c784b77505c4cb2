"""The losses of rounds: read once they are known, averaged between evaluations."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.checkpointable import Checkpointable
from hetjax.engine.protocols import RoundResult
from hetjax.machine.types import Arrival


class Unchecked(NamedTuple):
    """An arrived round whose loss has not been read yet."""

    arrival: Arrival
    mean: Any  # [] on a device
    deferred: RoundResult | None  # if its numbers were not known when it arrived
    rows: Sequence[np.ndarray]  # of each step, for messages; not saved

    @property
    def known(self) -> bool:
        """Whether its loss can be read without launching a program."""
        return self.deferred is None or self.deferred.known

    @property
    def loss(self) -> float:
        """The mean loss of its last step."""
        return float(self.mean if self.deferred is None else self.deferred.mean)


class Losses(Checkpointable):
    """The losses of local rounds; they stay on the device until they are needed."""

    changes = ("_unchecked", "_total", "_rounds")

    def __init__(self):
        """Start without losses."""
        self._unchecked: deque[Unchecked] = deque()
        self._total, self._rounds = 0.0, 0  # since the last `take_mean`

    def save(self) -> dict[str, Any]:
        """Return all losses, which are read if they are known by now."""
        unchecked = deque(
            u._replace(mean=u.loss, deferred=None, rows=())
            if u.deferred is not None and u.known
            else u._replace(rows=())
            for u in self._unchecked
        )
        return {**super().save(), "_unchecked": unchecked}

    def copy(self) -> dict[str, Any]:
        """Return all losses, for `load` in the same process."""
        return {**super().save(), "_unchecked": self._unchecked.copy()}

    def load_for_others(self, saved: dict[str, Any]) -> None:
        """Continue only the mean since the last evaluation."""
        self._total, self._rounds = saved["_total"], saved["_rounds"]

    def add(
        self, arrival: Arrival, result: RoundResult, rows: Sequence[np.ndarray]
    ) -> None:
        """Add an arrived round, after `take_known` for the known ones before it."""
        mean, deferred = (result.mean, None) if result.known else (None, result)
        self._unchecked.append(Unchecked(arrival, mean, deferred, rows))

    def take_known(self) -> Iterator[Unchecked]:
        """Yield the rounds whose losses are known, in order, each once.

        The loop calls it one arrival late, so that reading the loss does not delay the
        rounds that were just dispatched.
        """
        while self._unchecked and self._unchecked[0].known:
            yield self._unchecked.popleft()

    def count(self, arrival: Arrival, loss: float) -> None:
        """Count a round's loss in the mean since the last evaluation."""
        if arrival.local_round.local_steps:
            self._total += loss
            self._rounds += 1

    def take_mean(self) -> float | None:
        """Return the mean over the rounds since the last call; None without any."""
        total, rounds = self._total, self._rounds
        self._total, self._rounds = 0.0, 0
        return total / rounds if rounds else None
