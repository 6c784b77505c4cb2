"""A task, data and a machine, set up once for many runs that share programs."""

import copy
import math
import numbers
import os
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
    SimulatedClock,
    Trace,
)
from hetjax.report.history import History
from hetjax.run.executor import Executor, Inline, Pooled
from hetjax.run.forms import form_of_table
from hetjax.run.held_out import FEW, num_held_out, split_off
from hetjax.run.job import ON_LOSS, ON_NAN, Job
from hetjax.run.local import LocalMachine
from hetjax.run.loop import Loop
from hetjax.run.programs import Programs, evaluation_batches
from hetjax.run.progress import Progress
from hetjax.run.real import prepare
from hetjax.run.recorded import (
    check_calibration,
    check_same,
    digest,
    header,
    recorded_job,
)
from hetjax.run.steps import Steps
from hetjax.schedule.rates import check_rate
from hetjax.strategies.types import Strategy
from hetjax.task.types import Task


class Bench:
    """Runs strategies with seeds; what they have in common is compiled once."""

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
        if isinstance(machine, Machine):
            check_calibration(machine, task)
            if trace is not None:
                raise ValueError(
                    f"trace={str(trace)!r}: only real runs are recorded, not one on "
                    f"the simulated machine {machine.name!r}"
                )
        if on_nan is not None and on_nan not in ON_NAN:
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
        self.programs = Programs(task)
        self._form: str | None = None
        self._shapes = data.train  # what the buckets of batches are made for
        self._test = evaluation_batches(data.test, data.num_classes)

    @property
    def real(self) -> bool:
        """Are the seconds real ones?"""
        return isinstance(self.machine, LocalMachine)

    def at(self, machine: Machine | LocalMachine | Trace) -> "Bench":
        """The same bench with another machine; compiled programs are shared."""
        other = copy.copy(self)
        other.machine = machine
        return other

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
        try:
            history = loop.run()
            if isinstance(loop.clock, Recorder):
                end = {"stopped": history.stopped, "params": digest(history.params)}
                loop.clock.ends(end)
        finally:
            if isinstance(loop.clock, Recorder):
                loop.clock.close()
        # a run that ended early leaves the rest of its seconds to the bar
        bar.skip(self._instants()[-1] - last)
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
            threads = 1
            if device.platform == "cpu" and cores() > 1:
                # one more than cores: it has the next batches ready
                threads = min(len(clock.workers), cores() + 1)

            def executor(steps: Steps) -> Executor:
                run = partial(run_all, steps)
                return Pooled(run, threads) if threads > 1 else Inline(run)

            job = job._replace(executor=executor)
            loop = Loop(name, strategy, job, clock, on_point)
            loop.history.forms = {device.device_kind: self._form}
        return loop

    def _instants(self) -> tuple[float, ...]:
        """When the model is evaluated: as it was, where a trace is the machine."""
        if isinstance(self.machine, Trace):
            return tuple(self.machine.header["instants"])
        return self.instants

    def job(self, strategy: Strategy, seed: int) -> Job:
        """What a run of the strategy is given, before its machine has its say."""
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
            instants=self._instants(),
            seed=seed,
            on_nan=self._on_nan or ("restart" if self.real else "stop"),
            on_loss=self._on_loss,
        )


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


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
