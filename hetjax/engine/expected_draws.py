"""Draws that are made before they are asked for (host world).

While devices compute, the rows of the local rounds that are expected next can be drawn,
and their batches gathered. A sampler is pure functions on its state, so that a draw
that turns out to be wrong is dropped, and nothing has happened: which rows a round has
never depends on what was expected.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from hetjax.machine.types import LocalRound

LONGEST_PAUSE = 64  # rounds


class RoundRows(list[np.ndarray]):
    """The rows of a round that is expected, one array per step."""

    def __init__(self, rows: Sequence[np.ndarray]):
        """Nothing is gathered yet."""
        super().__init__(rows)
        self.gathered: Future | None = None  # what a thread gathers for the round


class Draw(NamedTuple):
    """The draw of one local round."""

    after: Any  # the sampler's state
    rows: Sequence[np.ndarray]  # of the training split, one array per step
    nonzeros: Sequence[int]  # in the inputs of each step


class _Expected(NamedTuple):
    """A draw ahead: of the round of a worker, from a sampler's state."""

    worker: int
    local_round: LocalRound
    before: Any
    draw: Draw


class _Started(NamedTuple):
    """The last round of a worker."""

    local_round: LocalRound
    stamp: float  # [s]
    period: float  # [s] since the round before; inf for the first one


class ExpectedDraws:
    """Expects that each worker repeats its round after the same time.

    The next rounds are drawn in the expected order. Where another one begins, all of
    them are dropped, and after each such error the pause before new ones is doubled.
    """

    def __init__(
        self,
        draw: Callable[[Any, int, LocalRound], Draw],
        *,
        one_stream: bool,
        in_order: bool,
    ):
        """`draw(state, worker, local_round)` is pure.

        `one_stream`: whether it ignores its worker; `in_order`: whether workers begin
        their rounds in the same order every time.
        """
        self._draw, self._one_stream, self._in_order = draw, one_stream, in_order
        self._started: dict[int, _Started] = {}  # by worker; the latest is the last
        self._expected: deque[_Expected] = deque()
        self._due: dict[int, float] = {}  # [s] when the next round is expected
        self._errors = self._pause = 0

    def take(self, state: Any, worker: int, local_round: LocalRound) -> Draw | None:
        """Note that a round begins; return its draw if it was expected."""
        now, before = time.perf_counter(), self._started.pop(worker, None)
        period = math.inf if before is None else now - before.stamp
        self._started[worker] = _Started(local_round, now, period)
        self._pause = max(0, self._pause - 1)
        if not self._expected:
            return None
        found = self._expected.popleft()
        size, expected = local_round.size, found.local_round
        if (
            found.before is state
            and (expected.size, expected.examples) == (size, local_round.examples)
            and (self._one_stream or found.worker == worker)
        ):
            self._errors = 0
            return found.draw
        self._expected.clear()
        self._errors += 1
        self._pause = min(2**self._errors, LONGEST_PAUSE)
        return None

    def forget(self, worker: int) -> None:
        """Expect no further round of a worker."""
        self._started.pop(worker, None)
        self._expected.clear()

    def draw_next(self, state: Any) -> tuple[int, RoundRows] | None:
        """Draw what is expected next; return its worker and rows.

        None if nothing is expected, or all workers have their next draws.
        """
        if self._pause or len(self._expected) >= len(self._started):
            return None
        worker = self._next_worker()
        if worker is None:
            return None
        before = self._expected[-1].draw.after if self._expected else state
        local_round = self._started[worker].local_round
        try:
            draw = self._draw(before, worker, local_round)
        except Exception:  # it will be raised for the round itself, if there is one
            return None
        rows = RoundRows(draw.rows)
        draw = draw._replace(rows=rows)
        self._expected.append(_Expected(worker, local_round, before, draw))
        return worker, rows

    def _next_worker(self) -> int | None:
        """Return the worker whose round follows those that are expected already."""
        if self._in_order:
            return list(self._started)[len(self._expected)]
        if not self._expected:
            self._due = {k: s.stamp + s.period for k, s in self._started.items()}
        worker = min(self._due, key=lambda k: self._due[k], default=None)
        if worker is None or self._due[worker] == math.inf:
            return None
        self._due[worker] += self._started[worker].period
        return worker
