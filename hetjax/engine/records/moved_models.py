"""The models that merges move: their bytes, their versions and their staleness."""

from typing import NamedTuple

from hetjax.checkpointable import Checkpointable
from hetjax.machine.merge_times import Traffic, moves_of
from hetjax.machine.types import ROOT, MergeAction


class ModelVersions(Checkpointable):
    """A version is one change of a node's model."""

    changes = ("of_nodes", "_fetched", "_mail")

    def __init__(self):
        """Start with version 0 of all models."""
        self.of_nodes: dict[str, int] = {}
        # the version of the node's model that a member has, and that is in its mailbox
        self._fetched: dict[int | str, int] = {}
        self._mail: dict[int | str, int] = {}

    def fetch(self, worker: int) -> None:
        """Note that a worker got a copy of the root's current model."""
        self._fetched[worker] = self.of_nodes.get(ROOT, 0)

    def take_staleness(self, action: MergeAction) -> list[int]:
        """Return how many versions old each member's model is, and update the versions.

        The partners follow the members.
        """
        node, moves = action.node, moves_of(action.op)
        version = self.of_nodes.get(node, 0) + (action.server_steps or 0)
        members = (*action.members, *action.partners)
        staleness = [version - self._fetched.get(m, 0) for m in members]
        # only server steps change the model of a node that has them
        pushed = version + (moves.changes and action.server_steps is None)
        for member in action.members:
            if moves.delivers:
                self._fetched[member] = self._mail[member]
            if moves.fetches:
                self._fetched[member] = pushed
            if moves.requests:
                self._mail[member] = pushed
        self.of_nodes[node] = pushed
        return staleness


class MovedModels(NamedTuple):
    """The models that a merge moves."""

    visible: float  # from this time on [s]
    traffic: Traffic  # of each worker
    action: MergeAction

    @property
    def transfers(self) -> tuple[list[int], bool, bool]:
        """The workers, and whether they send their models and receive one.

        A merge without transfers has no workers, as it needs no link.
        """
        action, moves = self.action, moves_of(self.action.op)
        members = (*action.members, *action.partners) if action.transfers else ()
        workers = [m for m in members if isinstance(m, int)]
        return workers, moves.pushes, moves.fetches or moves.requests

    @property
    def total_bytes(self) -> int:
        """The bytes of all these models."""
        workers, sends, receives = self.transfers
        each = sends * int(self.traffic.up) + receives * int(self.traffic.down)
        return len(workers) * each
