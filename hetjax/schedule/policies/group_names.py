"""Translates worker numbers and node names between a group and the machine (host).

A group's policy numbers its workers from 0 and calls its topmost node ROOT. In the
machine, worker k of the group is `workers[k]`, the root of group 3 is "group3", and its
node "x" is "group3/x".
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hetjax.machine.merge_tree import Node, Topology
from hetjax.machine.types import (
    ROOT,
    Arrival,
    Event,
    Join,
    Leave,
    Merged,
    Timer,
    WorkerInfo,
)
from hetjax.schedule.types import Actions

Workers = tuple[int, ...]  # the machine's numbers of a group's workers


class GroupIndex(NamedTuple):
    """The group of one of the machine's workers, and its number there."""

    group: int
    worker: int  # its number in the group


def divide(
    infos: tuple[WorkerInfo, ...], sizes: int | Sequence[int] | None
) -> tuple[Workers, ...]:
    """Divide workers into groups: consecutive ones by size, or one group per place."""
    n = len(infos)
    if sizes is None:
        places: dict[Any, list[int]] = {}
        for k, info in enumerate(infos):
            places.setdefault(info.place[:1], []).append(k)
        return tuple(tuple(workers) for workers in places.values())
    if isinstance(sizes, int):
        if sizes < 1 or n % sizes:
            raise ValueError(
                f"sizes={sizes}: {n} workers cannot be divided into groups of this "
                "size; pass one size per group"
            )
        sizes = (sizes,) * (n // sizes)
    if min(sizes, default=0) < 1 or sum(sizes) != n:
        raise ValueError(
            f"sizes={tuple(sizes)}: pass positive numbers that sum to the {n} workers"
        )
    ends = [sum(sizes[: g + 1]) for g in range(len(sizes))]
    return tuple(
        tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)
    )


def index_all(groups: Sequence[Workers]) -> tuple[GroupIndex, ...]:
    """The group index of every worker of the machine."""
    index = {
        w: GroupIndex(g, k) for g, ws in enumerate(groups) for k, w in enumerate(ws)
    }
    return tuple(index[worker] for worker in range(len(index)))


def inner_infos(
    infos: tuple[WorkerInfo, ...], workers: Workers, *, by_place: bool
) -> tuple[WorkerInfo, ...]:
    """A group's workers as its policy sees them, with their place within the group."""
    return tuple(
        infos[w]._replace(
            index=k, place=infos[w].place[1:] if by_place else infos[w].place
        )
        for k, w in enumerate(workers)
    )


def inner_event(index: Sequence[GroupIndex], event: Event) -> tuple[int, Event] | None:
    """The group that an event concerns, and the event with the group's own names.

    None if the event is about the machine's root, or about no group.
    """
    match event:
        case Arrival() | Join() | Leave():
            g, k = index[event.worker]
            return g, event._replace(worker=k)
        case Timer():
            g, name = _split(event.name)
            return None if g is None else (g, event._replace(name=name))
        case Merged():
            g, node = _split(event.node)
            if g is None:
                return None
            members = tuple(_inner_member(index, g, m) for m in event.members)
            return g, event._replace(node=node or ROOT, members=members)
    return None


def _split(name: str) -> tuple[int | None, str]:
    """(3, "x/y") of "group3/x/y", (3, "") of "group3", (None, ...) of other names."""
    first, _, rest = name.partition("/")
    digits = first.removeprefix("group")
    known = first.startswith("group") and digits.isdigit()
    return (int(digits) if known else None), rest


def _inner_member(index: Sequence[GroupIndex], g: int, member: int | str) -> int | str:
    if isinstance(member, str):
        return member.removeprefix(f"{outer_node(g)}/")
    return index[member].worker


def outer_node(g: int, node: str = ROOT) -> str:
    """The machine's name for a node of group g."""
    return f"group{g}" if node == ROOT else f"group{g}/{node}"


def _outer_member(g: int, workers: Workers, member: int | str) -> int | str:
    return outer_node(g, member) if isinstance(member, str) else workers[member]


def outer_nodes(g: int, workers: Workers, topology: Topology) -> dict[str, Node]:
    """A group's tree with the machine's names."""
    return {
        outer_node(g, name): Node(
            tuple(_outer_member(g, workers, child) for child in node.children),
            node.level,
            frozenset(workers[k] for k in node.workers),
        )
        for name, node in topology.nodes.items()
    }


def outer_actions(g: int, workers: Workers, actions: Actions) -> Actions:
    """The actions of a group's policy, with the machine's names."""
    if not any(actions):
        return actions
    if actions.cancel:
        raise ValueError(
            "hierarchical: a group's policy cancels rounds, but only a policy of all "
            'workers may: choose one that does not, such as with stop="ignore"'
        )

    def rename(merge):
        return merge._replace(
            node=outer_node(g, merge.node),
            members=tuple(_outer_member(g, workers, m) for m in merge.members),
            partners=tuple(workers[k] for k in merge.partners),
        )

    return Actions(
        merges=tuple(map(rename, actions.merges)),
        dispatch=tuple((workers[k], given) for k, given in actions.dispatch),
        timers=tuple((f"{outer_node(g)}/{name}", t) for name, t in actions.timers),
        start=tuple(workers[k] for k in actions.start),
        stop=tuple(workers[k] for k in actions.stop),
        cancel=tuple(workers[k] for k in actions.cancel),
    )
