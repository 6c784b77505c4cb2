"""Placement: the devices of replicas and nodes, and moves between them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

Device = Any  # a jax.Device, which type checkers do not accept as a type


def is_host(device: Device | None) -> bool:
    """Whether programs on a device read the host's arrays as they are: on CPUs.

    Elsewhere all that is sent is put on the device explicitly, and all that is read is
    fetched explicitly, so that `jax.transfer_guard` finds what is not meant.
    """
    return device is None or device.platform == "cpu"


class Placement(NamedTuple):
    """The devices of all workers and of the nodes; by default JAX chooses.

    Replicas are moved between named devices.
    """

    workers: Sequence[Device | None] = ()  # of each worker's replica; (): JAX's choice
    nodes: Device | None = None  # of the nodes' states; merges run here
    timed: bool = False  # whether moves and merges are awaited and timed

    def of_worker(self, worker: int) -> Device | None:
        """Return the device of a worker's replica; None: JAX's choice."""
        return self.workers[worker] if self.workers else None

    def is_at_nodes(self, member: int | str) -> bool:
        """Whether a worker's or node's model is on the device where merges run."""
        return isinstance(member, str) or self.of_worker(member) == self.nodes

    def away(self, members: Sequence[int | str]) -> list[int]:
        """Return the workers among them that are not on the device of the nodes."""
        if not self.workers:
            return []
        return [m for m in members if isinstance(m, int) and not self.is_at_nodes(m)]

    def to_nodes(self, trees: Any) -> Any:
        """Move the trees to the device where merges run."""
        return trees if self.nodes is None else jax.device_put(trees, self.nodes)

    def to_worker(self, worker: int, trees: Any) -> Any:
        """Move the trees to a worker's device."""
        device = self.of_worker(worker)
        return trees if device is None else jax.device_put(trees, device)
