"""Placement: the devices of replicas and nodes, and moves between them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

Device = Any  # a jax.Device, which type checkers do not accept as a type


class Placement(NamedTuple):
    """The devices of all workers and of the nodes; by default JAX chooses.

    With named devices, replicas are moved between them, and moves and merges are waited
    for and timed.
    """

    workers: Sequence[Device | None] = ()  # of each worker's replica; (): JAX's choice
    nodes: Device | None = None  # of the nodes' states; merges run here

    @property
    def timed(self) -> bool:
        """Are merges waited for, and their parts timed?"""
        return bool(self.workers)

    def is_at_nodes(self, member: int | str) -> bool:
        """Is the model of a worker or node on the device where merges run?"""
        if not self.workers or isinstance(member, str):
            return True
        return self.workers[member] == self.nodes

    def to_nodes(self, trees: Any) -> Any:
        """Move the trees to the device where merges run."""
        return trees if self.nodes is None else jax.device_put(trees, self.nodes)

    def to_worker(self, worker: int, trees: Any) -> Any:
        """Move the trees to a worker's device."""
        device = self.workers[worker] if self.workers else None
        return trees if device is None else jax.device_put(trees, device)
