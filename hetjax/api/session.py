"""A task, data and a machine, set up once for many runs that share programs."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from hetjax.api.argument_checks import check_seed
from hetjax.api.progress import ProgressBar
from hetjax.api.request_checks import check_strategy
from hetjax.api.run_folder import (
    RunFolder,
    check_same,
    describe_run,
    history_of,
    is_finished,
    open_run_folder,
    own_folder,
    values_of,
)
from hetjax.callbacks import Callbacks, OnEval
from hetjax.checkpoint.checkpoint_folder import FoundCheckpoint, find
from hetjax.checkpoint.checkpoint_manager import CheckpointManager
from hetjax.checkpoint.settings import Checkpoint
from hetjax.data.batching import Batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.data.held_out import FEW, part_of, split_off
from hetjax.engine.interruption import interruptible
from hetjax.engine.job import Job
from hetjax.engine.loop import Loop
from hetjax.engine.placement import Device
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.programs.coupling import check_uncoupled
from hetjax.engine.programs.metrics import evaluation_batches, numbers_per_example
from hetjax.engine.programs.sharing import programs_of, shared_parts
from hetjax.engine.protocols import Runtime
from hetjax.engine.records.history import EPOCHS_DONE, History
from hetjax.metric_mode import reaches
from hetjax.processes.agreement import is_first
from hetjax.runtimes.compiled.player_choice import with_same_player
from hetjax.runtimes.openers import is_real_machine, open_runtime
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task
from hetjax.tracing.fingerprint import data_fingerprint, digest
from hetjax.tracing.trace import Recording


class Session:
    """Runs strategies with seeds; programs that runs share are compiled once."""

    def __init__(
        self,
        task: Task,
        data: Dataset,
        machine: Any,
        *,
        seconds: float,
        num_evals: int,
        eval_examples: int | None = None,
        instants: Sequence[float] | None = None,
        on_nan: str | None = None,
        on_lost_worker: str = "continue",
        trace: str | Path | None = None,
        devices: Sequence[Device | str] | None = None,
        compiled: bool | str = "auto",
        data_on: str = "auto",
        schedule_seed: int | None = None,
    ):
        """Evaluate at `instants` [s], or at 0 s and then `num_evals` times, evenly.

        With `eval_examples`, on so many examples of the test split, and on all of it at
        the end.

        The arguments were checked by `hetjax.api.request_checks`.
        """
        self._on_nan, self._on_lost_worker = on_nan, on_lost_worker
        self.trace = trace  # file of the next real run's trace; None: a temporary one
        self.data, self.machine = data, machine
        self._devices = devices  # for simulated workers
        self._compiled, self._data_on = compiled, data_on
        self._schedule_seed = schedule_seed
        self._on_devices: dict[Any, Any] = {}
        self._splits: dict[Any, tuple[Split, Split]] = {}  # by data and seed
        self.instants = tuple(instants or _evenly(seconds, num_evals))
        self.programs = programs_of(task)
        self._shapes = data.train  # the split whose shapes the buckets are made for
        self._eval_examples = eval_examples
        self._tests = self._evaluated(data)
        self._about_data = _described_once(data)

    @property
    def real(self) -> bool:
        """Is the machine real, so that its seconds are wall-clock time?"""
        return is_real_machine(self.machine)

    def at(self, machine: Any) -> "Session":
        """Return the session with another machine; compiled programs are shared."""
        other = copy.copy(self)
        other.machine = machine
        return other

    def lasting(self, seconds: float) -> "Session":
        """Return the session with as many evaluations within other seconds."""
        other = copy.copy(self)
        other.instants = _evenly(seconds, len(self.instants) - 1)
        return other

    def on(self, data: Dataset) -> "Session":
        """Return the session with other splits; batches keep their shapes.

        Of a large test split only the examples of evaluations are left.
        """
        other = copy.copy(self)
        data = replace(data, test=part_of(data.test, self._eval_examples))
        other._splits = {}
        other.data, other._about_data = data, _described_once(data)
        other._tests = other._evaluated(data)
        return other

    def _evaluated(self, data: Dataset) -> dict[str, Any]:
        """The fields of a job about evaluations on the test split."""
        batches = partial(self._batches, num_classes=data.num_classes)
        part = part_of(data.test, self._eval_examples)
        whole = [] if part is data.test else batches(data.test)
        return {
            "test": batches(part),
            "num_test": len(part),
            "whole_test": whole,
            "num_whole_test": len(data.test),
        }

    def _batches(self, split: Split, num_classes: int) -> Sequence[Batch]:
        """Evaluation batches; an output layer in parts needs no array of all scores."""
        exact = self.programs.task.batch_coupled
        if self.programs.task.head is not None:
            return evaluation_batches(split, 1, exact=exact)
        numbers = num_classes or numbers_per_example(self.programs, split)
        return evaluation_batches(split, numbers, exact=exact)

    def run(
        self,
        name: str,
        strategy: Strategy,
        seed: int,
        bar: ProgressBar,
        *,
        target: float | None = None,
        epochs: float | None = None,
        on_eval: OnEval | Sequence[OnEval] | None = None,
        on_error: str = "raise",
        checkpoint: Checkpoint | None = None,
        resume: str = "auto",
    ) -> History:
        """Run a strategy with a seed; the bar advances by the run's seconds.

        An exception that ends the run is raised with the history as its attribute
        `history`, or (on_error="keep") stored in the history. With a checkpoint the
        run is kept in its folder, and continued if one is there.
        """
        check_seed(seed)
        check_strategy(name, strategy, len(self.data.train))
        strategy = shared_parts(self.programs, strategy)
        job = self.job(name, strategy, seed)
        bar.begin(name, self.instants[-1])
        run = partial(
            self._run,
            strategy=strategy,
            bar=bar,
            target=target,
            epochs=epochs,
            on_eval=on_eval,
        )
        if checkpoint is None:
            history = run(job)
        else:
            about = self.described(strategy, job, target=target, epochs=epochs)
            with open_run_folder(checkpoint, resume, about) as folder:
                if folder.found is not None and folder.found.finished:
                    bar.skip(self.instants[-1])
                    history = self._finished(folder.found, folder.trace, strategy)
                else:
                    job = job._replace(
                        keeps_best=True,
                        usual_trace=folder.trace,
                        continues=folder.found is not None,
                    )
                    if folder.found is not None:
                        _, kind = folder.found.values["run"]["machine"]
                        job = with_same_player(job, kind)
                    history = run(job, folder)
                    _keep_end(history, folder.keeper)
        error = history.error
        if error is not None and on_error == "raise":
            error.history = history  # pyright: ignore[reportAttributeAccessIssue]
            error.add_note("the history up to this error is its attribute `history`")
            raise error
        return history

    def check_kept(
        self,
        name: str,
        strategy: Strategy,
        seed: int,
        *,
        epochs: float | None = None,
        checkpoint: Checkpoint | None = None,
        resume: str = "auto",
    ) -> None:
        """Raise an OtherRun if `run` would find another run in its folder."""
        if checkpoint is None or resume == "never":
            return
        folder = own_folder(checkpoint.folder)
        found = find(folder, about_alone=True)
        if found is not None:
            job = self.job(name, strategy, seed)
            about = self.described(strategy, job, epochs=epochs)
            check_same(folder, found.about, about)

    def schedule_of(self, seed: int) -> int:
        """The seed of the schedule of a run with this seed."""
        return seed if self._schedule_seed is None else self._schedule_seed

    def described(
        self,
        strategy: Strategy,
        job: Job,
        *,
        target: float | None = None,
        epochs: float | None = None,
    ) -> dict[str, Any]:
        """What a run is made from; the data, which it reads whole, are read once."""
        about = self._about_data()
        return describe_run(
            strategy, job, self.machine, about, target=target, epochs=epochs
        )

    def _finished(
        self, found: FoundCheckpoint, trace: Path, strategy: Strategy
    ) -> History:
        """The history of a run that is over, as it was kept."""
        task = self.programs.task
        history = history_of(found.values, task)
        if trace.exists():
            history.trace = Recording(trace, continues=True)
            history.trace.context = (task, self.data, strategy)
            history.trace.close()
        return history

    def _run(
        self,
        job: Job,
        folder: RunFolder | None = None,
        *,
        strategy: Strategy,
        bar: ProgressBar,
        target: float | None,
        epochs: float | None,
        on_eval: OnEval | Sequence[OnEval] | None,
    ) -> History:
        """Run a job, or go on with it, to its end, an interruption or an error."""
        task = self.programs.task
        metric = task.metric
        callbacks = Callbacks(on_eval, writes=is_first())
        limit = math.inf if epochs is None else epochs * len(self.data.train)
        saver, saved = (folder.keeper, folder.saved) if folder else (None, None)
        last = 0.0

        def advance(point: dict[str, float], *, ran: bool) -> None:
            nonlocal last
            bar.advance(point["seconds"] - last, point, metric, ran=ran)
            last = point["seconds"]

        def each(point: dict[str, float]) -> str:
            advance(point, ran=True)
            asked = callbacks(point)
            if target is not None and reaches(point[metric], target, task.mode):
                return f"{metric} has reached {target:g}"
            if point["examples"] >= limit:
                return f"{epochs:g} {EPOCHS_DONE}"
            return asked

        before = folder.evals if folder else []  # they were made before
        for point in before:
            advance(point, ran=False)
        recording = None
        try:
            callbacks.begin(before)
            runtime = self.opened(strategy, job, kept=folder is not None)
            recording = runtime.recorder and runtime.recorder.recording
            loop = Loop(
                job.name, strategy, job, runtime, each, saver=saver, saved=saved
            )
            with bar.following(lambda: runtime.clock.now):
                history = loop.run()
            if recording is not None and history.error is None:
                params = digest(history.params)
                recording.end(stopped=history.stopped, params=params)
        finally:
            if recording is not None:
                recording.close()
            failed = callbacks.close()
        history.error = history.error or failed
        # one that ended early still moves the bar by all of its seconds
        if not history.interrupted:
            bar.skip(self.instants[-1] - last)
        return history

    def opened(self, strategy: Strategy, job: Job, *, kept: bool = False) -> Runtime:
        """Return the runtime of a run, prepared; a KeyboardInterrupt after a signal."""
        with interruptible(kept=kept) as pressed:
            with job.compilations.counting(), job.compilations.of("init"):
                check_uncoupled(self.programs, self.data)
            job.compilations.interrupted = pressed
            runtime = open_runtime(self.machine, strategy, job)
        job.compilations.interrupted = lambda: ""
        if pressed():
            error = KeyboardInterrupt(pressed())
            runtime.leave(error)
            runtime.player.close()
            if runtime.recorder is not None:
                runtime.recorder.recording.close()
            raise error
        return runtime

    def _split_off(self, seed: int) -> tuple[Split, Split]:
        """The training split without some examples, and these: once for each seed."""
        key = id(self.data.train), seed
        if key not in self._splits:
            self._splits[key] = split_off(self.data.train, seed, FEW)
        return self._splits[key]

    def job(self, name: str, strategy: Strategy, seed: int) -> Job:
        """Return the job of one run: its data, batches, programs and settings."""
        train, held = self.data.train, None
        if any(merge.required_metrics for merge in strategy.merges):
            train, held = self._split_off(self.schedule_of(seed))
        held_out = self._batches(held, self.data.num_classes) if held else []
        return Job(
            name=name,
            data=self.data,
            programs=self.programs,
            compilations=Compilations(),
            train=train,
            buckets=make_buckets(self._shapes, strategy.batch_size),
            **self._tests,
            held_out=held_out,
            num_held_out=len(held) if held else 0,
            instants=self.instants,
            seed=seed,
            on_nan=self._on_nan or ("reset" if self.real else "stop"),
            on_lost_worker=self._on_lost_worker,
            trace=self.trace,
            devices=self._devices,
            compiled=self._compiled,
            data_on=self._data_on,
            on_devices=self._on_devices,
            schedule_seed=self._schedule_seed,
        )


def _described_once(data: Dataset) -> Callable[[], dict[str, Any]]:
    """Describes the data when it is first called; copies of a session share it."""
    return cache(lambda: data_fingerprint(data))


def _evenly(seconds: float, num_evals: int) -> tuple[float, ...]:
    """The start, and so many instants until the end [s]."""
    # rounding must not move the end: seconds * 3 / 3 may differ from seconds
    return (*(seconds * k / num_evals for k in range(num_evals)), seconds)


def _keep_end(history: History, keeper: CheckpointManager) -> None:
    """Keep the end of a run that is over for good; note a signal that comes meanwhile.

    What is being written is not lost by it.
    """
    with interruptible(kept=True) as pressed:
        if keeper.all_agree(is_finished(history) and not keeper.problem):
            keeper.finish(values_of(history))
        keeper.join()
    history.signal = history.signal or pressed()
