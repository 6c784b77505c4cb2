"""One run: a task, data, a machine and a strategy in, a history out."""

import copy
import math
import numbers
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import scipy.sparse as sp

from hetjax import local
from hetjax.data.batching import make_buckets
from hetjax.data.dataset import Dataset
from hetjax.machine import (
    Machine,
    RecordedClock,
    Recorder,
    Recording,
    SimulatedClock,
    Trace,
)
from hetjax.report.history import History
from hetjax.run.executor import Inline
from hetjax.run.forms import form_of_table
from hetjax.run.held_out import FEW, num_held_out, split_off
from hetjax.run.job import ON_LOSS, ON_NAN, Job
from hetjax.run.local import LocalMachine
from hetjax.run.loop import Loop
from hetjax.run.programs import Programs, evaluation_batches
from hetjax.run.progress import Progress
from hetjax.run.real import prepare
from hetjax.run.replay import (
    as_trace,
    check_same,
    digest,
    header,
    missing_kinds,
    recorded_job,
    recorded_strategy,
)
from hetjax.run.steps import Steps
from hetjax.schedule.rates import check_rate
from hetjax.strategies.types import Strategy
from hetjax.task.types import Task


def train(
    task: Task,
    data: Dataset,
    machine: Machine | LocalMachine,
    strategy: Strategy,
    *,
    seconds: float,
    seed: int = 0,
    points: int = 50,
    stop_at: float | None = None,
    epochs: float | None = None,
    on_point: Callable[[dict[str, float]], object] | None = None,
    on_nan: str | None = None,
    on_loss: str = "go_on",
    trace: str | Path | None = None,
    progress: bool = True,
) -> History:
    """Train one model with one strategy for `seconds` of the machine's clock.

    `machine` is simulated (`machine.preset`, a file) or real (`local_machine`): then
    the seconds are real ones, workers compute in threads of their own, and everything
    is compiled before the clock starts.

    The test split is evaluated at the start and at `points` instants, evenly spaced
    (never charged to the clock); `on_point` is called with each: {"seconds",
    "updates", "examples", "loss", metrics...}. `stop_at` ends the run once the main
    metric reaches it, `epochs` once so many passes over the training data are done, at
    the first evaluation that finds it so. Ctrl-C ends it too; what was measured is
    returned. `seed` sets the initial parameters, the order of the examples and the
    machine's noise.

    A replica that is not finite any more stops the run (on_nan="stop", the default on
    simulated machines), or is kept out of the merge, counted, and begins anew from the
    centre ("restart", the default on real ones). When a worker is lost the run goes on
    without it (on_loss="go_on") or stops ("stop").

    A real run is recorded, in the file `trace` or one of its own: `history.trace`,
    which `replay` runs again.

    The history holds the points, each worker's time, and the final model: `params`,
    `model_state`, and `model`, the user's own module with both put back.
    Errors: ValueError for a request that cannot be meant, before anything is compiled.
    """
    bench = Bench(
        task,
        data,
        machine,
        seconds=seconds,
        points=points,
        on_nan=on_nan,
        on_loss=on_loss,
        trace=trace,
    )
    bar = Progress(seconds, shown=progress, real=bench.real)
    try:
        return bench.run(
            strategy.name,
            strategy,
            seed,
            bar,
            stop_at=stop_at,
            epochs=epochs,
            on_point=on_point,
        )
    finally:
        bar.close()


