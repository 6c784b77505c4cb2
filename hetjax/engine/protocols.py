"""What the loop asks of a kind of machine: a clock, an executor, and where things are.

`hetjax.runtimes` has an implementation for each kind. A new one is a new module that
returns a `Runtime`; nothing else has to hear of it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hetjax.engine.placement import Placement
from hetjax.machine import (
    Arrival,
    Event,
    LocalRound,
    PlannedMerge,
    Stamps,
    WorkerInfo,
)
from hetjax.replica import Replica


class Clock(Protocol):
    """Says when things happen; `hetjax.machine.SimulatedClock` is one."""

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """All who may ever take part."""
        ...

    @property
    def now(self) -> float:
        """Seconds at the last event."""
        ...

    @property
    def has_pending_joins(self) -> bool:
        """May somebody who is not active still come?"""
        ...

    def begin(self) -> None:
        """Time runs from now on."""
        ...

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Start a round when its worker is free; its arrival is an event to come.

        The one that is returned says when it starts; its finish is a plan.
        """
        ...

    def carry_out(self, planned: PlannedMerge) -> Stamps:
        """Call `planned.run(seconds)` once, with the time from which it is visible.

        Returned is when the merge's parts took place; a Merged event is to come.
        """
        ...

    def paused(self) -> AbstractContextManager[Any]:
        """Time stands still within."""
        ...

    def start(self, worker: int) -> None:
        """Let a worker take part from now on; a Join is to come."""
        ...

    def stop(self, worker: int) -> None:
        """Give a worker no more rounds; a Leave is to come."""
        ...

    def set_timer(self, name: str, time: float) -> None:
        """Ask for a Timer event."""
        ...

    def next(self) -> Event | None:
        """Move on to the earliest event; None when there is none (yet).

        A clock that plays a run again raises RunEnded behind the last one.
        """
        ...


class Assignment(NamedTuple):
    """A local round as an executor sees it."""

    worker: int
    replica: Replica  # to begin from
    rows: Sequence[np.ndarray]  # of the training split, for every step
    learning_rate: np.float32
    first_step: int  # the number of the first one among the worker's


class Outcome(NamedTuple):
    """What came of an assignment."""

    replica: Replica
    losses: Sequence[tuple[np.ndarray, Any]]  # rows and losses, of a step or of all
    mean: jax.Array | np.ndarray  # loss of the last step
    padded: int  # examples of padding computed besides
    finite: Any = True  # are all numbers of the replica?

    def wait(self) -> "Outcome":
        """Itself, once its arrays are there."""
        jax.block_until_ready((self.replica, self.mean, self.finite))
        return self


TakeTurns = Callable[[Callable[[], bool]], bool]
"""The loop: take_turns(yields) handles event after event until the run is over, no
event is due, or `yields()` asks behind one of them to pass the turn on; is there more
to do? One thread calls it at a time."""


class Executor(Protocol):
    """Runs assignments; a worker has one at a time."""

    def lead(self, take_turns: TakeTurns) -> None:
        """Have `take_turns` called, on whichever thread, until it returns False."""
        ...

    def start(self, assignment: Assignment) -> None:
        """Begin an assignment, at the latest when the turn is over (`flush`)."""
        ...

    def flush(self) -> None:
        """A turn is over: nothing that was started waits for others any longer."""
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


class Runtime(NamedTuple):
    """A machine that is ready to run a strategy."""

    clock: Clock
    executor: Executor
    placement: Placement  # where replicas and nodes are
    step_modes: dict[str, str]  # how K local steps run, by kind of device
    real: bool = False  # are its seconds real ones?
    recording: Any = None  # where the run is recorded: `hetjax.tracing`
