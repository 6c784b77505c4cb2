"""`Session`: a task, data and a machine, set up once for runs that share programs."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.run_folder import (
    RunFolder,
    check_same,
    describe_run,
    history_of,
    is_finished,
    open_run_folder,
    process_folder,
    values_of,
)
from hetjax.api.strategy_checks import (
    check_fits,
    check_strategies,
    check_strategy,
)
from hetjax.arguments import checked
from hetjax.callbacks import Callbacks, OnEval
from hetjax.checkpoint.checkpoint_files import FoundCheckpoint, find
from hetjax.checkpoint.checkpoint_manager import CheckpointManager
from hetjax.checkpoint.settings import Checkpoint
from hetjax.data.batching import make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.data.dataset_checks import check_dataset
from hetjax.data.held_out import FEW, fixed_subset, split_off
from hetjax.engine.interruption import interruptible
from hetjax.engine.job import Job
from hetjax.engine.loop import Loop
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.programs.coupling import check_uncoupled
from hetjax.engine.programs.evaluation_batches import batches_of, evaluation_sets
from hetjax.engine.programs.sharing import programs_of, shared_parts
from hetjax.engine.protocols import Runtime
from hetjax.engine.records.history import EPOCHS_DONE, History
from hetjax.metric_mode import reaches
from hetjax.processes.exchange import is_first
from hetjax.runtimes.compiled.player_choice import with_same_player
from hetjax.runtimes.openers import is_real_machine, open_runtime
from hetjax.strategies.types import Strategy
from hetjax.tasks.task_checks import check_task
from hetjax.tasks.types import Task
from hetjax.tracing.fingerprint import data_fingerprint, digest
from hetjax.tracing.stored_tape import StoredTape
from hetjax.tracing.trace import Recording


class Session:
    """Runs strategies with seeds; programs that runs share are compiled once."""

    @checked
    def __init__(self, task: Task, data: Dataset, machine: Any, config: RunConfig):
        """Check the task, the data and the machine; the config is already checked.

        With `eval_examples`, evaluations use that many examples of the test split, and
        the last model is also evaluated on the whole split.
        """
        check_dataset(data)
        config.check_machine(machine)
        self.data, self.machine, self.config = data, machine, config
        self._on_devices: dict[Any, Any] = {}
        self._splits: dict[Any, tuple[Split, Split]] = {}  # by data and seed
        self.programs = programs_of(task)
        self._shapes = data.train  # the buckets are made for its shapes
        # made once, by functions that do not refer to a session, which would be freed
        # late; its copies share them
        few = config.eval_examples
        self._tests = cache(partial(evaluation_sets, self.programs, data, few))
        self._about_data = cache(partial(data_fingerprint, data))

    def check_strategies(
        self, strategies: Any, num_examples: int | None = None
    ) -> None:
        """Raise a ValueError unless these are strategies that fit everything else.

        `num_examples` are left to train on, by default the whole training split.
        """
        task, data, machine = self.programs.task, self.data, self.machine
        left = len(data.train) if num_examples is None else num_examples
        check_strategies(strategies, left)
        for name, strategy in strategies.items():
            check_fits(name, strategy, task, data, machine)
        # last: the task's functions are traced, which takes a moment
        check_task(task, data, max(int(s.batch_size) for s in strategies.values()))

    @property
    def real(self) -> bool:
        """Whether the machine is real: its seconds are wall-clock time."""
        return is_real_machine(self.machine)

    def with_machine(self, machine: Any) -> "Session":
        """Return the session with another machine; compiled programs are shared."""
        self.config.check_machine(machine)
        other = copy.copy(self)
        other.machine = machine
        return other

    def with_seconds(self, seconds: float) -> "Session":
        """Return the session with other seconds and the same number of evaluations."""
        other = copy.copy(self)
        other.config = self.config.with_seconds(seconds)
        return other

    def with_data(self, data: Dataset) -> "Session":
        """Return the session with other splits, without the limits target and epochs.

        Batches have the same shapes as before. Of a large test split, only the
        `eval_examples` remain.
        """
        other = copy.copy(self)
        other.config = self.config.without_limits()
        data = replace(data, test=fixed_subset(data.test, self.config.eval_examples))
        other._splits = {}
        other.data, other._about_data = data, cache(partial(data_fingerprint, data))
        few = self.config.eval_examples
        other._tests = cache(partial(evaluation_sets, self.programs, data, few))
        return other

    def run(
        self,
        name: str,
        strategy: Strategy,
        seed: int,
        bar: ProgressBar,
        *,
        on_eval: OnEval | Sequence[OnEval] | None = None,
        on_error: str = "raise",
        trace: str | Path | None = None,
        checkpoint: Checkpoint | None = None,
        resume: str = "auto",
    ) -> History:
        """Run a strategy with a seed; the bar advances by the run's seconds.

        An exception that ends the run is raised with the history as its attribute
        `history`, or (on_error="keep") stored in the history. A real run is recorded in
        the file `trace`. With a checkpoint the run is saved in its folder, or continued
        from what is there.
        """
        check_strategy(name, strategy, len(self.data.train))
        strategy = shared_parts(self.programs, strategy)
        bar.begin(name, self.config.instants[-1])
        job = self.job(name, strategy, seed)._replace(trace=trace)
        run = partial(self._run, strategy=strategy, bar=bar, on_eval=on_eval)
        if checkpoint is None:
            history = run(job)
        else:
            about = self.described(strategy, job)
            with open_run_folder(checkpoint, resume, about) as folder:
                if folder.found is not None and folder.found.finished:
                    bar.finish()
                    history = self._finished(folder.found, folder.trace, strategy)
                else:
                    job = job._replace(
                        tracks_best=True,
                        default_trace=folder.trace,
                        continues=folder.found is not None,
                    )
                    if folder.found is not None:
                        played = folder.found.values["run"]["machine"]
                        job = with_same_player(job, played[1])
                    history = run(job, folder)
                    _save_end(history, folder.manager)
        error = history.error
        if error is not None and on_error == "raise":
            error.history = history  # pyright: ignore[reportAttributeAccessIssue]
            error.add_note("the history up to this error is its attribute `history`")
            raise error
        return history

    def check_resumable(
        self,
        name: str,
        strategy: Strategy,
        seed: int,
        *,
        checkpoint: Checkpoint | None = None,
        resume: str = "auto",
    ) -> None:
        """Raise an OtherRun if `run` would find another run in its folder."""
        if checkpoint is None or resume == "never":
            return
        folder = process_folder(checkpoint.folder)
        if (found := find(folder, about_alone=True)) is not None:
            about = self.described(strategy, self.job(name, strategy, seed))
            check_same(folder, found.about, about)

    def schedule_of(self, seed: int) -> int:
        """Return the seed of the schedule of a run with this seed."""
        given = self.config.schedule_seed
        return seed if given is None else given

    def described(self, strategy: Strategy, job: Job) -> dict[str, Any]:
        """Describe a run's settings; the first call fingerprints all data."""
        about, config = self._about_data(), self.config
        return describe_run(
            strategy,
            job,
            self.machine,
            about,
            target=config.target,
            epochs=config.epochs,
        )

    def _finished(
        self, found: FoundCheckpoint, trace: Path, strategy: Strategy
    ) -> History:
        """Return the saved history of a finished run."""
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
        on_eval: OnEval | Sequence[OnEval] | None,
    ) -> History:
        """Run a job, from its beginning or a snapshot, until it ends or fails."""
        task, target = self.programs.task, self.config.target
        epochs, metric = self.config.epochs, task.metric
        callbacks = Callbacks(on_eval, writes=is_first())
        limit = math.inf if epochs is None else epochs * len(self.data.train)
        manager, saved = (folder.manager, folder.saved) if folder else (None, None)

        def each(point: dict[str, float]) -> str:
            bar.advance(point["seconds"], point, metric)
            asked = callbacks(point)
            if target is not None and reaches(point[metric], target, task.mode):
                return f"{metric} has reached {target:g}"
            if point["examples"] >= limit:
                return f"{epochs:g} {EPOCHS_DONE}"
            return asked

        before = folder.evals if folder else []  # of a resumed run
        for point in before:
            bar.advance(point["seconds"], point, metric, ran=False)
        recorder = None
        try:
            callbacks.begin(before)
            runtime = self.opened(strategy, job, checkpointed=folder is not None)
            recorder = runtime.recorder
            clock, policy = runtime.clock, None
            if isinstance(clock, StoredTape):  # a replay decides as recorded
                policy = clock.policy(strategy.policy)
            loop = Loop(
                strategy,
                job,
                runtime,
                each,
                policy=policy,
                manager=manager,
                saved=saved,
            )
            with bar.following(lambda: clock.now):
                history = loop.run()
            if recorder is not None and history.error is None:
                params = digest(history.params)
                recorder.end(stopped=history.stopped, params=params)
        finally:
            if recorder is not None:
                recorder.close()
            failed = callbacks.close()
        history.error = history.error or failed
        # a run that ended early still moves the bar to its end
        if not history.interrupted:
            bar.finish()
        return history

    def opened(
        self, strategy: Strategy, job: Job, *, checkpointed: bool = False
    ) -> Runtime:
        """Return the prepared runtime of a run; a KeyboardInterrupt after a signal."""
        with interruptible(checkpointed=checkpointed) as pressed:
            with job.compilations.counting(), job.compilations.of("init"):
                check_uncoupled(self.programs, self.data)
            job.compilations.interrupted = pressed
            runtime = open_runtime(self.machine, strategy, job)
        job.compilations.interrupted = lambda: ""
        if pressed():
            error = KeyboardInterrupt(pressed())
            runtime.coordination.leave(error)
            runtime.player.close()
            if runtime.recorder is not None:
                runtime.recorder.close()
            raise error
        return runtime

    def _split_off(self, seed: int) -> tuple[Split, Split]:
        """Return the training split in two, the rest and held-out examples, by seed."""
        key = id(self.data.train), seed
        if key not in self._splits:
            self._splits[key] = split_off(self.data.train, seed, FEW)
        return self._splits[key]

    def job(self, name: str, strategy: Strategy, seed: int) -> Job:
        """Return the job of one run: its data, batches, programs and settings."""
        train, held, config = self.data.train, None, self.config
        if any(merge.required_metrics for merge in strategy.merges):
            train, held = self._split_off(self.schedule_of(seed))
        num_classes = self.data.num_classes
        held_out = batches_of(self.programs, held, num_classes) if held else []
        return Job(
            name=name,
            data=self.data,
            programs=self.programs,
            compilations=Compilations(),
            train=train,
            buckets=make_buckets(self._shapes, strategy.batch_size),
            **self._tests(),
            held_out=held_out,
            num_held_out=len(held) if held else 0,
            instants=config.instants,
            seed=seed,
            on_nan=config.on_nan or ("reset" if self.real else "stop"),
            on_lost_worker=config.on_lost_worker,
            devices=config.devices,
            compiled=config.compiled,
            data_on=config.data_on,
            on_devices=self._on_devices,
            schedule_seed=config.schedule_seed,
        )


def _save_end(history: History, manager: CheckpointManager) -> None:
    """Save the end of a finished run; note a signal that comes meanwhile.

    The signal does not interrupt a write in progress.
    """
    with interruptible(checkpointed=True) as pressed:
        if manager.all_agree(is_finished(history) and not manager.problem):
            manager.finish(values_of(history))
        manager.wait_for_writer()
    history.signal = history.signal or pressed()
