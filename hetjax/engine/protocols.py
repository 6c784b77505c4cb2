"""The interfaces between a run and a kind of machine: clock, player, runtime.

A clock says when things happen and runs nothing. A player carries out the instructions
of a tape (`hetjax.engine.tape`) and knows no times. `hetjax.runtimes` has one module or
folder for each kind of machine; to add one, write a module that returns a `Runtime`.
Host world, no JAX.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetjax.engine.capabilities import CheckpointSupport, Coordination
from hetjax.engine.player_parts import Models, Turns
from hetjax.machine.merge_times import MergeRequest, PlannedMerge
from hetjax.machine.roster import Roster
from hetjax.machine.types import Arrival, Event, LocalRound, WorkerInfo

# -- when --------------------------------------------------------------------------


class Clock(Protocol):
    """Says when things happen; `hetjax.machine.SimulatedClock` is one.

    The clock of a real run also has `begin()`, which starts it, and `paused()`, a
    context in which it stands still. A clock whose `plan` returns no stamps also has
    `merged(action, merge_times)`, which returns the `Stamps` of the measured merge.
    """

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """All workers that may ever take part."""
        ...

    @property
    def now(self) -> float:
        """The time of the last event [s]."""
        ...

    @property
    def roster(self) -> Roster:
        """The workers that are active, working, or lost."""
        ...

    @property
    def has_pending_joins(self) -> bool:
        """Whether a worker that is not active may still join."""
        ...

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Start a round as soon as its worker is free; an Arrival event follows.

        The returned Arrival has the true start, but a planned finish.
        """
        ...

    def cancel(self, worker: int) -> None:
        """End a worker's round at once; no Arrival follows."""
        ...

    def plan(self, merge: MergeRequest) -> PlannedMerge:
        """Return the times of a merge, as far as they are known; Merged follows."""
        ...

    def start(self, worker: int) -> None:
        """Make a worker active; a Join event follows."""
        ...

    def stop(self, worker: int) -> None:
        """Assign no more rounds to a worker; a Leave event follows."""
        ...

    def set_timer(self, name: str, time: float) -> None:
        """Request a Timer event at `time` [s]."""
        ...

    def next(self) -> Event | None:
        """Advance to the earliest event; None if there is none (yet).

        A clock that replays a run raises RunEnded after the last event.
        """
        ...


# -- what ---------------------------------------------------------------------------


class RoundResult(Protocol):
    """The result of a local round; `hetjax.engine.step_runner.RoundOutcome` is one.

    Where the host runs ahead of the devices, a result may not be `known` yet when its
    Arrival is handled. Reading `mean`, `finite` or `losses` then waits for it.
    """

    @property
    def known(self) -> bool:
        """Whether the properties below can be read without launching a program."""
        ...

    @property
    def losses(self) -> Iterable[tuple[np.ndarray, Any]]:
        """Rows and losses of each step, or of all steps at once."""
        ...

    @property
    def mean(self) -> Any:
        """The mean loss of the last step."""
        ...

    @property
    def padded(self) -> int:
        """The number of padding examples that were computed."""
        ...

    @property
    def finite(self) -> Any:
        """Whether all numbers of the replica are finite; if not, it was reset."""
        ...


class EvaluatedModel(NamedTuple):
    """A model and its metrics on the test split."""

    model: Any  # (params, model_state)
    metrics: dict[str, float]


class Traits(NamedTuple):
    """What the writer of a tape and the records have to know about the player."""

    num_bytes: float = 0.0  # of a model, as a merge moves it
    # bytes from and to each worker, and its node, if the player knows these
    traffic: Callable[[], Sequence[tuple[int, int]]] | None = None
    nodes: Callable[[], Sequence[str]] = tuple
    merges_wait: bool = False  # whether members wait for non-blocking merges as well
    # nodes whose merges need the held-out metrics of their members
    measured: Callable[[str], bool] = lambda node: False
    may_be_unreachable: bool = False  # whether a merge may find a member unreachable
    synchronizes: bool = False  # whether merges of nodes need `Synchronize` first
    # from planned times to true ones, which are known when the run is over: callable,
    # with `save` and `load`; None: the times of events are final
    time_map: Any = None


Plays = Mapping[type, Callable[[Any], Any]]
"""By type of instruction: the function that carries it out and returns the answer."""


class Player(Turns, Models, Protocol):
    """Carries out the instructions of a tape, in turns with the loop."""

    traits: Traits  # known once it is open
    plays: Plays  # all types of instructions that it may receive
    evaluator: Any  # a `hetjax.engine.evaluation.Evaluator`

    def open(self) -> None:
        """Make the first model."""
        ...

    def evaluate_whole_test(self, model: Any) -> dict[str, float]:
        """Return a model's metrics on the whole test split."""
        ...


# -- both ---------------------------------------------------------------------------


class Runtime(NamedTuple):
    """A machine that is ready to run a strategy."""

    clock: Any  # a Clock
    player: Any  # a Player; the tape is written ahead of a `PlaysAhead`
    step_modes: dict[str, str]  # how K local steps run, by kind of device
    real: bool = False  # whether its seconds are wall-clock time
    recorder: Any = None  # a `hetjax.tracing.Recorder`, which writes the tape to disk
    coordination: Coordination = Coordination()
    notes: Mapping[str, str] = {}  # for the history: `placement`, `played`
    checkpoints: CheckpointSupport | None = None  # None: runs cannot be checkpointed
    # called with a function for the thread that has the loop's turns: it returns the
    # rows of the round that a worker is expected to begin next, or None
    expect: Callable[[Callable[[int], Any]], None] | None = None
