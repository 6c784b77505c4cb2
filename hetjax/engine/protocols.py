"""What a run needs from a kind of machine: a clock, and a player of its tape.

`hetjax.runtimes` implements each kind of machine. To add one, write a module that
returns a `Runtime`; nothing else has to change. A clock says when things happen and
runs nothing; a player (`hetjax.engine.reference_player` has one, made of a store and an
executor) runs things and does not know when. `hetjax.engine.tape` tells both what to
do. Host world, no JAX.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetjax.engine.correction import TimeMap
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    Arrival,
    Event,
    LocalRound,
    MergeAction,
    MergeRequest,
    PlannedMerge,
    Stamps,
    WorkerInfo,
)
from hetjax.schedule.types import Policy

# -- when --------------------------------------------------------------------------


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
    def roster(self) -> Roster:
        """Which workers are active, working, or lost."""
        ...

    @property
    def has_pending_joins(self) -> bool:
        """May a worker that is not active still join?"""
        ...

    def dispatch(
        self, worker: int, local_round: LocalRound, nonzeros: Sequence[int]
    ) -> Arrival:
        """Start a round as soon as its worker is free; an Arrival event follows.

        The returned Arrival has the true start, but its finish is only planned.
        """
        ...

    def plan(self, merge: MergeRequest) -> PlannedMerge:
        """Say when a merge takes place; a Merged event follows.

        A clock that measures merges does not know yet: it has a method
        `merged(action, merge_times)`, which returns their `Stamps` afterwards.
        """
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


# -- what ---------------------------------------------------------------------------


class RoundNotFinite(ArithmeticError):
    """A round that arrived was not finite, as is seen too late to decide what follows.

    The run goes back to its last mark (see `Ahead`), and then knows it in time.
    """


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
    """The result of a local round; `hetjax.engine.local_steps.Outcome` is one.

    Where the host runs ahead of the devices, a result is not `known` yet when its
    arrival is handled: `mean`, `finite` and `losses` then wait for it, and the program
    itself has to keep a replica that is not finite out of the next merge.
    """

    @property
    def known(self) -> bool:
        """Can the numbers below be read without launching a program?"""
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
        """Are all numbers of the replica finite? If not, the player has reset it."""
        ...


class EvaluatedModel(NamedTuple):
    """A model at an evaluation, and its metrics on the test split."""

    model: Any  # (params, model_state)
    metrics: dict[str, float]


TakeTurns = Callable[[Callable[[], bool]], bool]
"""The loop: `take_turns(yields)` handles event after event until the run is over, no
event is due, or `yields()`, which is called after each event, returns True. It returns
whether there is more to do. Only one thread calls it at a time."""


class Traits(NamedTuple):
    """What the writer of a tape has to know of the player that it writes for."""

    num_bytes: float = 0.0  # of a model, as a merge moves it
    # bytes from and to each worker, if the player counts them; else the ledger does
    traffic: Callable[[], Sequence[tuple[int, int]]] | None = None
    merges_wait: bool = False  # do members wait also for merges that do not block?
    # nodes whose merges need the members' held-out metrics, which are asked for first
    measured: Callable[[str], bool] = lambda node: False
    may_be_unreachable: bool = (
        False  # may a member be out of reach, as a merge finds out?
    )
    # must it be known which rounds were finite (`Synchronize`) before nodes merge?
    synchronizes: bool = False


Plays = Mapping[type, Callable[[Any], Any]]
"""By kind of instruction: what carries one out, and returns what was observed."""


class Turns(Protocol):
    """Something that runs local rounds, between which the loop takes its turns."""

    def run_turns(self, take_turns: TakeTurns) -> None:
        """Call `take_turns`, on any thread, until it returns False."""
        ...

    def flush(self) -> None:
        """End a turn: begin all rounds that were started but still wait."""
        ...

    def close(self) -> list[int]:
        """End everything; return the workers whose threads are stuck."""
        ...


class PlaysAhead(Protocol):
    """Besides, of a player for which the tape is written ahead of what is known."""

    times_known: int  # how often everything that had arrived was known
    knows_in_time: bool  # is each result known when its round arrives? See `undo`

    def synchronize(self) -> None:
        """Play everything, and know it; `NotFinite` if the run has to go back."""
        ...

    def synchronize_if_needed(self) -> None:
        """As `settle`, but only if something that has arrived is not known."""
        ...

    def policy_metrics(self, seen: EvaluatedModel, metrics: Any) -> Any:
        """What the policy is told of an evaluation; usually the `metrics`."""
        ...

    def mark(self) -> Any:
        """A point for `undo`: between two events, everything that arrived is known."""
        ...

    def undo(self, mark: Any) -> None:
        """Go back to a point; from it on, while it is `careful`, results are known."""
        ...


class Models(Protocol):
    """Something that holds the replicas of workers and the states of nodes."""

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
        """Return a model from a saved one's arrays."""
        ...


