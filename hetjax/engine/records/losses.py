"""The losses of steps: checked, averaged between evaluations, shown to the sampler."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hetjax.engine.protocols import RoundResult
from hetjax.machine import Arrival
from hetjax.saved import Saved


class Unchecked(NamedTuple):
    """A round that arrived, whose loss was not looked at yet."""

    arrival: Arrival
    mean: Any  # [] on a device
    late: RoundResult | None  # where its numbers were not known when it arrived


class Losses(Saved):
    """The losses of local rounds; they stay on the device until they are needed."""

    changes = ("_unchecked", "_unobserved", "_total", "_rounds")

    def __init__(self, *, keeps: bool):
        """Start without losses; `keeps`: does a sampler look at those of all steps?"""
        self._keeps = keeps
        self._unchecked: deque[Unchecked] = deque()
        self._unobserved: dict[int, list] = {}  # by worker
        self._total, self._rounds = 0.0, 0  # since the last `take_mean`

    def save(self) -> dict[str, Any]:
        """Return all losses; those of steps are read first, if they come late."""
        for several in self._unobserved.values():
            several[:] = [list(losses) for losses in several]
        return super().save()

    def load_for_others(self, saved: dict[str, Any]) -> None:
        """Continue only the mean since the last evaluation."""
        self._total, self._rounds = saved["_total"], saved["_rounds"]

    def add(self, arrival: Arrival, outcome: RoundResult) -> None:
        """Add an arrived round; take the previous ones that are known before."""
        if self._keeps:
            self._unobserved.setdefault(arrival.worker, []).append(outcome.losses)
        if outcome.known:
            self._unchecked.append(Unchecked(arrival, outcome.mean, None))
        else:
            self._unchecked.append(Unchecked(arrival, None, outcome))

    def forget(self, worker: int) -> None:
        """Drop the losses of a worker since its last merge."""
        self._unobserved.pop(worker, None)

    def take_known(self) -> Iterator[tuple[Arrival, float, RoundResult | None]]:
        """Yield (arrival, loss, late result) of rounds whose loss is known, once.

        It is called one arrival late, so that reading the loss does not delay the
        rounds that were just dispatched.
        """
        while self._unchecked:
            arrival, mean, late = self._unchecked[0]
            if late is not None and not late.known:
                return
            self._unchecked.popleft()
            loss = float(np.asarray(mean if late is None else late.mean))
            yield arrival, loss, late

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

    def take_steps(self, worker: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (rows, losses) of the worker's steps since its last merge, once."""
        for losses in self._unobserved.pop(worker, ()):
            for indices, values in losses:
                # of one step, or of several steps that ran in one program
                several = zip(
                    np.atleast_2d(indices), np.atleast_2d(values), strict=True
                )
                yield from ((rows, found[: len(rows)]) for rows, found in several)
