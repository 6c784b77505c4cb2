"""Checks of the arguments of the API's functions, before anything is compiled.

Each check raises a one-line ValueError that names the argument and says what to give.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hetjax import local
from hetjax.api.argument_checks import (
    check_callback,
    check_choice,
    check_epochs,
    check_eval_examples,
    check_folder,
    check_learning_rates,
    check_num_evals,
    check_path,
    check_rate,
    check_seconds,
    check_seed,
    check_target,
    shown,
)
from hetjax.api.run_folder import RESUME
from hetjax.checkpoint.settings import Checkpoint
from hetjax.data.dataset import Dataset
from hetjax.data.dataset_checks import check_dataset, is_real
from hetjax.data.held_out import FEW, num_held_out
from hetjax.engine.job import COMPILED, DATA_ON, ON_LOST_WORKER, ON_NAN
from hetjax.machine import Machine, RunEnded, SimulatedClock
from hetjax.merge.types import Merge
from hetjax.runtimes.devices import simulation_devices
from hetjax.runtimes.openers import check_machine, check_placement, is_real_machine
from hetjax.sampling import Sampler
from hetjax.schedule import Policy
from hetjax.schedule.action_checks import begin
from hetjax.strategies.custom_parts import check_custom_parts
from hetjax.strategies.types import Strategy
from hetjax.tasks.task_checks import check_task
from hetjax.tasks.types import Task

ON_ERROR = ("raise", "keep")  # what to do with an exception of a callback


def check_train(
    task: Any,
    data: Any,
    machine: Any,
    strategy: Any,
    *,
    seconds: Any,
    seed: Any,
    num_evals: Any,
    eval_examples: Any,
    target: Any,
    epochs: Any,
    on_eval: Any,
    on_error: Any,
    on_nan: Any,
    on_lost_worker: Any,
    trace: Any,
    devices: Any,
    compiled: Any,
    data_on: Any,
    schedule_seed: Any,
    resume: Any,
) -> None:
    """Raise a ValueError if an argument of `train` is not valid."""
    check_choice("resume", resume, RESUME)
    check_task_and_data(task, data)
    check_machine(machine)
    check_devices(devices, machine)
    check_compiled(compiled, data_on, machine)
    check_schedule_seed(schedule_seed, machine)
    check_path("trace", trace)
    if trace is not None and not is_real_machine(machine):
        raise ValueError(
            f"trace={str(trace)!r}: only real runs are recorded, not one on a "
            "simulated machine, which runs again to the bit; its history.log lists "
            "what happened"
        )
    name = getattr(strategy, "name", "strategy")
    check_strategy(name, strategy, len(data.train))
    check_fits(name, strategy, task, data, machine)
    check_placement(machine, {name: strategy}, recorded=trace is not None)
    check_seconds(seconds)
    check_seed(seed)
    check_num_evals(num_evals)
    check_eval_examples(eval_examples)
    check_target(target)
    check_epochs(epochs)
    check_callback("on_eval", on_eval, several=True)
    check_choice("on_error", on_error, ON_ERROR)
    check_choice("on_nan", on_nan, (None, *ON_NAN))
    check_choice("on_lost_worker", on_lost_worker, ON_LOST_WORKER)
    # last: the task's functions are traced, which takes a moment
    check_task(task, data, int(strategy.batch_size))


def check_compare(
    task: Any,
    data: Any,
    machine: Any,
    strategies: Any,
    *,
    seconds: Any,
    num_evals: Any,
    eval_examples: Any,
    epochs: Any,
    target: Any,
    learning_rates: Any,
    tune: Any,
    tunes: Sequence[str],
    traces: Any,
    devices: Any,
    compiled: Any,
    data_on: Any,
    schedule_seed: Any,
    on_history: Any,
    out: Any,
    every: Any,
    resume: Any,
) -> None:
    """Raise a ValueError if an argument of `compare` is not valid.

    The seeds are not checked here but by `seeds_of`.
    """
    check_task_and_data(task, data)
    check_machine(machine)
    check_devices(devices, machine)
    check_compiled(compiled, data_on, machine)
    check_schedule_seed(schedule_seed, machine)
    check_choice("tune", tune, tunes)
    check_learning_rates(learning_rates)
    num_examples = len(data.train)
    if len(learning_rates):
        num_examples -= num_held_out(num_examples)
    check_strategies(strategies, num_examples)
    for name, strategy in strategies.items():
        check_fits(name, strategy, task, data, machine)
        if len(learning_rates) and strategy.settings.get("learning_rate", 0) is None:
            raise ValueError(
                f"{name} has its learning rate in its optimizer, so that none of "
                "learning_rates can be chosen: build the optimizer with learning rate 1"
                " and give the strategy learning_rate="
            )
    check_placement(machine, strategies, recorded=traces is not None)
    check_seconds(seconds)
    check_num_evals(num_evals)
    check_eval_examples(eval_examples)
    check_target(target)
    check_epochs(epochs)
    check_folder("traces", traces)
    check_folder("out", out)
    check_choice("resume", resume, RESUME)
    _ = Checkpoint(out or ".", every=every)  # which checks `every`
    check_callback("on_history", on_history)
    # last: the task's functions are traced, which takes a moment
    check_task(task, data, max(int(s.batch_size) for s in strategies.values()))


def check_devices(devices: Any, machine: Any) -> None:
    """Raise a ValueError unless `devices` is None, or fits a simulated machine."""
    if devices is None:
        return
    if not isinstance(machine, Machine):
        raise ValueError(
            f"devices={devices!r}: only simulated workers are spread over devices; "
            "give a real machine its own, as local_machine(devices)"
        )
    simulation_devices(devices)


def check_compiled(compiled: Any, data_on: Any, machine: Any) -> None:
    """Raise a ValueError unless these fit the machine: real ones compile no runs."""
    if not isinstance(compiled, bool):
        choices = COMPILED if isinstance(compiled, str) else ()  # 1 equals True
        if compiled not in choices:
            known = ", ".join(map(str, COMPILED))
            raise ValueError(f"compiled={compiled!r}: choose one of {known}")
    check_choice("data_on", data_on, DATA_ON)
    if compiled is True and not isinstance(machine, Machine):
        raise ValueError(
            "compiled=True: only runs on a simulated machine are compiled: leave it out"
        )
    if data_on != "auto" and not isinstance(machine, Machine):
        raise ValueError(
            f"data_on={data_on!r}: it says where a simulated machine has its training "
            "data: leave it out"
        )


def check_schedule_seed(schedule_seed: Any, machine: Any) -> None:
    """Raise a ValueError unless this is None, or a seed for a simulated machine."""
    if schedule_seed is None:
        return
    check_seed(schedule_seed, "schedule_seed")
    if not isinstance(machine, Machine):
        raise ValueError(
            f"schedule_seed={schedule_seed!r}: real machines have no schedule of a "
            "seed: leave it out"
        )


def check_replay(task: Any, data: Any, strategy: Any) -> None:
    """A ValueError for a task, data or a strategy that no recorded run can have had."""
    check_task_and_data(task, data)
    check_strategy(getattr(strategy, "name", "strategy"), strategy, len(data.train))
    check_task(task, data, int(strategy.batch_size))


def check_advise(
    task: Any,
    data: Any,
    machine: Any,
    strategies: Any,
    *,
    seconds: Any,
    target: Any,
    seed: Any,
) -> None:
    """A ValueError for anything in a call of `advise` that cannot be meant."""
    check_task_and_data(task, data)
    if not isinstance(machine, Machine) and not is_real_machine(machine):
        raise ValueError(
            f"machine is {shown(machine)}: give a simulated machine, or a local one"
        )
    check_strategies(strategies, len(data.train))
    check_seconds(seconds)
    for name, strategy in strategies.items():
        check_fits(name, strategy, task, data, machine)
    check_target(target)
    check_seed(seed)
    check_task(task, data, max(int(s.batch_size) for s in strategies.values()))


def check_plan(task: Any, data: Any, machine: Any, strategies: Any) -> None:
    """A ValueError for anything in a call of `plan` that cannot be meant."""
    check_task_and_data(task, data)
    if not isinstance(machine, Machine):
        raise ValueError(
            f"machine is {shown(machine)}: give a simulated machine, whose virtual "
            "time is planned; this host's is planned beside it"
        )
    check_strategies(strategies, len(data.train))
    for name, strategy in strategies.items():
        check_fits(name, strategy, task, data, machine)
    check_task(task, data, max(int(s.batch_size) for s in strategies.values()))


def check_task_and_data(task: Any, data: Any) -> None:
    """Raise a ValueError unless `task` is a Task and `data` a valid Dataset."""
    if not isinstance(task, Task):
        raise ValueError(
            f"task is {shown(task)}: give a Task, such as hetjax.classification(...)"
        )
    if not isinstance(data, Dataset):
        raise ValueError(
            f"data is {shown(data)}: give a Dataset, such as hetjax.data.digits()"
        )
    check_dataset(data)


def check_strategies(strategies: Any, num_examples: int) -> None:
    """Raise a ValueError unless this maps names to strategies that fit the data."""
    if not isinstance(strategies, Mapping):
        raise ValueError("strategies must be a dictionary: a name for each strategy")
    if not strategies:
        raise ValueError("there are no strategies to compare: give at least one")
    for name, strategy in strategies.items():
        if not isinstance(name, str):
            raise ValueError(f"strategies has the key {name!r}: give names, as strings")
        check_strategy(name, strategy, num_examples)


def check_fits(
    name: str, strategy: Strategy, task: Task, data: Dataset, machine: Any
) -> None:
    """Raise a ValueError unless the task trains as the strategy needs it to.

    The policy begins, on a simulated machine; a merge and a local update of one's own
    are traced.
    """
    if task.mode == "min" and any(m.required_metrics for m in strategy.merges):
        raise ValueError(
            f"{name} weights models by their {task.metric}, of which less is better: "
            "choose another strategy, or a task whose main metric is to be large"
        )
    layer = "full" if task.head is None else task.head.layer.name
    if strategy.output and strategy.output != layer:
        raise ValueError(
            f"{name} needs a task whose output layer trains as {strategy.output!r}, "
            f"not as {layer!r}: hetjax.classification(..., output={strategy.output!r})"
        )
    try:
        if isinstance(machine, Machine):
            workers = SimulatedClock(machine, seed=0).workers
            with suppress(RunEnded):  # a policy may end its run at once
                begin(strategy.policy, workers, len(data.train))
        check_custom_parts(strategy, task, data)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def check_strategy(name: str, strategy: Any, num_examples: int) -> None:
    """Raise a ValueError unless this is a Strategy whose settings fit the data."""
    if not isinstance(strategy, Strategy):
        raise ValueError(
            f"{name} is {shown(strategy)}, not a Strategy: give one, such as "
            "hetjax.sma(batch_size=32, learning_rate=0.1)"
        )
    _check_parts(name, strategy)
    size = strategy.batch_size
    if not (is_real(size) and math.isfinite(size) and size == int(size) and size >= 1):
        raise ValueError(
            f"{name}: batch_size={size!r}: give a whole number, at least 1"
        )
    if any(merge.required_metrics for merge in strategy.merges):
        num_examples -= num_held_out(num_examples, FEW)
    if size > num_examples:
        raise ValueError(
            f"{name}: a batch of {size} is larger than the {num_examples} examples to "
            "train on; give a smaller batch size"
        )
    first = strategy.merges[0]
    try:
        local.check_buffers(strategy.local, first.requires)
        check_rate(strategy.learning_rate)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _check_parts(name: str, strategy: Strategy) -> None:
    """Raise a ValueError for a part of a strategy that is not of its type."""
    several = isinstance(strategy.merge, tuple) and not isinstance(
        strategy.merge, Merge
    )
    merges = strategy.merge if several else (strategy.merge,)
    parts = [
        ("policy", strategy.policy, Policy),
        ("local", strategy.local, local.LocalUpdate),
        *(("merge", merge, Merge) for merge in merges or [()]),
        ("sampler", strategy.sampler, Sampler),
    ]
    for part, value, kind in parts:
        if not isinstance(value, kind):
            call = ": call it, with its settings" if callable(value) else ""
            raise ValueError(
                f"{name}: {part} is {shown(value)}, not a {kind.__name__}{call}"
            )
