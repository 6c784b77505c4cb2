"""How the driver calls its members, whatever carries the calls.

`hetjax.runtimes.cluster.ray_cluster` carries them with Ray.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

# a member does the calls of one queue one after the other, in the order they were made
STEPS = "steps"  # local rounds, and what must wait for them
REPLICA = "replica"  # merges of a replica whose steps go on
HEALTH = "health"  # answered at once, whatever the member does


class ClusterNode(NamedTuple):
    """A machine of the cluster that is alive."""

    id: str
    name: str
    resources: dict[str, float]  # all that it has, by name: "CPU", "GPU", ...
    is_driver: bool = False  # is this process on it?


class RemoteActor(Protocol):
    """The driver's end of one member."""

    node: ClusterNode

    def call(
        self, method: str, *args: Any, queue: str, label: str = "", parts: int = 1
    ) -> Sequence[Future]:
        """Call a method of the member, which returns so many parts.

        Each is a future, which raises `hetjax.engine.protocols.Unreachable` if the
        member is gone. Parcels among the arguments arrive as what was put into them.
        The `label` is for dashboards.
        """
        ...

    def kill(self) -> None:
        """End the member's process."""
        ...


class Cluster(Protocol):
    """Nodes, on which members can be started."""

    def nodes(self) -> list[ClusterNode]:
        """The nodes that are alive, the driver's first, then by name."""
        ...

    def start(
        self, name: str, node: ClusterNode, resources: dict[str, float], *settings: Any
    ) -> RemoteActor:
        """Start `WorkerActor(*settings)` on a node; its calls wait until it is there.

        The name is for dashboards.
        """
        ...

    def put(self, value: Any) -> Any:
        """A parcel: it goes to each node once, however many members it is given to."""
        ...

    def close(self) -> None:
        """Leave the cluster; end it if it was started here."""
        ...
