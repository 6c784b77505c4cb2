"""The parts of the reference player: a store of replicas, and an executor of rounds."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetjax.engine.protocols import Models, Turns
from hetjax.machine.types import MergeAction, Stamps


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

    def outcome(self, worker: int) -> Any:
        """Return what `finish` will; None if it is not known before the arrival."""
        ...

    def restore_outcome(self, worker: int, outcome: Any) -> None:
        """Restore a worker's assignment that was saved with its outcome."""
        ...


class Store(Models, Protocol):
    """Holds what the reference player changes; `hetjax.engine.replica_store` is one."""

    num_bytes: int  # of a model
    shared: bool  # whether merges may change a replica during its round

    def report(self) -> dict[str, float]:
        """Return the counters of the root's merge."""
        ...

    def merge_of(self, node: str) -> Any:
        """Return the `Merge` of a node."""
        ...

    def begin(self, worker: int) -> None:
        """Make a worker's replica from the root's current model."""
        ...

    def discard(self, worker: int) -> None:
        """Discard a worker's replica."""
        ...

    def reset(self, worker: int) -> None:
        """Begin a worker's replica again, except for the merge's buffers."""
        ...

    def check_out(self, worker: int) -> Any:
        """Return the replica with which a worker begins its round."""
        ...

    def check_in(self, worker: int, replica: Any) -> None:
        """Store a worker's replica after its round."""
        ...

    def merge(self, action: MergeAction, stats: np.ndarray) -> Stamps:
        """Carry out a merge or a fetch; return stamps of `time.perf_counter`."""
        ...

    def member_model(self, member: int | str) -> Any:
        """Return a member's model."""
        ...

    def leaves_of(self, replica: Any) -> list[Any]:
        """Return a replica's arrays, for `replica_of`."""
        ...

    def replica_of(self, worker: int, leaves: list[Any]) -> Any:
        """Return a worker's replica from the arrays of a saved one."""
        ...
