"""What a policy is: a pure state machine from events to actions (host world)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hetjax.machine.topology import Topology, flat
from hetjax.machine.types import Event, LocalRound, MergeAction, WorkerInfo


class Actions(NamedTuple):
    """What to do now: merges first, then start, dispatch, timers, and stop.

    A local round starts when its worker is free, that is, after a blocking merge that
    comes before it.
    """

    merges: tuple[MergeAction, ...] = ()
    dispatch: tuple[tuple[int, LocalRound], ...] = ()
    timers: tuple[tuple[str, float], ...] = ()  # (name, absolute seconds)
    start: tuple[int, ...] = ()  # workers that were stopped; at first all are active
    stop: tuple[int, ...] = ()  # after the local round that they have by then


class Policy(NamedTuple):
    """Who merges now, who does what next.

    `init(workers, num_examples) -> (state, actions)` and
    `react(state, event) -> (state, actions)`. A policy never gives a local round to a
    worker that has one, and ignores events that do not concern it. `topology(workers)`
    is the tree of nodes that its merges name; by default there is the root alone.
    """

    init: Callable[[tuple[WorkerInfo, ...], int], tuple[Any, Actions]]
    react: Callable[[Any, Event], tuple[Any, Actions]]
    topology: Callable[[tuple[WorkerInfo, ...]], Topology] = flat
