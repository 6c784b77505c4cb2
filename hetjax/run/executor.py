"""Who runs the steps: here and now, or a thread for every worker.

The loop gives an executor assignments and fetches their outcomes at their arrivals;
`Inline` is the one of the virtual clock, `hetjax.run.threads` has that of real devices.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hetjax.replica import Replica

Device = Any  # a jax.Device, which is no type to a type checker


class Assignment(NamedTuple):
    """Work as an executor sees it."""

    worker: int
    replica: Replica  # to begin from
    rows: Sequence[np.ndarray]  # of the training split, for every step
    rate: np.float32
    first_step: int  # the number of the first one among the worker's


class Outcome(NamedTuple):
    """What came of an assignment."""

    replica: Replica
    losses: Sequence[tuple[np.ndarray, Any]]  # rows and losses, of a step or of all
    mean: jax.Array | np.ndarray  # loss of the last step
    padded: int  # examples of padding computed besides
    finite: Any = True  # are all numbers of the replica?


class Turns(Protocol):
    """The loop, as an executor sees it."""

    @property
    def over(self) -> bool:
        """Is there nothing more to do?"""
        ...

    def turn(self) -> bool:
        """Handle the next event, if one is due; was there one?"""
        ...


class Executor(Protocol):
    """Runs assignments; a worker has one at a time."""

    def play(self, loop: Turns) -> None:
        """Have the loop take its turns until it is over."""
        ...

    def start(self, assignment: Assignment) -> None:
        """Begin an assignment."""
        ...

    def finish(self, worker: int) -> Outcome:
        """The outcome of a worker's assignment, which has arrived."""
        ...

    def drop(self, worker: int) -> None:
        """Nobody will ask for the outcome of a worker's assignment."""
        ...

    def close(self) -> list[int]:
        """End everything; the workers whose threads are stuck and were left behind."""
        ...


class Inline:
    """Runs an assignment when it starts, on the caller's thread.

    JAX only enqueues the steps then, so that the host goes on while they run.
    """

    def __init__(self, run: Any):
        """`run(assignment) -> outcome`, such as `hetjax.run.steps.Steps.run`."""
        self._run = run
        self._outcomes: dict[int, Outcome] = {}

    def play(self, loop: Turns) -> None:
        """One turn after the other."""
        while not loop.over:
            loop.turn()

    def start(self, assignment: Assignment) -> None:
        """Enqueue all steps."""
        self._outcomes[assignment.worker] = self._run(assignment)

    def finish(self, worker: int) -> Outcome:
        """What the steps lead to, as arrays that may still be under way."""
        return self._outcomes.pop(worker)

    def drop(self, worker: int) -> None:
        """Forget an outcome."""
        self._outcomes.pop(worker, None)

    def close(self) -> list[int]:
        """There is nothing to end."""
        return []
