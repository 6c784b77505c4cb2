"""Where replicas and nodes are: on which devices, and how they get there."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

Device = Any  # a jax.Device, which is no type to a type checker


class Placement(NamedTuple):
    """The devices of all workers and of the nodes; without any JAX's own choice.

    On devices that were named, moves between them are made, waited for and timed.
    """

    workers: Sequence[Device | None] = ()  # each one's replica; () is anywhere
    nodes: Device | None = None  # the nodes' states: merges run here

    @property
    def timed(self) -> bool:
        """Are merges waited for, and their parts timed?"""
        return bool(self.workers)

    def is_at_nodes(self, member: int | str) -> bool:
        """Is what a worker, or a node, holds where merges run?"""
        if not self.workers or isinstance(member, str):
            return True
        return self.workers[member] == self.nodes

    def to_nodes(self, trees: Any) -> Any:
        """The trees on the device where merges run."""
        return trees if self.nodes is None else jax.device_put(trees, self.nodes)

    def to_worker(self, worker: int, trees: Any) -> Any:
        """The trees on a worker's device."""
        device = self.workers[worker] if self.workers else None
        return trees if device is None else jax.device_put(trees, device)
