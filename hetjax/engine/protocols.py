"""What the loop needs from a kind of machine: a clock, an executor and a placement.

`hetjax.runtimes` implements each kind of machine. To add one, write a module that
returns a `Runtime`; nothing else has to change.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hetjax.engine.correction import Correction
from hetjax.engine.placement import Placement
from hetjax.engine.replicas import ReplicaStore
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
        """All workers that may ever take part."""
        ...

    @property
    def now(self) -> float:
        """The time of the last event [s]."""
        ...

    @property
    def has_pending_joins(self) -> bool:
        """May a worker that is not active still join?"""
        ...

    def begin(self) -> None:
        """Start the clock."""
        ...

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Start a round as soon as its worker is free; an Arrival event follows.

        The returned Arrival has the true start, but its finish is only planned.
        """
        ...

    def carry_out(self, planned: PlannedMerge) -> Stamps:
        """Call `planned.run(time)` once, with the time from which the merge is visible.

        Return the times of the merge's parts; a Merged event follows.
        """
        ...

    def paused(self) -> AbstractContextManager[Any]:
        """Stop the clock within the context."""
        ...

    def start(self, worker: int) -> None:
        """Make a worker active; a Join event follows."""
        ...

    def stop(self, worker: int) -> None:
        """Give a worker no more rounds; a Leave event follows."""
        ...

    def set_timer(self, name: str, time: float) -> None:
        """Ask for a Timer event at `time` [s]."""
        ...

    def next(self) -> Event | None:
        """Move on to the earliest event; return None if there is none (yet).

        A clock that replays a run raises RunEnded after the last event.
        """
        ...


class KeptClock(Clock, Protocol):
    """A clock whose runs can be kept (`train(checkpoint=...)`)."""

    def save(self) -> dict[str, Any]:
        """Return what decides which events come (see `hetjax.saved.Saved`)."""
        ...

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned; called before `begin`."""
        ...

    def start_at(self, time: float) -> None:
        """Start at `time` [s], with nothing but that; called before `begin`."""
        ...

    def take_up(self, worker: int, arrival: Arrival | None) -> None:
        """A round was under way, which arrived so; None: its outcome was not saved.

        Clocks that saved its arrival themselves do nothing.
        """
        ...


class Unreachable(ConnectionError):
    """A worker's process cannot be reached; the message says why."""


class Assignment(NamedTuple):
    """A local round as an executor sees it."""

    worker: int
    replica: Any  # a Replica, from which the steps start; None: on its device already
    rows: Sequence[np.ndarray]  # of the training split, one array per step
    learning_rate: np.float32
    first_step: int  # its number, counted over all rounds of the worker


class RoundResult(Protocol):
    """The result of an assignment, as the loop sees it; `Outcome` is one.

    Where the host runs ahead of the devices, a result is not `known` yet when its
    arrival is handled: `mean`, `finite` and `losses` then wait for it, and the program
    itself has to keep a replica that is not finite out of the next merge.
    """

    @property
    def known(self) -> bool:
        """Can the numbers below be read without launching a program?"""
        ...

    @property
    def replica(self) -> Any:
        """The replica, as the run's store takes it back."""
        ...

    @property
    def losses(self) -> Iterable[tuple[np.ndarray, Any]]:
        """Rows and losses of one step, or of all; read when they are observed."""
        ...

    @property
    def mean(self) -> Any:
        """The mean loss of the last step."""
        ...

    @property
    def padded(self) -> int:
        """The number of padding examples that were computed too."""
        ...

    @property
    def finite(self) -> Any:
        """Are all numbers of the replica finite?"""
        ...


class Outcome(NamedTuple):
    """The result of an assignment."""

    replica: Replica
    losses: Sequence[tuple[np.ndarray, Any]]  # rows and losses of one step, or of all
    mean: jax.Array | np.ndarray  # mean loss of the last step
    padded: int  # number of padding examples that were computed too
    finite: Any = True  # are all numbers of the replica finite?

    @property
    def known(self) -> bool:
        """Its program was launched."""
        return True

    def wait(self) -> "Outcome":
        """Wait until the arrays are computed; return the outcome itself."""
        jax.block_until_ready((self.replica, self.mean, self.finite))
        return self


TakeTurns = Callable[[Callable[[], bool]], bool]
"""The loop: `take_turns(yields)` handles event after event until the run is over, no
event is due, or `yields()`, which is called after each event, returns True. It returns
whether there is more to do. Only one thread calls it at a time."""


class Executor(Protocol):
    """Runs assignments; a worker has at most one at a time."""

    def lead(self, take_turns: TakeTurns) -> None:
        """Call `take_turns`, on any thread, until it returns False."""
        ...

    def start(self, assignment: Assignment) -> None:
        """Begin an assignment, at the latest at the end of the turn (`flush`)."""
        ...

    def flush(self) -> None:
        """End a turn: begin all assignments that were started but still wait."""
        ...

    def finish(self, worker: int) -> RoundResult:
        """Return the outcome of a worker's assignment, which has arrived."""
        ...

    def drop(self, worker: int) -> None:
        """Discard a worker's assignment; `finish` will not be called for it."""
        ...

    def close(self) -> list[int]:
        """End everything; return the workers whose threads are stuck."""
        ...


class KeptExecutor(Executor, Protocol):
    """An executor whose runs can be kept (`train(checkpoint=...)`)."""

    def outcome(self, worker: int) -> RoundResult | None:
        """Return what `finish` will; None if it is not known before the arrival."""
        ...

    def load(self, worker: int, outcome: Outcome) -> None:
        """Take up a worker's assignment that was saved with its outcome."""
        ...


IsDue = Callable[[int], bool]
"""Should a run be cut, after so many evaluations?"""


class Kept(NamedTuple):
    """How runs on a machine are kept (`train(checkpoint=...)`)."""

    kind: str  # of machine: a cut of another one has its root and totals alone
    clock: KeptClock
    executor: KeptExecutor
    # are runs cut only when no worker has a local round, between an arrival's merges
    # and the rounds after it?
    at_rest: bool = False
    # of several processes: is a cut due, as the first process tells it?
    hear_due: Callable[[IsDue], IsDue] = lambda is_due: is_due


class Runtime(NamedTuple):
    """A machine that is ready to run a strategy."""

    clock: Clock
    executor: Executor
    placement: Placement  # the devices of replicas and nodes
    step_modes: dict[str, str]  # how K local steps run, by kind of device
    real: bool = False  # are its seconds wall-clock time?
    recording: Any = None  # a `hetjax.tracing.Recording` of the run
    # makes the store of replicas; another one than `ReplicaStore` has its methods
    open_store: Callable[..., Any] = ReplicaStore
    # the clock's times, corrected when the run is over; None: they were final
    corrected: Correction | None = None
    # of several processes that run the same loop: the value that process 0 has, and
    # whether Ctrl-C was pressed, as the first process tells it
    shared: Callable[[Any], Any] = lambda value: value
    hear_interrupt: Callable[[Callable[[], str]], Callable[[], Any]] = lambda pressed: (
        pressed
    )
    # told that this process leaves the run amid it, by an exception like SystemExit
    leave: Callable[[BaseException], None] = lambda error: None
    estimates_busy: bool = False  # are busy times worked out, not measured?
    note: str = ""  # how replicas are placed, for the history
    # the machine that each worker is on by now, where there are several
    nodes: Callable[[], Sequence[str]] = tuple
    kept: Kept | None = None  # if runs on this machine can be kept
