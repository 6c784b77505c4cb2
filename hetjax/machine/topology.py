"""The tree of nodes at which merges take place (host world)."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hetjax.machine.types import ROOT, WorkerInfo


class Node(NamedTuple):
    """A node of the tree."""

    children: tuple[int | str, ...]  # workers, or the nodes right below it
    level: int  # 0 merges workers, 1 merges such nodes, ...
    workers: frozenset[int]  # all below it


class Topology(NamedTuple):
    """All nodes by name, as a policy derives them once from the workers of the run."""

    nodes: Mapping[str, Node]

    def node(self, name: str) -> Node:
        """A node; raises a ValueError for a name that is not in the tree."""
        if name not in self.nodes:
            raise ValueError(
                f"there is no node {name!r}: the policy's topology has "
                f"{', '.join(sorted(self.nodes))}"
            )
        return self.nodes[name]

    def level(self, name: str) -> int:
        """The height of a node: 0 merges workers, 1 merges such nodes, ..."""
        return self.node(name).level

    def workers_of(self, member: int | str) -> frozenset[int]:
        """The workers that a member of a merge is, or stands for."""
        return (
            frozenset({member})
            if isinstance(member, int)
            else self.node(member).workers
        )

    def workers_below(self, members: Iterable[int | str]) -> tuple[int, ...]:
        """The workers that all these are, or stand for, member by member."""
        return tuple(k for m in members for k in sorted(self.workers_of(m)))


def flat(workers: Iterable[WorkerInfo]) -> Topology:
    """One node, the root, with all workers below it."""
    indices = tuple(w.index for w in workers)
    return Topology({ROOT: Node(indices, 0, frozenset(indices))})
