"""What `local_steps` of a strategy may be, and policies with them."""

from collections.abc import Callable, Sequence
from typing import Any

from hetjax import schedule
from hetjax.arguments import Count
from hetjax.local import LocalUpdate
from hetjax.merge import Merge
from hetjax.schedule import LearningRateLike, Policy, WorkerInfo
from hetjax.strategies.types import Strategy

Steps = Count | Sequence[Count] | str
Workers = tuple[WorkerInfo, ...]
Rule = Callable[[Workers], Any]


def steps_of(
    local_steps: Steps,
    batch_size: int,
    measured: Callable[[int, float], Rule] = schedule.equal_time,
) -> Rule:
    """The steps of every worker: as passed, or from the workers' expected seconds.

    `measured(32, batch_size)` is the rule that "measured:32" means.
    """
    word, _, number = str(local_steps).partition(":")
    if word == "measured" and number.isdigit() and int(number) > 0:
        return measured(int(number), batch_size)
    if isinstance(local_steps, str) or local_steps == ():
        raise ValueError(
            f"local_steps={local_steps!r}: pass a number, one for each worker, or "
            "'measured:32'"
        )
    return lambda workers: local_steps


def in_rounds(local_steps: Steps, batch_size: int) -> Policy:
    """Synchronous rounds of these steps."""
    steps = steps_of(local_steps, batch_size)
    return schedule.rounds(local_steps=steps, batch_size=batch_size)


def on_arrival(
    merging: Merge,
    update: LocalUpdate,
    learning_rate: LearningRateLike,
    batch_size: int,
    local_steps: Steps,
    **settings: Any,
) -> Strategy:
    """A strategy whose workers merge alone, with `schedule.asynchronous`.

    "measured:32" means dynamic local updates (`schedule.dynamic_local_updates`).
    """
    steps = steps_of(local_steps, batch_size, schedule.dynamic_local_updates)
    policy = schedule.asynchronous(batch_size=batch_size, local_steps=steps, **settings)
    return Strategy(policy, update, merging, batch_size, learning_rate)
