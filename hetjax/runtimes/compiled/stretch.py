"""A stretch of the tape: the instructions that one launch of a program plays.

Instructions are collected in the order of the tape and divided into supersteps: merges,
then the rounds that begin after them. A merge starts a new superstep if one of its
members has a round in the current one, as it needs the result of that round. This rule
covers bulk-synchronous rounds, mega-batches with many rounds of each worker, trees of
nodes, gossip, and servers that workers visit one by one.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from hetjax.merge.worker_stats import WorkerStats

FIELDS = len(WorkerStats._fields)  # of the statistics of a merge
Round = tuple[int, int, int, int, int]  # worker, first row, steps, number, batch size


@dataclass(eq=False, slots=True)
class PendingOutcome:
    """The result of a local round; its numbers are known once the round is played.

    See `hetjax.engine.protocols.RoundResult`.
    """

    rows: Sequence[np.ndarray]  # of all steps, if the sampler observes losses
    padded: int
    steps: int
    synchronize: Callable[[], object] | None  # plays everything collected so far
    # the mean loss of the last step, whether all numbers of the replica are finite
    # (True if unchecked), and the losses [K, B] if the sampler observes them
    numbers: tuple[float, bool, np.ndarray | None] | None = None
    discarded: bool = False  # nobody asks for the numbers

    @property
    def known(self) -> bool:
        """Whether the numbers were read."""
        return self.numbers is not None

    @property
    def mean(self) -> float:
        """The mean loss of the last step."""
        return self._resolved[0]

    @property
    def finite(self) -> bool:
        """Whether all numbers of the replica are finite."""
        return self._resolved[1]

    @property
    def losses(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows and losses of all steps."""
        losses = self._resolved[2]
        if self.rows and losses is not None:
            yield np.stack(self.rows), losses

    @property
    def _resolved(self) -> tuple[float, bool, np.ndarray | None]:
        """The numbers; after the end of the run, some stay unknown."""
        if self.numbers is None and self.synchronize is not None:
            self.synchronize()
        return self.numbers or (0.0, True, None)

    def save(self) -> tuple[Any, ...]:
        """Return the state for `restored`."""
        return list(self.rows), self.padded, self.steps, self.numbers

    @classmethod
    def restored(
        cls, saved: tuple[Any, ...], synchronize: Callable[[], object]
    ) -> "PendingOutcome":
        """Return the outcome that was saved."""
        rows, padded, steps, numbers = saved
        return cls(rows, padded, steps, synchronize, numbers)


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
        self.ends: list[tuple[int, int]] = []  # of supersteps, in merges and in rounds
        self._working: set[int] = set()  # workers with a round in the last superstep

    def copy(self) -> "Stretch":
        """Return a copy that shares the outcomes."""
        other = Stretch()
        for name, value in vars(self).items():
            setattr(other, name, value.copy())
        return other

    def save(self) -> dict[str, Any]:
        """Return the state for `restored`."""
        return {
            **vars(self),
            "outcomes": [outcome.save() for outcome in self.outcomes],
        }

    @classmethod
    def restored(
        cls, saved: dict[str, Any], synchronize: Callable[[], object]
    ) -> "Stretch":
        """Return the stretch that was saved; see `PendingOutcome` for `synchronize`."""
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
        """Add a local round, whose first step is the worker's step number `first`."""
        size = len(rows[0]) if rows else 0
        self.rounds.append((worker, len(self.rows), len(rows), first, size))
        self.rates.append(rate)
        self.rows.extend(rows)
        self.outcomes.append(outcome)
        self._working.add(worker)

    def remove_round(self, outcome: PendingOutcome) -> None:
        """Remove the round with this outcome, unless it is launched already."""
        found = [i for i, x in enumerate(self.outcomes) if x is outcome]
        for i in found:
            _, row, steps, _, _ = self.rounds[i]
            del self.rounds[i], self.rates[i], self.outcomes[i]
            del self.rows[row : row + steps]
            for k in range(i, len(self.rounds)):
                worker, later, *rest = self.rounds[k]
                self.rounds[k] = (worker, later - steps, rest[0], rest[1], rest[2])
            self.ends = [(m, n - (n > i)) for m, n in self.ends]

    def add_merge(
        self,
        kind: int,
        node: int,
        members: Sequence[int],
        stats: np.ndarray | None,
        after: Collection[int],
    ) -> None:
        """Add a merge or another operation, to follow the rounds of workers `after`."""
        if not self._working.isdisjoint(after):
            self.ends.append((len(self.merges), len(self.rounds)))
            self._working.clear()
        self.merges.append((kind, node, *members))
        self.stats.append(stats)

    def supersteps(self) -> Iterator[tuple[range, range]]:
        """Yield the indices of the merges and of the rounds of each superstep."""
        merge = first = 0
        for merges, rounds in [*self.ends, (len(self.merges), len(self.rounds))]:
            yield range(merge, merges), range(first, rounds)
            merge, first = merges, rounds


class UnavailableMetrics(dict[str, float]):
    """Metrics of an evaluation that raise an error when they are read."""

    def __init__(self, error: Exception):
        """`error` is raised by every access."""
        super().__init__()
        self._error = error

    def _read(self, *args: Any) -> NoReturn:
        raise self._error

    __getitem__ = __contains__ = __iter__ = __len__ = _read  # pyright: ignore
    get = keys = values = items = _read  # pyright: ignore
