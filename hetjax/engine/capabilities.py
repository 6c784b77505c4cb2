"""Capabilities that some machines have: playing ahead, checkpoints, several processes.

They extend the interfaces of `hetjax.engine.protocols`. Host world, no JAX.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable


class RoundNotFinite(ArithmeticError):
    """A round was not finite, which was found out after later events were decided.

    The run rolls back to its last mark (see `PlaysAhead`) and repeats what followed.
    """


class Unreachable(ConnectionError):
    """A worker's process cannot be reached; the message says why."""


@runtime_checkable
class PlaysAhead(Protocol):
    """A player that may not know yet what became of the rounds that have arrived."""

    times_known: int  # how often the results of all arrivals were known
    knows_in_time: bool  # whether each result is known when its round arrives

    def synchronize(self) -> None:
        """Play everything and wait for it; RoundNotFinite if the run must roll back."""
        ...

    def synchronize_if_needed(self) -> None:
        """Like `synchronize`, but only if a result is not known."""
        ...

    def policy_metrics(self, seen: Any, metrics: Any) -> Any:
        """Return the metrics that the policy receives; usually `metrics`."""
        ...

    def mark(self) -> Any:
        """Return a point for `undo`, between two events."""
        ...

    def undo(self, mark: Any) -> None:
        """Go back to a point; from there on, results are known in time."""
        ...


IsDue = Callable[[int], bool]
"""Whether a snapshot is due after a number of evaluations."""


class Coordination(NamedTuple):
    """How several processes that run the same loop agree; by default there is one."""

    # what process 0 has: a value; the signal that came; whether a snapshot is due
    share: Callable[[Any], Any] = lambda value: value
    interrupt: Callable[[Callable[[], str]], Callable[[], Any]] = lambda came: came
    snapshot_due: Callable[[IsDue], IsDue] = lambda is_due: is_due
    # called when this process leaves the run early, by an exception like SystemExit
    leave: Callable[[BaseException], None] = lambda error: None


class CheckpointSupport(NamedTuple):
    """How runs on a machine are checkpointed (`train(checkpoint=...)`).

    Its clock has `save`, `load` and `start_at(time)`, for a run that continues with
    other workers. Where rounds may be in flight, the player has the methods of the
    reference player for them, and a real clock has `resume_round(worker, arrival)`, in
    which None is a lost outcome.
    """

    kind: str  # of machine: only the root and the totals move to another kind
    at_rest: bool = False  # whether snapshots wait until no round is in flight
    whole: bool = False  # whether the player saves the rounds in flight itself
