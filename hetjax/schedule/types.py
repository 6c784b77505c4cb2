"""What a policy is: a pure state machine from events to orders (host world, no JAX)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hetjax.machine.types import Event, Work, WorkerInfo

ROOT = "root"  # the node whose model is the run's model


class MergeOrder(NamedTuple):
    """Merge the replicas of `members` into the state of `node`."""

    members: tuple[int, ...]  # workers, all of them at rest
    node: str = ROOT
    op: str = ""  # where a Merge has several operations; static under jit
    blocking: bool = True  # do the members wait until the merge is done?


class Orders(NamedTuple):
    """What to do now; carried out in the order of the fields.

    A dispatched work starts when its worker is free, that is after a blocking
    merge ordered before it.
    """

    merges: tuple[MergeOrder, ...] = ()
    dispatch: tuple[tuple[int, Work], ...] = ()
    alarms: tuple[tuple[str, float], ...] = ()  # (name, absolute seconds)
    start: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()


class Policy(NamedTuple):
    """Who merges now, who does what next.

    `init(workers, num_examples) -> (state, orders)` and
    `react(state, event) -> (state, orders)`. A policy never gives work to a worker
    that has work, and ignores events it has no use for.
    """

    init: Callable[[tuple[WorkerInfo, ...], int], tuple[Any, Orders]]
    react: Callable[[Any, Event], tuple[Any, Orders]]
