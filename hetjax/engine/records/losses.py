"""The losses of rounds: looked at once they are known, averaged between evaluations."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.checkpointable import Checkpointable
from hetjax.engine.protocols import RoundResult
from hetjax.machine.types import Arrival


class Unchecked(NamedTuple):
    """A round that arrived, whose loss was not looked at yet."""

    arrival: Arrival
    mean: Any  # [] on a device
    late: RoundResult | None  # where its numbers were not known when it arrived
    rows: Sequence[np.ndarray]  # of each step, for messages; not saved


def _saved(unchecked: Unchecked) -> Unchecked:
    """What is saved of a round: its loss, if that is known by now."""
    late = unchecked.late
    if late is not None and late.known:
        unchecked = unchecked._replace(mean=late.mean, late=None)
    return unchecked._replace(rows=())


class Losses(Checkpointable):
    """The losses of local rounds; they stay on the device until they are needed."""

    changes = ("_unchecked", "_total", "_rounds")

    def __init__(self):
        """Start without losses."""
        self._unchecked: deque[Unchecked] = deque()
        self._total, self._rounds = 0.0, 0  # since the last `take_mean`

    def save(self) -> dict[str, Any]:
        """Return all losses."""
        unchecked = deque(_saved(u) for u in self._unchecked)
        return {**super().save(), "_unchecked": unchecked}

    def copy(self) -> dict[str, Any]:
        """All losses, for `load`, as long as the process lives."""
        return {**super().save(), "_unchecked": self._unchecked.copy()}

    def load_for_others(self, saved: dict[str, Any]) -> None:
        """Continue only the mean since the last evaluation."""
        self._total, self._rounds = saved["_total"], saved["_rounds"]

    def add(
        self, arrival: Arrival, result: RoundResult, rows: Sequence[np.ndarray]
    ) -> None:
        """Add an arrived round; take the previous ones that are known before."""
        known = result.known
        mean, late = (result.mean, None) if known else (None, result)
        self._unchecked.append(Unchecked(arrival, mean, late, rows))

    @property
    def are_known(self) -> bool:
        """Is there a round whose loss can be looked at?"""
        if not self._unchecked:
            return False
        late = self._unchecked[0].late
        return late is None or late.known

    def take_known(
        self,
    ) -> tuple[Arrival, float, RoundResult | None, Sequence[np.ndarray]]:
        """(arrival, loss, late result, rows) of a round whose loss is known, once.

        It is called one arrival late, so that reading the loss does not delay the
        rounds that were just dispatched.
        """
        arrival, mean, late, rows = self._unchecked.popleft()
        return arrival, float(mean if late is None else late.mean), late, rows

    def count(self, arrival: Arrival, loss: float) -> None:
        """Count a round's loss in the mean since the last evaluation."""
        if arrival.local_round.local_steps:
            self._total += loss
            self._rounds += 1

    def take_mean(self) -> float | None:
        """The mean over the rounds since the last call; None without any."""
        total, rounds = self._total, self._rounds
        self._total, self._rounds = 0.0, 0
        return total / rounds if rounds else None