def replay(
    trace: Trace | Recording | str | Path,
    task: Task | None = None,
    data: Dataset | None = None,
    strategy: Strategy | None = None,
    *,
    progress: bool = True,
) -> History:
    """Run a recorded run again, event by event, on the virtual clock.

    `trace` is a `history.trace`, a file, or a `machine.Trace`. What a file cannot hold,
    the task and the data, must be given and be the same; the strategy, where its
    settings are not all plain. On the same kinds of device the parameters are the same
    bit for bit (on CUDA with `--xla_gpu_deterministic_ops=true` in XLA_FLAGS), and
    `history.replayed` says whether they are. Kinds of device that are not here are
    replaced by JAX's default device: then numbers agree to rounding, about 1e-5 of a
    parameter after a hundred steps.

    Errors: ValueError for a damaged trace, or what was not recorded in it.
    """
    recorded = as_trace(trace)
    if isinstance(trace, Recording) and trace.context:
        known: tuple[Task, Dataset, Strategy] = trace.context
        task, data = task or known[0], data or known[1]
        strategy = strategy or known[2]
    if task is None or data is None:
        raise ValueError("replay: a trace in a file needs its task and data: give both")
    strategy = strategy or recorded_strategy(recorded)
    instants = recorded.header["instants"]
    bench = Bench(task, data, recorded, seconds=instants[-1], points=1)
    bar = Progress(instants[-1], shown=progress)
    try:
        name = recorded.header.get("name", strategy.name)
        history = bench.run(name, strategy, recorded.header["seed"], bar)
    finally:
        bar.close()
    same = digest(history.params) == recorded.end.get("params")
    history.replayed = "equal" if same else "other parameters than recorded"
    kinds = missing_kinds(recorded)
    if kinds and not same:
        history.replayed += f": there is no {', '.join(kinds)} here"
    return history


class Bench:
    """A task, data and a machine, set up once for many runs that share programs."""

    def __init__(
        self,
        task: Task,
        data: Dataset,
        machine: Machine | LocalMachine | Trace,
        *,
        seconds: float,
        points: int,
        on_nan: str | None = None,
        on_loss: str = "go_on",
        trace: str | Path | None = None,
    ):
        """Checks everything that can be checked before the first compilation."""
        if not (seconds > 0 and math.isfinite(seconds)):
            raise ValueError(f"seconds={seconds}: give a finite number above 0")
        if not (isinstance(points, numbers.Integral) and points >= 1):
            raise ValueError(f"points={points}: give a whole number, at least 1")
        if not isinstance(machine, Machine | LocalMachine | Trace):
            raise ValueError(
                f"machine is {machine!r}: give a Machine, such as machine.preset(...), "
                "or local_machine()"
            )
        self.real = isinstance(machine, LocalMachine)
        on_nan = on_nan or ("restart" if self.real else "stop")
        if on_nan not in ON_NAN:
            raise ValueError(f"on_nan={on_nan!r}: choose one of {ON_NAN}")
        if on_loss not in ON_LOSS:
            raise ValueError(f"on_loss={on_loss!r}: choose one of {ON_LOSS}")
        self._on_nan, self._on_loss = on_nan, on_loss
        self.trace = trace  # the file of the next real run's, or one of its own
        for name, split in (("training", data.train), ("test", data.test)):
            if not len(split):
                raise ValueError(f"the {name} split of {data.name} has no examples")
            if data.multilabel and not split.y.nnz:
                raise ValueError(
                    f"no row of the {name} split of {data.name} has a label"
                )
        self.data, self.machine = data, machine
        # rounding must not move the end: seconds * 3 / 3 may be another number
        before = tuple(seconds * k / points for k in range(points))
        self.instants = (*before, seconds)
        if isinstance(machine, Trace):
            self.instants = tuple(machine.header["instants"])
        self.programs = Programs(task)
        self._form: str | None = None
        self._shapes = data.train  # what the buckets of batches are made for
        self._test = evaluation_batches(data.test, data.num_classes)

    def on(self, data: Dataset) -> "Bench":
        """The same bench with other splits; batches keep their shapes."""
        other = copy.copy(self)
        other.data = data
        other._test = evaluation_batches(data.test, data.num_classes)
        return other

    def run(
        self,
        name: str,
        strategy: Strategy,
        seed: int,
        bar: Progress,
        *,
        stop_at: float | None = None,
        epochs: float | None = None,
        on_point: Callable[[dict[str, float]], object] | None = None,
    ) -> History:
        """One run of a strategy with a seed; the bar advances by its seconds."""
        check_seed(seed)
        check_strategy(name, strategy, len(self.data.train))
        metric = self.programs.task.metric
        limit = math.inf if epochs is None else epochs * len(self.data.train)
        last = 0.0

        def each(point: dict[str, float]) -> bool:
            nonlocal last
            bar.advance(point["seconds"] - last, point, metric)
            last = point["seconds"]
            if on_point:
                on_point(point)
            reached = stop_at is not None and point[metric] >= stop_at
            return reached or point["examples"] >= limit

        bar.begin(name)
        loop = self._loop(name, strategy, seed, each)
        history = loop.run()
        if isinstance(loop.clock, Recorder):
            loop.clock.close(
                {"stopped": history.stopped, "params": digest(history.params)}
            )
        # a run that ended early leaves the rest of its seconds to the bar
        bar.skip(self.instants[-1] - last)
        return history

    def _loop(
        self,
        name: str,
        strategy: Strategy,
        seed: int,
        on_point: Callable[[dict[str, float]], bool],
    ) -> Loop:
        """The loop of a run, on a clock of the machine's kind."""
        job = self.job(strategy, seed)
        if isinstance(self.machine, Trace):
            check_same(self.machine, strategy, self.programs.task, self.data)
            job = recorded_job(self.machine, job)
            loop = Loop(name, strategy, job, RecordedClock(self.machine), on_point)
            loop.history.forms = self.machine.header["forms"]
        elif isinstance(self.machine, LocalMachine):
            job, clock, forms, nodes = prepare(self.machine, strategy, job)
            slowdowns = [worker.slowdown for worker in self.machine.workers]
            about = header(name, strategy, job, self.data, forms, nodes, slowdowns)
            recorder = Recorder(clock, about, self.trace)
            recorder.recording.context = (self.programs.task, self.data, strategy)
            loop = Loop(name, strategy, job, recorder, on_point)
            loop.history.real = True
            loop.history.forms = forms
            loop.history.trace = recorder.recording
        else:
            nonzeros = nonzeros_per_example(self.data)
            clock = SimulatedClock(
                self.machine, seed=seed, nonzeros_per_example=nonzeros
            )
            (device, *_) = jax.devices()
            if self._form is None:  # one task, one table entry
                self._form = form_of_table(job, device.platform)
            run_all = partial(Steps.run, form=self._form)
            job = job._replace(executor=lambda steps: Inline(partial(run_all, steps)))
            loop = Loop(name, strategy, job, clock, on_point)
            loop.history.forms = {device.device_kind: self._form}
        return loop

    def job(self, strategy: Strategy, seed: int) -> Job:
        train, held = self.data.train, None
        if any(merge.measures for merge in strategy.merges):
            train, held = split_off(train, seed, FEW)
        held_out = evaluation_batches(held, self.data.num_classes) if held else []
        return Job(
            programs=self.programs,
            train=train,
            buckets=make_buckets(self._shapes, strategy.b_max),
            test=self._test,
            num_test=len(self.data.test),
            held_out=held_out,
            num_held_out=len(held) if held else 0,
            instants=self.instants,
            seed=seed,
            on_nan=self._on_nan,
            on_loss=self._on_loss,
        )


