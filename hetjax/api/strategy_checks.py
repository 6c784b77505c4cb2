"""Checks of strategies, alone and with a task, data and a machine.

Each check raises a one-line ValueError that names the argument and says what to pass.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hetjax import local
from hetjax.api.value_checks import check_rate
from hetjax.arguments import Count, as_kind, shown
from hetjax.data.dataset import Dataset
from hetjax.data.held_out import FEW, num_held_out
from hetjax.machine import Machine, RunEnded, SimulatedClock
from hetjax.machine.merge_tree import flat
from hetjax.merge.types import Merge
from hetjax.sampling import Sampler
from hetjax.schedule import Policy
from hetjax.schedule.action_checks import begin
from hetjax.strategies.custom_parts import check_custom_parts
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task


def check_strategies(strategies: Any, num_examples: int) -> None:
    """Raise a ValueError unless this maps names to strategies that fit the data."""
    if not isinstance(strategies, Mapping):
        raise ValueError("strategies must be a dictionary: a name for each strategy")
    if not strategies:
        raise ValueError("there are no strategies to compare: pass at least one")
    for name, strategy in strategies.items():
        if not isinstance(name, str):
            raise ValueError(f"strategies has the key {name!r}: pass names, as strings")
        as_kind(f"strategies[{name!r}]", strategy, Strategy)
        check_strategy(name, strategy, num_examples)


def check_fits(
    name: str, strategy: Strategy, task: Task, data: Dataset, machine: Any
) -> None:
    """Raise a ValueError unless the strategy fits the task, data and machine.

    On a simulated machine the policy begins; custom merges and local updates are
    traced.
    """
    if task.mode == "min" and any(m.required_metrics for m in strategy.merges):
        raise ValueError(
            f"{name} weights models by their {task.metric}, for which smaller is "
            "better: choose another strategy, or a task whose main metric is maximized"
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
    as_kind(name, strategy, Strategy)
    _check_parts(name, strategy)
    size = as_kind(f"{name}: batch_size", strategy.batch_size, Count)
    if any(merge.required_metrics for merge in strategy.merges):
        num_examples -= num_held_out(num_examples, FEW)
    if size > num_examples:
        raise ValueError(
            f"{name}: a batch of {size} is larger than the {num_examples} examples to "
            "train on; pass a smaller batch size"
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
    if len(merges) > 1 and strategy.policy.topology is flat:
        raise ValueError(
            f"{name}: it has {len(merges)} merges, but its policy has one level: pass "
            "one merge, or a policy for a tree, such as hetjax.schedule.hierarchical"
        )
