"""One run: a task, data, a machine and a strategy in, a history out."""

import copy
import math
import numbers
from collections.abc import Callable

import scipy.sparse as sp

from hetjax import local
from hetjax.data.batching import make_buckets
from hetjax.data.dataset import Dataset
from hetjax.machine import Machine, SimulatedClock
from hetjax.report.history import History
from hetjax.run.held_out import FEW, num_held_out, split_off
from hetjax.run.job import Job
from hetjax.run.loop import Loop
from hetjax.run.programs import Programs, evaluation_batches
from hetjax.run.progress import Progress
from hetjax.schedule.rates import check_rate
from hetjax.strategies.types import Strategy
from hetjax.task.types import Task


def train(
    task: Task,
    data: Dataset,
    machine: Machine,
    strategy: Strategy,
    *,
    seconds: float,
    seed: int = 0,
    points: int = 50,
    stop_at: float | None = None,
    epochs: float | None = None,
    on_point: Callable[[dict[str, float]], object] | None = None,
    progress: bool = True,
) -> History:
    """Train one model with one strategy for `seconds` of the machine's clock.

    The test split is evaluated at the start and at `points` instants, evenly spaced
    (never charged to the clock); `on_point` is called with each: {"seconds",
    "updates", "examples", "loss", metrics...}. `stop_at` ends the run once the main
    metric reaches it, `epochs` once so many passes over the training data are done, at
    the first evaluation that finds it so. Ctrl-C ends it too; what was measured is
    returned. `seed` sets the initial parameters, the order of the examples and the
    machine's noise.

    The history holds the points, each worker's time, and the final model: `params`,
    `model_state`, and `model`, the user's own module with both put back.
    Errors: ValueError for a request that cannot be meant, before anything is compiled.
    """
    bench = Bench(task, data, machine, seconds=seconds, points=points)
    bar = Progress(seconds, shown=progress)
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


class Bench:
    """A task, data and a machine, set up once for many runs that share programs."""

    def __init__(
        self,
        task: Task,
        data: Dataset,
        machine: Machine,
        *,
        seconds: float,
        points: int,
    ):
        """Checks everything that can be checked before the first compilation."""
        if not (seconds > 0 and math.isfinite(seconds)):
            raise ValueError(f"seconds={seconds}: give a finite number above 0")
        if not (isinstance(points, numbers.Integral) and points >= 1):
            raise ValueError(f"points={points}: give a whole number, at least 1")
        if not isinstance(machine, Machine):
            raise ValueError(
                f"machine is {machine!r}: give a Machine, such as machine.preset(...)"
            )
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
        clock = SimulatedClock(
            self.machine, seed=seed, nonzeros_per_example=_nonzeros(self.data)
        )
        history = Loop(name, strategy, self._job(strategy, seed), clock, each).run()
        # a run that ended early leaves the rest of its seconds to the bar
        bar.skip(self.instants[-1] - last)
        return history

    def _job(self, strategy: Strategy, seed: int) -> Job:
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


def _nonzeros(data: Dataset) -> float:
    """Mean non-zeros of an example's sparse input, 0 for dense ones."""
    x = data.train.x
    return x.nnz / x.shape[0] if sp.issparse(x) else 0.0
