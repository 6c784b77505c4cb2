"""A stretch: what one launch of a compiled run plays, collected and written as tables.

Instructions come in the order of the tape and are put into supersteps: merges, then
rounds that begin after them. A merge ends the superstep if one of its members has a
round in it, since it must see what came of that round. So a round of all workers, a
mega-batch with its many rounds of each, the nodes of a tree, gossip, and a server that
workers visit one by one are one rule.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from hetjax.merge.types import WorkerStats

FIELDS = len(WorkerStats._fields)  # of the statistics of a merge
Round = tuple[int, int, int, int, int]  # worker, first row, steps, number, batch size


class PendingOutcome:
    """The result of a local round, whose numbers are known once it was played.

    See `hetjax.engine.protocols.RoundResult`.
    """

    __slots__ = (
        *("_finite", "_losses", "_mean", "_rows", "_settle"),
        *("known", "padded", "steps"),
    )

    def __init__(
        self,
        rows: Sequence[np.ndarray],
        padded: int,
        synchronize: Callable[[], object],
        *,
        steps: int,
    ):
        """`settle()` lets everything be played that was collected so far."""
        self._rows, self.padded = rows, padded
        self._settle: Callable[[], object] | None = synchronize
        self.steps = steps
        self.known = False
        self._mean, self._finite, self._losses = 0.0, True, None

    def set_numbers(self, mean: float, finite: bool, losses: np.ndarray | None) -> None:
        """Take the numbers: mean loss of the last step, and losses [K, B] or None."""
        self._mean, self._finite, self._losses = mean, finite, losses
        self.known = True

    @property
    def mean(self) -> float:
        """The mean loss of the last step."""
        self._know()
        return self._mean

    @property
    def finite(self) -> bool:
        """Are all numbers of the replica finite, as far as that is checked?"""
        self._know()
        return self._finite

    @property
    def losses(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows and losses of all steps, if the sampler observes them."""
        self._know()
        if self._rows and self._losses is not None:
            yield np.stack(self._rows), self._losses

    def detach(self) -> None:
        """Forget the player: what is not known by now will not be."""
        self._settle = None

    def _know(self) -> None:
        if not self.known and self._settle is not None:
            self._settle()

    def save(self) -> tuple[Any, ...]:
        """What `restored` takes."""
        numbers = self._mean, self._finite, self._losses
        return list(self._rows), self.padded, self.steps, self.known, numbers

    @classmethod
    def restored(
        cls, saved: tuple[Any, ...], settle: Callable[[], object]
    ) -> "PendingOutcome":
        """An outcome that was saved."""
        rows, padded, steps, known, numbers = saved
        found = cls(rows, padded, settle, steps=steps)
        if known:
            found.set_numbers(*numbers)
        return found


class Stretch:
    """Supersteps that are not launched yet."""

    def __init__(self):
        """Start with an empty superstep."""
        self.rounds: list[Round] = []
        self.rates: list[float] = []
        self.rows: list[np.ndarray] = []  # of all steps of all rounds
        self.outcomes: list[PendingOutcome] = []  # of the rounds
        self.merges: list[tuple[int, ...]] = []  # kind, node, members
        self.stats: list[np.ndarray | None] = []
        self.ends: list[tuple[int, int]] = []  # of supersteps: merges, rounds
        self._working: set[int] = set()  # workers with a round in the last superstep

    def copy(self) -> "Stretch":
        """A stretch with the same contents; its outcomes are the same ones."""
        other = Stretch()
        for name, value in vars(self).items():
            setattr(other, name, value.copy())
        return other

    def save(self) -> dict[str, Any]:
        """What `restored` takes."""
        return {
            **vars(self),
            "outcomes": [outcome.save() for outcome in self.outcomes],
        }

    @classmethod
    def restored(
        cls, saved: dict[str, Any], synchronize: Callable[[], object]
    ) -> "Stretch":
        """A stretch that was saved; `synchronize` is that of a `PendingOutcome`."""
        stretch = cls()
        for name, value in saved.items():
            setattr(stretch, name, value)
        stretch.outcomes = [
            PendingOutcome.restored(x, synchronize) for x in saved["outcomes"]
        ]
        return stretch

    def add_round(
        self,
        worker: int,
        rows: Sequence[np.ndarray],
        first: int,
        rate: float,
        outcome: PendingOutcome,
    ) -> None:
        """Add a local round, the worker's steps from number `first` on."""
        size = len(rows[0]) if rows else 0
        self.rounds.append((worker, len(self.rows), len(rows), first, size))
        self.rates.append(rate)
        self.rows.extend(rows)
        self.outcomes.append(outcome)
        self._working.add(worker)

    def add_merge(
        self,
        kind: int,
        node: int,
        members: Sequence[int],
        stats: np.ndarray | None,
        after: Collection[int],
    ) -> None:
        """Add a merge, or what else comes before rounds, `after` these workers' own."""
        if not self._working.isdisjoint(after):
            self._end()
        self.merges.append((kind, node, *members))
        self.stats.append(stats)

    def _end(self) -> None:
        """The superstep is over."""
        self.ends.append((len(self.merges), len(self.rounds)))
        self._working.clear()

    def supersteps(self) -> Iterator[tuple[range, range]]:
        """The places of the merges and of the rounds of each superstep."""
        merge = first = 0
        for merges, rounds in [*self.ends, (len(self.merges), len(self.rounds))]:
            yield range(merge, merges), range(first, rounds)
            merge, first = merges, rounds
