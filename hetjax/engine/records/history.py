"""The history of a run: its evaluations, its events, and each worker's time.

Histories are plain data: the loop (`hetjax.engine.loop`) writes them; tables, plots and
files read them.
"""

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

REFERENCE = "reference player: "  # the beginning of `History.played`, before a reason
BY_REQUEST = "compiled=False"  # this reason
EPOCHS_DONE = "epochs are done"  # the end of `History.stopped` after `epochs=...`


class WorkerEvent(NamedTuple):
    """Something that happened to a worker, such as a loss, a join or a NaN."""

    seconds: float
    worker: str
    what: str  # "left", "lost", "joined", "slow" or "nan"
    why: str

    def __getitem__(self, key: Any) -> Any:
        """A field by its name, as of evaluations: event["seconds"]."""
        if not isinstance(key, str):
            return tuple.__getitem__(self, key)
        if key not in self._fields:
            raise KeyError(key)
        return getattr(self, key)


class Evaluation(dict[str, Any]):
    """An evaluation by name: point["loss"], or point.loss as of workers and events."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"an evaluation has {', '.join(self)}, and no {name!r}")


class Interruption(NamedTuple):
    """A run that ended before its time was continued from a checkpoint."""

    seconds: float  # of the clock, from which it went on
    checkpoint: int  # its number
    why: str  # it was not the newest, or made by other versions; "" otherwise


@dataclass(repr=False)
class History:
    """The history of one run: one strategy, one seed."""

    strategy: str
    seed: int
    settings: dict[str, Any]
    metric: str  # name of the main metric in `evals`
    mode: str = "max"  # is it better if it is larger, or smaller ("min")?
    real: bool = False  # did it run on real devices?
    duration: float = 0.0  # [s] of the clock
    evals: list[Evaluation] = field(default_factory=list)
    # {"seconds", "updates", "examples", "merges", "bytes", "loss", metric...}, the last
    # ones on the test split, "bytes" from and to all workers; and "train_loss", the
    # mean over the local rounds since the evaluation before, unless there was none
    eval_examples: int = 0  # of the test split that `evals` are of; 0: all
    at_end: dict[str, float] = field(default_factory=dict)
    # {"examples", "loss", metric...} of the final model on the whole test split, where
    # `evals` are of a part of it (else see the last of these); empty after an interrupt
    # or an error
    algorithm: str = ""  # the strategy's own name, such as "sma"; "" if it has none
    output: str = ""  # the task's output layer, if that is not the model's own
    workers: list[WorkerRecord] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    merges: int = 0  # that were done by the end of the run
    merge_times: array = field(default_factory=lambda: array("d"))
    # [s] when each merge of the run's model was done, rising
    root_merges: int | None = None
    # of `merges`, those of the run's model; None before the end, or if it is not known
    unseen_merge: float = 0.0
    # [s] when the first merge would have been done that the run's end came before
    compilations: int = 0  # in this run, from JAX's monitoring events
    programs: dict[str, int] = field(default_factory=dict)  # compilations by purpose
    compile_seconds: float = 0.0
    host_seconds: float = 0.0  # wall-clock time of the run, without compiling
    stopped: str = ""  # why the run ended before its seconds; "" if it did not
    signal: str = ""  # that came, such as "SIGTERM"; a run that was over is complete
    error: Exception | None = (
        None  # raised by a callback or a part of the strategy; it ended the run
    )
    last_members: tuple[int | str, ...] = ()  # of the last merge
    events: list[WorkerEvent] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    # workers whose threads did not end with the run
    step_modes: dict[str, str] = field(default_factory=dict)
    # how K local steps ran on each kind of device (see `hetjax.engine.local_steps`)
    placement: str = (
        ""  # the devices of the replicas, or how a mesh placed them, and why
    )
    played: str = ""
    # "compiled", "compiled, one of 4 runs at once", or why the reference player played
    # a simulated run
    estimates_busy: bool = False
    # are busy times worked out from measured steps, since one program hides them?
    trace: Any = None  # recording of a real run (see `hetjax.tracing.trace`)
    replayed: str = ""  # after a replay: "equal", or what differs
    params: Any = None  # final parameters
    model_state: Any = None  # final model state
    model: Any = None  # the user's model with both put back
    # of the best evaluation, if the run was kept (`train(checkpoint=...)`)
    best_params: Any = None
    best_model_state: Any = None
    interruptions: list[Interruption] = field(default_factory=list)
    # the run was continued from a checkpoint
    schedule_seed: int | None = None  # of the clock and the sampler; None: not known

    # what is written during a run; the rest is known before, or worked out at its end
    growing: ClassVar[tuple[str, ...]] = (
        "duration",
        "evals",
        "merges",
        "merge_times",
        "last_members",
        "events",
        "interruptions",
        "played",  # a run that goes on has the player with which it began
    )

    def __post_init__(self):
        """Take evaluations as plain dictionaries, too, as files have them."""
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
        """Why the model is still the initial one, if no merge was done by the end."""
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
        """All that happened, as (seconds, worker, what, about), by time.

        "dispatch" and "arrival" of local rounds (one that the run's end or a loss cut
        off has no arrival), a worker's "merge" and "transfer" with their ends,
        "merged" when a merge of the run's model is done, "evaluation", and `events`:
        "left", "lost", "joined", "slow", "nan". Without the timeline, as from a
        results.json, there are no rounds.
        """
        return log_of(self)

    @property
    def not_compiled(self) -> str:
        """Why a simulated run was not compiled; "" if it was, or as it was asked."""
        why = self.played.removeprefix(REFERENCE)
        return "" if why in (self.played, BY_REQUEST) else why

    @property
    def interrupted(self) -> bool:
        """Did a signal come, so that no other run should begin?"""
        return bool(self.signal) or self.stopped == INTERRUPTED

    @property
    def ended_early(self) -> bool:
        """Did it end before its seconds were over, and its epochs not done?"""
        return bool(self.stopped) and not self.stopped.endswith(EPOCHS_DONE)

    @property
    def ends_at_evaluation(self) -> bool:
        """Was an evaluation the last thing that happened?"""
        return bool(self.evals) and self.evals[-1]["seconds"] == self.duration

    def map_times(self, time_map: Callable[[np.ndarray], np.ndarray]) -> None:
        """Replace the times of merges and events by what they turned out to be.

        The evaluations' instants and the duration are final.
        """
        self.merge_times = array("d", time_map(np.array(self.merge_times)))
        self.events = [
            event._replace(seconds=float(time_map(np.array(event.seconds))))
            for event in self.events
        ]
        self.interruptions = [
            cut._replace(seconds=float(time_map(np.array(cut.seconds))))
            for cut in self.interruptions
        ]

    def save_model(
        self, path: str | Path, *, best: bool = False, overwrite: bool = False
    ) -> None:
        """Save the final model in a folder, for `hetjax.load_model(path, task)`.

        With `best`, the model of the best evaluation, of a run with a checkpoint.
        Errors: FileExistsError for a path that exists, unless `overwrite`; ValueError
        if there is no such model.
        """
        # here, since histories are read without JAX
        from hetjax.checkpoint import saved_models
        from hetjax.output.head import without_layer_state

        params, state = self.params, self.model_state
        if best:
            params, state = self.best_params, self.best_model_state
        if params is None:
            raise ValueError(
                "this history holds no such model: a run keeps its best one only with "
                "train(checkpoint=...)"
            )
        # without an output layer's state: it may be loaded for a task with another one
        saved_models.save(path, params, without_layer_state(state), overwrite=overwrite)

    def best(self) -> float:
        """The best value of the main metric over all evaluations (nan without any)."""
        return best_of(self._values(), self.mode)

    def final(self) -> float:
        """The main metric at the end: its mean over the last tenth of the evaluations.

        Of fewer than twenty it is the last one; nan without any.
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
        """Seconds of the first evaluation that reaches `target` for good; or inf.

        From it on the target is held: the median of any w consecutive evaluations (of
        those that are left, if fewer) is no more than 3 % below the target. w is a
        tenth of all evaluations, and at least three, so that neither a single good
        evaluation nor a single bad one counts. The 3 % are of the target, or of its
        distance from the first evaluation if that is less. `final` holds it, too.

        If `interpolated`, the seconds at which the straight line from the evaluation
        before it reaches the target.
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
        if not 0 <= share <= 1:  # a nan before it, or the target was reached before
            share = 1.0
        return before + share * (here - before)

    def _values(self) -> list[float]:
        return [point[self.metric] for point in self.evals]

    def waiting_share(self) -> float:
        """Waiting seconds over the duration, mean over the workers that were used."""
        used = [w for w in self.workers if w.idle < self.duration]
        if not used or not self.duration:
            return 0.0
        return sum(w.waiting for w in used) / (len(used) * self.duration)