def check_seed(seed: int) -> None:
    """A ValueError for a seed that JAX would not take as it is."""
    if not (isinstance(seed, numbers.Integral) and 0 <= int(seed) < 2**32):
        raise ValueError(f"seed={seed!r}: give a whole number from 0 to 2**32 - 1")


def check_strategy(name: str, strategy: Strategy, num_examples: int) -> None:
    """A ValueError for settings that this data cannot serve."""
    if not isinstance(strategy, Strategy):
        raise ValueError(f"{name} is a {type(strategy).__name__}, not a Strategy")
    if strategy.b_max != int(strategy.b_max):
        raise ValueError(f"{name}: b_max={strategy.b_max}: give a whole number")
    if any(merge.measures for merge in strategy.merges):
        num_examples -= num_held_out(num_examples, FEW)
    if strategy.b_max > num_examples:
        raise ValueError(
            f"{name}: a batch of {strategy.b_max} is larger than the {num_examples} "
            "examples to train on; give a smaller batch size"
        )
    try:
        first = strategy.merges[0]
        local.check_slots(strategy.local, first.needs, first.restarts)
        check_rate(strategy.rate)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def nonzeros_per_example(data: Dataset) -> float:
    """Mean non-zeros of an example's sparse input, 0 for dense ones."""
    x = data.train.x
    return x.nnz / x.shape[0] if sp.issparse(x) else 0.0