class Player(Turns, Models, Protocol):
    """Carries out the instructions of a tape (see `hetjax.engine.tape`)."""

    traits: Traits  # known once it is open
    plays: Plays  # all kinds of instructions that it may get

    def open(self) -> None:
        """Make the first model."""
        ...

    def look_at_all(self, model: Any) -> dict[str, float]:
        """A model's metrics on the whole test split, of which others see a part."""
        ...


class Store(Models, Protocol):
    """What the reference player changes; `hetjax.engine.replica_store` has one."""

    num_bytes: int  # of a model
    shared: bool  # may merges change a replica during its round?

    def report(self) -> dict[str, float]:
        """Return the counters of the root's merge."""
        ...

    def merge_of(self, node: str) -> Any:
        """Return the `Merge` of a node."""
        ...

    def begin(self, worker: int) -> None:
        """Make a worker's replica, from the root's current model."""
        ...

    def discard(self, worker: int) -> None:
        """Drop a worker's replica."""
        ...

    def reset(self, worker: int) -> None:
        """Begin a worker's replica again, but for the merge's buffers."""
        ...

    def check_out(self, worker: int) -> Any:
        """Return the replica with which a worker begins its round."""
        ...

    def check_in(self, worker: int, replica: Any) -> None:
        """Take a worker's replica back after its round."""
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


class Executor(Turns, Protocol):
    """Runs the reference player's assignments; a worker has at most one at a time."""

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
        """Take up a worker's assignment that was saved with its outcome."""
        ...


# -- both ---------------------------------------------------------------------------

IsDue = Callable[[int], bool]
"""Whether a run should be cut, after a number of evaluations."""


class CheckpointSupport(NamedTuple):
    """How runs on a machine are kept (`train(checkpoint=...)`).

    Its clock then has `save`, `load` (see `hetjax.checkpointable.Saved`), and
    `start_at(time)` for a run that continues with other workers. Where rounds may be in
    flight, its player has `outcome`, `saved_outcome`, `load_outcome` and `on_outcome`,
    and a clock of a real machine `resume_round(worker, arrival)`, where None is a lost
    outcome.
    """

    kind: str  # of machine: a cut of another one has its root and totals alone
    # are runs cut only when no worker has a local round, between an arrival's merges
    # and the rounds after it?
    at_rest: bool = False
    # of several processes: is a cut due, as the first process tells it?
    hear_due: Callable[[IsDue], IsDue] = lambda is_due: is_due
    # are the rounds in flight in what the player saves?
    whole: bool = False


class Runtime(NamedTuple):
    """A machine that is ready to run a strategy."""

    clock: Any  # a Clock
    player: Any  # a Player
    step_modes: dict[str, str]  # how K local steps run, by kind of device
    # are its seconds wall-clock time? Then the clock has `begin()`, to start it, and
    # `paused()`, a context in which it stands still
    real: bool = False
    # decides in place of the strategy's policy: the recorded actions of a replay
    policy: Policy | None = None
    recorder: Any = None  # a `hetjax.tracing.Recorder`, which writes the tape on disk
    # the clock's times, corrected when the run is over; None: they were final
    corrected: TimeMap | None = None
    # of several processes that run the same loop: the value that process 0 has, and
    # whether Ctrl-C was pressed, as the first process tells it
    shared: Callable[[Any], Any] = lambda value: value
    hear_interrupt: Callable[[Callable[[], str]], Callable[[], Any]] = lambda pressed: (
        pressed
    )
    # told that this process leaves the run early, by an exception like SystemExit
    leave: Callable[[BaseException], None] = lambda error: None
    estimates_busy: bool = False  # are busy times worked out, not measured?
    ahead: bool = False  # is the tape written ahead of its player, which is `Ahead`?
    played: str = ""  # which player a simulated run has, and why, for the history
    note: str = ""  # how replicas are placed, for the history
    # the machine that each worker is on by now, where there are several
    nodes: Callable[[], Sequence[str]] = tuple
    kept: CheckpointSupport | None = None  # if runs on this machine can be kept
