"""Rules that choose how many local steps each worker makes per round (host world)."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hetjax.arguments import Count, Positive, PositiveShare, checked, per_worker
from hetjax.machine.types import LocalRound, WorkerInfo
from hetjax.schedule.types import with_entry

Workers = tuple[WorkerInfo, ...]
StepRule = Callable[[Workers], int | Sequence[int]]
_ROUNDING = 1e-9  # of a ratio of seconds that is a whole number


class StepCounts(NamedTuple):
    """A rule that may also observe how long local rounds take.

    init(workers) -> state
    observe(state, worker, local_round, seconds) -> state
    count(state, worker, here) -> local steps of the worker's next round; only workers
        in `here` are compared
    """

    init: Callable[[Workers], Any]
    observe: Callable[[Any, int, LocalRound, float], Any]
    count: Callable[[Any, int, Sequence[int]], int]


def as_step_counts(local_steps: int | Sequence[int] | StepRule | StepCounts):
    """Return a `StepCounts`: of one number, one per worker, or a function of infos."""
    if isinstance(local_steps, StepCounts):
        return local_steps

    def init(workers):
        given = local_steps(workers) if callable(local_steps) else local_steps
        counts = per_worker("local_steps", given, len(workers))
        if any(count != int(count) for count in counts):  # 0.5 would be rounded to 0
            raise ValueError(f"local_steps={given}: every entry must be a whole number")
        return tuple(map(int, counts))

    return StepCounts(
        init,
        lambda state, worker, local_round, seconds: state,
        lambda state, worker, here: state[worker],
    )


@checked
def dynamic_local_updates(
    local_steps: Count, batch_size: Positive
) -> Callable[[Workers], tuple[int, ...]]:
    """`local_steps` for the fastest worker; others do fewer, in proportion: DyLU.

        H_i = max(1, floor(H t_min / t_i))

    with t_i the expected seconds of a step of worker i, t_min the smallest of them, and
    H the `local_steps`. Unlike `equal_time`, no worker's round takes longer than the
    fastest one's, unless it has one step. Source: Asynchronous Local-SGD for language
    models (arXiv:2401.09135); docs/algorithms L.3.
    """

    def count_steps(workers):
        seconds = [worker.seconds(batch_size) for worker in workers]
        return tuple(_whole_steps(local_steps, min(seconds), t) for t in seconds)

    return count_steps


@checked
def measured_local_updates(
    local_steps: Count, *, share: PositiveShare = 0.5
) -> StepCounts:
    """DyLU with measured seconds in place of expected ones.

        t_i <- (1 - a) t_i + a (seconds of the round) / (its steps)   at each arrival
        H_i = max(1, floor(H t_min / t_i))

    with a the `share`, H the `local_steps`, and t_min the smallest t_i of the active
    workers. t_i starts at the first measurement; until then a worker makes H steps.
    Source: as `dynamic_local_updates`.
    """

    def observe(state, worker, local_round, seconds):
        new = seconds / local_round.local_steps
        old = state[worker]
        mean = new if old is None else (1 - share) * old + share * new
        return with_entry(state, worker, mean)

    def count(state, worker, here):
        mine = state[worker]
        if not mine:
            return local_steps
        least = min((state[k] for k in here if state[k] is not None), default=mine)
        return _whole_steps(local_steps, min(least, mine), mine)

    return StepCounts(lambda workers: (None,) * len(workers), observe, count)


def _whole_steps(local_steps: int, fastest: float, seconds: float) -> int:
    """Return max(1, floor(H t_min / t)); H if a step takes no time."""
    ratio = fastest / seconds if seconds else 1.0
    return max(1, math.floor(local_steps * ratio * (1 + _ROUNDING)))
