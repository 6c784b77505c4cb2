"""The history of a run: its evaluations, its events, and each worker's time.

Histories are plain data: the loop (`hetjax.engine.loop`) writes them; tables, plots and
files read them.
"""

import shlex
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hetjax.engine.interruption import INTERRUPTED
from hetjax.engine.records import curve
from hetjax.engine.records.event_log import Log, log_of
from hetjax.engine.records.timeline import Timeline, WorkerRecord
from hetjax.metric_mode import best_of

REFERENCE = "reference player: "  # prefix of `History.played`, before a reason
BY_REQUEST = "compiled=False"  # one of these reasons
EPOCHS_DONE = "epochs are done"  # suffix of `History.stopped` after `epochs=...`


class WorkerEvent(NamedTuple):
    """Something that happened to a worker, such as a loss, a join or a NaN."""

    seconds: float
    worker: str
    what: str  # "left", "lost", "joined", "slow" or "nan"
    why: str

    def __getitem__(self, key: Any) -> Any:
        """Return a field by its name, as in evaluations: event["seconds"]."""
        if not isinstance(key, str):
            return tuple.__getitem__(self, key)
        if key not in self._fields:
            raise KeyError(key)
        return getattr(self, key)


class Evaluation(dict[str, Any]):
    """An evaluation: point["loss"], or point.loss as for workers and events."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"an evaluation has {', '.join(self)}, but no {name!r}")


class Interruption(NamedTuple):
    """A run that was interrupted and resumed from a checkpoint."""

    seconds: float  # of the clock, from which it resumed
    checkpoint: int  # its number
    why: str  # that it was not the newest, or made by other versions; otherwise ""


def command_line() -> str:
    """The command of this process, quoted for a shell; "" in a notebook."""
    if "ipykernel" in sys.modules:
        return ""
    return shlex.join(["python", *sys.orig_argv[1:]])


@dataclass(repr=False)
class History:
    """The history of one run: one strategy, one seed."""

    strategy: str
    seed: int
    settings: dict[str, Any]
    metric: str  # name of the main metric in `evals`
    mode: str = "max"  # whether a larger value is better, or a smaller one ("min")
    real: bool = False  # whether it ran on real devices
    duration: float = 0.0  # [s] of the clock
    evals: list[Evaluation] = field(default_factory=list)
    # {"seconds", "updates", "examples", "merges", "bytes", "loss", metric...}: "bytes"
    # from and to all workers, "loss" and metrics on the test split; and "train_loss",
    # the mean over the local rounds since the previous evaluation, if there were any
    eval_examples: int = 0  # of the test split, used by `evals`; 0: all
    at_end: dict[str, float] = field(default_factory=dict)
    # {"examples", "loss", metric...} of the final model on the whole test split, if
    # `evals` use a part of it (otherwise see the last of these); empty after an
    # interrupt or an error
    algorithm: str = ""  # the strategy's own name, such as "sma"; "" if it has none
    parts: dict[str, str] = field(default_factory=dict)
    # {"policy", "local", "merge", "sampler"}: the factories of the strategy's parts
    output: str = ""  # the task's output layer, if it is not the model's own
    parameters: int = 0  # numbers in the model; 0: not known
    command: str = ""  # that made the run, quoted for a shell
    workers: list[WorkerRecord] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    merges: int = 0  # finished by the end of the run
    merge_times: array = field(default_factory=lambda: array("d"))
    # [s] when each merge of the run's model finished, increasing
    root_merges: int | None = None
    # how many of `merges` were of the run's model; None before the end, or if unknown
    unseen_merge: float = 0.0
    # [s] when the first merge would have finished that the run ended before
    compilations: int = 0  # in this run, from JAX's monitoring events
    programs: dict[str, int] = field(default_factory=dict)  # compilations by purpose
    compile_seconds: float = 0.0
    host_seconds: float = 0.0  # wall-clock time of the run, without compiling
    stopped: str = ""  # why the run ended early; "" if it did not
    signal: str = ""  # the signal that came, such as "SIGTERM", even after the end
    error: Exception | None = None  # of a callback or a part of the strategy
    last_members: tuple[int | str, ...] = ()  # of the last merge
    events: list[WorkerEvent] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    # workers whose threads did not end with the run
    step_modes: dict[str, str] = field(default_factory=dict)
    # how K local steps ran on each kind of device (see `hetjax.engine.step_runner`)
    placement: str = ""  # devices of the replicas, or how a mesh placed them and why
    played: str = ""
    # of a simulated run: "compiled", "compiled, one of 4 runs at once", or why the
    # reference player played it
    estimates_busy: bool = False
    # whether busy times are estimates from measured steps, as one program hides them
    trace: Any = None  # recording of a real run (see `hetjax.tracing.trace`)
    replayed: str = ""  # after a replay: "equal", or what differs
    params: Any = None  # final parameters
    model_state: Any = None  # final model state
    model: Any = None  # the user's model with both put back
    # of the best evaluation, if the run was checkpointed (`train(checkpoint=...)`)
    best_params: Any = None
    best_model_state: Any = None
    interruptions: list[Interruption] = field(default_factory=list)
    # after each of which the run was resumed from a checkpoint
    schedule_seed: int | None = None  # of the clock and the sampler; None: unknown

    # the fields written during a run; the others are set before it, or at its end
    growing: ClassVar[tuple[str, ...]] = (
        "duration",
        "evals",
        "merges",
        "merge_times",
        "last_members",
        "events",
        "interruptions",
        "played",  # a resumed run has the player with which it began
    )

    def __post_init__(self):
        """Convert evaluations, which may be plain dictionaries, as in files."""
        self.evals = list(map(Evaluation, self.evals))

    def __repr__(self) -> str:
        end = f", {self.stopped}" if self.stopped else ""
        end += f", {self.unmerged}" * bool(self.unmerged)
        return (
            f"<History of {self.strategy}, seed {self.seed}: {len(self.evals)} points "
            f"over {self.duration:g} s, best {self.metric} {self.best():.4g}{end}>"
        )

    @property
    def unmerged(self) -> str:
        """Why the model is still the initial one, if no merge finished; else ""."""
        if self.merges if self.root_merges is None else self.root_merges:
            return ""
        where = " at the root" * bool(self.merges)  # only nodes below it have merged
        if self.unseen_merge:
            return (
                f"the first merge{where} takes until {self.unseen_merge:.3g} s, "
                f"beyond the run's {self.duration:.3g} s (see the latency and "
                "bandwidth of the machine's links)"
            )
        same = len({p["loss"] for p in self.evals}) == 1
        return f"nothing was merged{where} in {self.duration:g} s" * same

    @property
    def log(self) -> Log:
        """All events as (seconds, worker, what, about), by time.

        "dispatch" and "arrival" of local rounds (a round cut short by a loss or the end
        of the run has no arrival), a worker's "merge" and "transfer" with their ends,
        "merged" when a merge of the run's model finishes, "evaluation", and `events`:
        "left", "lost", "joined", "slow", "nan". Without the timeline, as from a
        results.json, there are no rounds.
        """
        return log_of(self)

    @property
    def not_compiled(self) -> str:
        """Why a simulated run was not compiled; "" if it was, or by request."""
        why = self.played.removeprefix(REFERENCE)
        return "" if why in (self.played, BY_REQUEST) else why

    @property
    def interrupted(self) -> bool:
        """Whether a signal came, so that no other run should begin."""
        return bool(self.signal) or self.stopped == INTERRUPTED

    @property
    def ended_early(self) -> bool:
        """Whether it ended before its seconds, other than by its epochs."""
        return bool(self.stopped) and not self.stopped.endswith(EPOCHS_DONE)

    @property
    def ends_at_evaluation(self) -> bool:
        """Whether the run ended at an evaluation."""
        return bool(self.evals) and self.evals[-1]["seconds"] == self.duration

    def map_times(self, time_map: Callable[[np.ndarray], np.ndarray]) -> None:
        """Map the times of merges and events, planned to true.

        The times of evaluations and the duration are final.
        """
        self.merge_times = array("d", time_map(np.array(self.merge_times)))
        self.events = [
            event._replace(seconds=float(time_map(np.array(event.seconds))))
            for event in self.events
        ]
        self.interruptions = [
            each._replace(seconds=float(time_map(np.array(each.seconds))))
            for each in self.interruptions
        ]

    def save_model(
        self, path: str | Path, *, best: bool = False, overwrite: bool = False
    ) -> None:
        """Save the final model in a folder, for `hetjax.load_model(path, task)`.

        With `best`, the model of the best evaluation, of a run with a checkpoint.
        Errors: FileExistsError for a path that exists, unless `overwrite`; ValueError
        if there is no such model.
        """
        # imported here, since histories are read without JAX
        from hetjax.checkpoint import saved_models
        from hetjax.output.head import without_layer_state

        params, state = self.params, self.model_state
        if best:
            params, state = self.best_params, self.best_model_state
        if params is None:
            raise ValueError(
                "this history holds no such model: only a run with "
                "train(checkpoint=...) saves its best one"
            )
        # without the output layer's state: a task with another one may load it
        saved_models.save(path, params, without_layer_state(state), overwrite=overwrite)

    def best(self) -> float:
        """Return the best main metric over all evaluations (nan without any)."""
        return best_of(self._values(), self.mode)

    def final(self) -> float:
        """Return the main metric at the end: its mean over the last tenth of `evals`.

        With fewer than twenty it is the last one; nan without any.
        """
        return curve.final(self._values())

    @property
    def collapsed(self) -> bool:
        """Whether the end is far below the best evaluation.

        The run has lost more than a tenth of what its best evaluation gained over the
        first, and more than 1 % of the best value.
        """
        return curve.has_collapsed(self._values(), self.mode)

    def seconds_to(self, target: float, *, interpolated: bool = False) -> float:
        """Return the seconds of the first evaluation that holds `target`; or inf.

        From then on, the median of any w consecutive evaluations (of the remaining
        ones, if fewer) is no more than 3 % below the target, and neither is `final`. w
        is a tenth of all evaluations, and at least three, so that neither a single good
        evaluation nor a single bad one decides. The 3 % are of the target, or of its
        distance from the first evaluation if that is less.

        If `interpolated`, return the seconds at which the straight line from the
        previous evaluation reaches the target.
        """
        values = self._values()
        k = curve.held_from(values, target, self.mode)
        if k is None:
            return float("inf")
        here = self.evals[k]["seconds"]
        if not interpolated or not k:
            return here
        before = self.evals[k - 1]["seconds"]
        rise = values[k] - values[k - 1]
        share = (target - values[k - 1]) / rise if rise else 1.0
        if not 0 <= share <= 1:  # nan before it, or the target was reached before
            share = 1.0
        return before + share * (here - before)

    def _values(self) -> list[float]:
        return [point[self.metric] for point in self.evals]

    def waiting_share(self) -> float:
        """Return waiting seconds over the duration, averaged over the used workers."""
        used = [w for w in self.workers if w.idle < self.duration]
        if not used or not self.duration:
            return 0.0
        return sum(w.waiting for w in used) / (len(used) * self.duration)
