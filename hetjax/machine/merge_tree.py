"""The tree of nodes at which merges take place (host world)."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hetjax.machine.types import ROOT, WorkerInfo


class Node(NamedTuple):
    """A node of the tree."""

    children: tuple[int | str, ...]  # workers, or the nodes directly below it
    level: int  # 0 merges workers, 1 merges such nodes, ...
    workers: frozenset[int]  # all workers below it


class Topology(NamedTuple):
    """All nodes by name; a policy derives them once from the workers of the run."""

    nodes: Mapping[str, Node]

    def node(self, name: str) -> Node:
        """Return a node; raise a ValueError for an unknown name."""
        if name not in self.nodes:
            raise ValueError(
                f"there is no node {name!r}: the policy's topology has "
                f"{', '.join(sorted(self.nodes))}"
            )
        return self.nodes[name]

    def level(self, name: str) -> int:
        """Return the height of a node: 0 merges workers, 1 merges such nodes, ..."""
        return self.node(name).level

    def merge_level(self, name: str, merges: int) -> int:
        """Return which of `merges` merges, from the lowest level up, a node uses.

        The root uses the last one.
        """
        return merges - 1 if name == ROOT else min(self.level(name), merges - 1)

    def workers_of(self, member: int | str) -> frozenset[int]:
        """Return all workers below a member node; of a worker, the worker itself."""
        return (
            frozenset({member})
            if isinstance(member, int)
            else self.node(member).workers
        )

    def workers_below(self, members: Iterable[int | str]) -> tuple[int, ...]:
        """Return the workers of all members (see `workers_of`), member by member."""
        members = tuple(members)
        if all(isinstance(m, int) for m in members):  # the most frequent case
            return members  # pyright: ignore[reportReturnType]
        return tuple(k for m in members for k in sorted(self.workers_of(m)))


def flat(workers: Iterable[WorkerInfo]) -> Topology:
    """Return a topology with one node, the root, and all workers below it."""
    indices = tuple(w.index for w in workers)
    return Topology({ROOT: Node(indices, 0, frozenset(indices))})
