"""The parts of players: turns and models, and the reference player's executor."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

TakeTurns = Callable[[Callable[[], bool]], bool]
"""`take_turns(yields)` handles events until the run is over, no event is due, or
`yields()`, which is called after each event, returns True. It returns whether there is
more to do. Only one thread calls it at a time."""


class Turns(Protocol):
    """Runs local rounds, between which the loop takes its turns."""

    def run_turns(self, take_turns: TakeTurns) -> None:
        """Call `take_turns`, on any thread, until it returns False."""
        ...

    def flush(self) -> None:
        """End a turn: begin all rounds that were started."""
        ...

    def close(self) -> list[int]:
        """End everything; return the workers whose threads are stuck."""
        ...


class Models(Protocol):
    """Holds the replicas of workers and the states of nodes."""

    def model(self) -> Any:
        """Return the root's current model: (params, model_state)."""
        ...

    def save(self) -> dict[str, Any]:
        """Return all arrays that decide how the run continues; the root's as "root"."""
        ...

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        ...

    def load_root(self, leaves: list[Any]) -> None:
        """Continue from the root's arrays alone."""
        ...

    def model_of(self, leaves: list[Any]) -> Any:
        """Return a model from the arrays of a saved one."""
        ...


class Assignment(NamedTuple):
    """A local round as an executor sees it."""

    worker: int
    replica: Any  # a Replica, from which the steps start; None: on its device already
    rows: Sequence[np.ndarray]  # of the training split, one array per step
    learning_rate: np.float32
    first_step: int  # its number, counted over all rounds of the worker


class Executor(Turns, Protocol):
    """Runs assignments; a worker has at most one at a time."""

    def start(self, assignment: Assignment) -> None:
        """Begin an assignment, at the latest at the end of the turn (`flush`)."""
        ...

    def finish(self, worker: int) -> Any:
        """Return the `RoundOutcome` of a worker's assignment, which has arrived."""
        ...

    def discard(self, worker: int) -> None:
        """Discard a worker's assignment; `finish` will not be called for it."""
        ...

    def cancel(self, worker: int) -> None:
        """Discard an assignment; the worker's next one waits for the present step."""
        ...

    def outcome(self, worker: int) -> Any:
        """Return what `finish` will; None if it is not known before the arrival."""
        ...

    def restore_outcome(self, worker: int, outcome: Any) -> None:
        """Restore a worker's assignment that was saved with its outcome."""
        ...
