"""The sampler of a run: draws examples and observes losses (host).

On threads, examples may be drawn before they are asked for, where they can be expected
(`hetjax.engine.expected_draws`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hetjax.checkpointable import Checkpointable
from hetjax.engine.expected_draws import (
    Draw,
    ExpectedDraws,
    RoundRows,
    holds_generator,
)
from hetjax.engine.protocols import RoundResult
from hetjax.machine.types import LocalRound, WorkerInfo
from hetjax.sampling.types import Sampler
from hetjax.summaries import maker

Drawn = tuple[Sequence[np.ndarray], Sequence[int]]  # rows and non-zeros of each step


class Examples(Checkpointable):
    """The sampler of one run, and its state."""

    changes = ("_state", "_unobserved")

    def __init__(
        self,
        sampler: Sampler,
        workers: tuple[WorkerInfo, ...],
        num_examples: int,
        seed: int,
        nonzeros: Callable[[Sequence[np.ndarray]], Sequence[int]],
    ):
        """`nonzeros(rows)` counts the non-zeros of the inputs of each array of rows."""
        self._sampler, self._workers, self._nonzeros = sampler, workers, nonzeros
        self._state = sampler.init(workers, num_examples, seed)
        self._unobserved: dict[int, list] = {}  # losses of steps, by worker
        self._expected: ExpectedDraws | None = None

    def draw(self, worker: int, local_round: LocalRound) -> Drawn:
        """Draw the rows of the training split for each step of a round."""
        expected, found = self._expected, None
        if expected is not None:
            found = expected.take(self._state, worker, local_round)
        if found is None:
            found = self._draw(self._state, worker, local_round)
            if found.after is self._state:  # perhaps each draw changes it
                self._expected = None
        self._state, rows, nonzeros = found
        return rows, nonzeros

    def expect(self) -> None:
        """Expect the same rounds, in the same order, from now on."""
        # draws may depend on losses that are observed until then, or change the state
        if self._sampler.observe is None and not holds_generator(self._state):
            self._expected = ExpectedDraws()

    def expected_rows(self, worker: int) -> RoundRows | None:
        """Draw a worker's next round; return its rows, None if it is not expected."""
        expected = self._expected
        return expected and expected.rows_of(worker, self._state, self._draw)

    def _draw(self, state: Any, worker: int, local_round: LocalRound) -> Draw:
        """Draw from a state of the sampler."""
        wanted = local_round.examples
        drawn = self._sampler.draw(state, worker, wanted)
        pair = isinstance(drawn, (tuple, list)) and len(drawn) == 2
        if not pair or not _are_rows(drawn[1], wanted):
            found = _shown(drawn[1]) if pair else f"a {type(drawn).__name__}"
            raise ValueError(
                f"the sampler {maker(self._sampler.draw)}: draw returned "
                f"{found}: return a pair (state, rows) with {wanted} rows, an array "
                "[rows] of whole numbers"
            )
        after, indices = drawn
        size = local_round.size
        rows = [indices[i : i + size] for i in range(0, wanted, size)]
        return Draw(after, rows, self._nonzeros(rows))

    def share(self) -> np.ndarray | None:
        """Each worker's share of the data; None if all workers draw from all of it."""
        share = self._sampler.share
        return share(self._state) if share else None

    def arrived(self, worker: int, result: RoundResult) -> None:
        """Store a round's losses, if the sampler observes them."""
        if self._sampler.observe is not None:
            self._unobserved.setdefault(worker, []).append(result.losses)

    def observe(self, worker: int) -> None:
        """Pass a worker's losses since its last merge to the sampler."""
        observe = self._sampler.observe
        if observe is not None:
            for rows, losses in self._take_steps(worker):
                self._state = observe(self._state, worker, rows, losses)

    def discard(self, worker: int) -> None:
        """Discard the losses of a worker since its last merge; it may never return."""
        self._unobserved.pop(worker, None)
        if self._expected is not None:
            self._expected.forget(worker)

    def _take_steps(self, worker: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for losses in self._unobserved.pop(worker, ()):
            for indices, values in losses:
                # of one step, or of several steps that ran in one program
                several = zip(
                    np.atleast_2d(indices), np.atleast_2d(values), strict=True
                )
                yield from ((rows, found[: len(rows)]) for rows, found in several)

    def save(self) -> dict[str, Any]:
        """Return the state and the losses; deferred ones are read first."""
        for several in self._unobserved.values():
            several[:] = [list(losses) for losses in several]
        return super().save()

    def load_for_others(self, saved: dict[str, Any]) -> None:
        """Continue with other workers, if the sampler can."""
        if self._sampler.for_workers is not None:
            self._state = self._sampler.for_workers(saved["_state"], self._workers)


def _are_rows(rows: Any, wanted: int) -> bool:
    """Whether these are `wanted` row numbers."""
    shape, dtype = getattr(rows, "shape", None), getattr(rows, "dtype", None)
    return shape == (wanted,) and getattr(dtype, "kind", None) in ("i", "u")


def _shown(rows: Any) -> str:
    if not isinstance(rows, np.ndarray):
        return f"a {type(rows).__name__} as its rows"
    if rows.ndim == 1 and rows.dtype.kind in "iu":
        return f"{len(rows)} rows"
    return f"rows of shape {rows.shape} and {rows.dtype}"
