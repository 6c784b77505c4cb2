"""The `Policy` interface: a pure state machine from events to actions (host world)."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from hetjax.machine.merge_tree import Topology, flat
from hetjax.machine.types import Event, LocalRound, MergeAction, WorkerInfo
from hetjax.summaries import html_of, maker, two_lines

_Entry = TypeVar("_Entry")


def with_entry(values: tuple[_Entry, ...], k: int, entry: _Entry) -> tuple[_Entry, ...]:
    """The values with another one at index k."""
    return (*values[:k], entry, *values[k + 1 :])


class Actions(NamedTuple):
    """Actions to take now: cancel, merges, start, dispatch, timers, stop in this order.

    A local round starts when its worker is free, that is, after the blocking merges
    that come before it. A cancelled round never arrives, and nothing of it is merged;
    its worker is at rest at once, and its replica begins again from the root's model.
    """

    merges: tuple[MergeAction, ...] = ()
    dispatch: tuple[tuple[int, LocalRound], ...] = ()
    timers: tuple[tuple[str, float], ...] = ()  # (name, absolute seconds)
    start: tuple[int, ...] = ()  # stopped workers; all are active at the beginning
    stop: tuple[int, ...] = ()  # workers to stop after their current local round
    cancel: tuple[int, ...] = ()  # working workers, whose local rounds end now


class Policy(NamedTuple):
    """A pure state machine that decides who merges now and which rounds begin.

    `init(workers, num_examples) -> (state, actions)` and
    `react(state, event) -> (state, actions)`. A policy never dispatches a local round
    to a worker that has one, and ignores events that do not concern it.
    `topology(workers)` is the tree of the nodes that its merges name; by default it is
    only the root. Both functions are pure: they are also called before a run, to check
    their results and to predict which programs will be compiled.

    `bulk_synchronous` says that its actions depend neither on times nor on the order of
    arrivals within a round. All rounds in flight, and the merges that follow their
    arrivals, can then run as one program (a machine with placement="mesh").
    """

    init: Callable[[tuple[WorkerInfo, ...], int], tuple[Any, Actions]]
    react: Callable[[Any, Event], tuple[Any, Actions]]
    topology: Callable[[tuple[WorkerInfo, ...]], Topology] = flat
    bulk_synchronous: bool = False

    _repr_html_ = html_of

    def __repr__(self) -> str:
        tree = "" if self.topology is flat else "merges in a tree"
        order = "bulk-synchronous" if self.bulk_synchronous else "depends on arrivals"
        return two_lines(f"Policy {maker(self.init)}", (order, tree))
