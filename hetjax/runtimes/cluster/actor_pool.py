"""The members of a machine: started once, for all runs on it."""

from collections.abc import Sequence

from hetjax.engine.capabilities import Unreachable
from hetjax.runtimes.cluster.broadcast import Broadcast
from hetjax.runtimes.cluster.node_slots import Resources, Slot, platform_of
from hetjax.runtimes.cluster.remote_calls import HEALTH, Cluster, RemoteActor

ALIVE = 10.0  # [s] in which a member answers before a run, or gets no part in it


class ActorPool:
    """Members by the names of their workers."""

    def __init__(
        self,
        cluster: Cluster,
        resources: Resources | Sequence[Resources] | None = None,
        number: int = 1,
    ):
        """A connection to a cluster, without members.

        `resources` are those of `cluster_machine`; `number` tells the machines of this
        process apart.
        """
        self.cluster, self.resources, self._number = cluster, resources, number
        self.delivery, self.closed = Broadcast(cluster), False
        self.moved: dict[str, str] = {}  # nodes of workers that came back, or joined
        self._members: dict[str, RemoteActor] = {}
        self._taken: dict[str, tuple[str, Resources]] = {}  # node and what it gave

    @property
    def names(self) -> set[str]:
        """The workers that have a member."""
        return set(self._members)

    def start(self, place: Slot, name: str) -> RemoteActor:
        """Start a worker's member, which may take a while."""
        shown = name if self._number == 1 else f"{name} ({self._number})"
        platform = platform_of(place.resources)
        member = self.cluster.start(
            shown, place.node, dict(place.resources), name, platform
        )
        self._members[name] = member
        self._taken[name] = place.node.id, place.resources
        return member

    @property
    def taken(self) -> list[tuple[str, Resources]]:
        """The nodes' ids of all members, and what they take there."""
        return [self._taken[name] for name in list(self._members)]

    def members_of(self, names: Sequence[str]) -> list[RemoteActor | None]:
        """The members of workers; None for those that do not answer."""
        asked = {
            name: self._members[name].call("status", queue=HEALTH)[0]
            for name in names
            if name in self._members
        }
        for name, future in asked.items():
            try:
                future.result(timeout=ALIVE)
            except (Unreachable, TimeoutError):
                self.remove(name)
        return [self._members.get(name) for name in names]

    def remove(self, name: str, member: RemoteActor | None = None) -> None:
        """A worker's member is gone, or does not answer: end it.

        If the worker has another one by now than the given one, only that one ends.
        """
        found = self._members.get(name)
        if member is None or found is member:
            self._members.pop(name, None)
        member = found if member is None else member
        if member is not None:
            member.kill()

    def remove_all(self) -> None:
        """End all members."""
        for name in list(self._members):
            self.remove(name)

    def close(self) -> None:
        """End all members, and leave the cluster."""
        self.closed = True
        self.remove_all()
        self.cluster.close()
