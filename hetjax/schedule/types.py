"""What a policy is: a pure state machine from events to orders (host world, no JAX)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hetjax.machine.types import Event, MergeOrder, Work, WorkerInfo


class Orders(NamedTuple):
    """What to do now: merges first, then start, dispatch, alarms, and stop.

    A dispatched work starts when its worker is free, that is after a blocking
    merge ordered before it.
    """

    merges: tuple[MergeOrder, ...] = ()
    dispatch: tuple[tuple[int, Work], ...] = ()
    alarms: tuple[tuple[str, float], ...] = ()  # (name, absolute seconds)
    start: tuple[int, ...] = ()  # workers; all are there when a run begins
    stop: tuple[int, ...] = ()  # after the work that they have, or were just given


class Policy(NamedTuple):
    """Who merges now, who does what next.

    `init(workers, num_examples) -> (state, orders)` and
    `react(state, event) -> (state, orders)`. A policy never gives work to a worker
    that has work, and ignores events it has no use for.
    """

    init: Callable[[tuple[WorkerInfo, ...], int], tuple[Any, Orders]]
    react: Callable[[Any, Event], tuple[Any, Orders]]
