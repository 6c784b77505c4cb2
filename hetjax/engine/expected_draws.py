"""Draws that are made before they are asked for (host world).

While devices compute, the rows of the next local rounds can be drawn, and their batches
gathered, where workers begin their rounds in the same order every time. A sampler is
pure functions on its state, so that a draw that turns out to be wrong is dropped, and
nothing has happened: which rows a round has never depends on what was expected.
"""

import dataclasses
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.machine.types import LocalRound

LONGEST_PAUSE = 64  # rounds
_GENERATORS = (
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    random.Random,
)


class RoundRows(list[np.ndarray]):
    """The rows of a round that is expected, one array per step."""

    def __init__(self, rows: Sequence[np.ndarray]):
        """Nothing is gathered yet."""
        super().__init__(rows)
        self.gathered: Any = None  # what the worker's thread gathered for the round


class Draw(NamedTuple):
    """The draw of one local round."""

    after: Any  # the sampler's state
    rows: Sequence[np.ndarray]  # of the training split, one array per step
    nonzeros: Sequence[int]  # in the inputs of each step


DrawFrom = Callable[[Any, int, LocalRound], Draw]
"""The draw of (state of the sampler, worker, local round), a pure function."""


class _Expected(NamedTuple):
    """A draw ahead: of the round of a worker, from a sampler's state."""

    worker: int
    local_round: LocalRound
    before: Any
    draw: Draw
    rows: RoundRows  # those of the draw


class ExpectedDraws:
    """Expects that all workers repeat their rounds, in the same order.

    Where another round begins, all draws ahead are dropped, and after each such error
    the pause before new ones is doubled.
    """

    def __init__(self):
        """Nothing is expected yet."""
        # the last round of each worker; the latest one is the last
        self._rounds: dict[int, LocalRound] = {}
        self._expected: deque[_Expected] = deque()
        self._errors = self._pause = 0

    def take(self, state: Any, worker: int, local_round: LocalRound) -> Draw | None:
        """Note that a round begins; return its draw if it was expected."""
        self._rounds.pop(worker, None)
        self._rounds[worker] = local_round
        self._pause = max(0, self._pause - 1)
        if not self._expected:
            return None
        found = self._expected.popleft()
        drawn = found.local_round
        fits = (drawn.size, drawn.examples) == (local_round.size, local_round.examples)
        if fits and found.worker == worker and found.before is state:
            self._errors = 0
            return found.draw
        self._expected.clear()
        self._errors += 1
        self._pause = min(2**self._errors, LONGEST_PAUSE)
        return None

    def forget(self, worker: int) -> None:
        """Expect no further round of a worker."""
        self._rounds.pop(worker, None)
        self._expected.clear()

    def rows_of(self, worker: int, state: Any, draw_from: DrawFrom) -> RoundRows | None:
        """Return the rows of a worker's next round; None if none is expected.

        All rounds that are expected before it are drawn too.
        """
        if self._pause:
            return None
        for expected in self._expected:
            if expected.worker == worker:
                return expected.rows
        for following in list(self._rounds)[len(self._expected) :]:
            before = self._expected[-1].draw.after if self._expected else state
            local_round = self._rounds[following]
            try:
                draw = draw_from(before, following, local_round)
            except Exception:  # it will be raised for the round itself, if there is one
                return None
            rows = RoundRows(draw.rows)
            draw = draw._replace(rows=rows)
            self._expected.append(_Expected(following, local_round, before, draw, rows))
            if following == worker:
                return rows
        return None


def holds_generator(state: Any) -> bool:
    """Whether a sampler's state holds a random generator, which each draw changes."""
    if isinstance(state, _GENERATORS):
        return True
    parts: Any = ()
    if isinstance(state, Mapping):
        parts = state.values()
    elif isinstance(state, tuple | list | set):
        parts = state
    elif dataclasses.is_dataclass(state):
        parts = vars(state).values()
    return any(map(holds_generator, parts))
