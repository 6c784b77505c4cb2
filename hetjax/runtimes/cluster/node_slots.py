"""Which workers a cluster can have: what they take of which node."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Resources = Mapping[str, float]
ACCELERATORS = ("GPU", "TPU")


class ClusterNode(NamedTuple):
    """A machine of the cluster that is alive."""

    id: str
    name: str
    resources: dict[str, float]  # all that it has, by name: "CPU", "GPU", ...
    is_driver: bool = False  # is this process on it?


class Slot(NamedTuple):
    """Room for a worker on a node."""

    node: ClusterNode
    name: str  # of a worker there
    resources: Resources


def platform_of(resources: Resources) -> str | None:
    """The platform that a worker with these resources uses; None: JAX's default."""
    return None if any(resources.get(name) for name in ACCELERATORS) else "cpu"


def places_on(
    nodes: Sequence[ClusterNode], resources: Resources | Sequence[Resources] | None
) -> list[Slot]:
    """The workers that the nodes have room for.

    `resources` are what a worker takes: as many as fit on each node; or of each worker,
    on the first node that has them left; None: each accelerator is a worker, and the
    CPU of a node without any is one.
    """
    names = names_of(nodes)
    taken: dict[str, dict[str, int]] = {}  # of a node: workers by kind of device
    found: list[Slot] = []

    def add(node: ClusterNode, wanted: Resources) -> None:
        kind = next((a.lower() for a in ACCELERATORS if wanted.get(a)), "cpu")
        counts = taken.setdefault(node.id, {})
        name = f"{names[node.id]}/{kind}:{counts.setdefault(kind, 0)}"
        counts[kind] += 1
        found.append(Slot(node, name, dict(wanted)))

    if resources is not None and not isinstance(resources, Mapping):
        left = {node.id: dict(node.resources) for node in nodes}
        for k, wanted in enumerate(resources):
            node = next((n for n in nodes if _fits(wanted, left[n.id])), None)
            if node is None:
                raise ValueError(
                    f"resources[{k}] is {dict(wanted)}, but no node has that left: "
                    f"{described(nodes)}"
                )
            for name, number in wanted.items():
                left[node.id][name] -= number
            add(node, wanted)
        return found
    for node in nodes:
        wanted = _usual(node) if resources is None else resources
        room = dict(node.resources)
        while wanted and _fits(wanted, room):
            for name, number in wanted.items():
                room[name] -= number
            add(node, wanted)
    return found


def room_for(
    wanted: Resources,
    resources: Resources | Sequence[Resources] | None,
    nodes: Sequence[ClusterNode],
    taken: Sequence[tuple[str, Resources]],
    *,
    prefer: str,
) -> Slot | None:
    """Room for a worker that takes what is `wanted`, first on the node to `prefer`.

    `taken` are (node's id, resources) of the workers there are. Without `resources`
    (see `places_on`) a worker takes of another node what is usual there, on the same
    kind of device.
    """
    names = names_of(nodes)
    for node in sorted(nodes, key=lambda n: names[n.id] != prefer):
        mine = wanted if resources is not None else _usual(node)
        if not mine or platform_of(mine) != platform_of(wanted):
            continue
        room = dict(node.resources)
        for where, some in taken:
            if where == node.id:
                for name, number in some.items():
                    room[name] = room.get(name, 0) - number
        if _fits(mine, room):
            return Slot(node, names[node.id], mine)
    return None


def _usual(node: ClusterNode) -> Resources:
    """What a worker takes if nobody says: an accelerator, or all of the CPU."""
    cpus = node.resources.get("CPU", 0)
    for name in ACCELERATORS:
        count = node.resources.get(name, 0)
        if count >= 1:
            return {name: 1, "CPU": 1} if cpus >= count else {name: 1}
    return {"CPU": cpus} if cpus else {}


def check_resources(resources: Resources | Sequence[Resources] | None) -> None:
    """Raise a ValueError unless these are positive numbers by name."""
    if resources is None:
        return
    several = [resources] if isinstance(resources, Mapping) else resources
    if not several or not all(map(_are_positive, several)):
        raise ValueError(
            f"resources={resources!r}: give positive numbers by name, as "
            '{"CPU": 4}, or a list of them'
        )


def _are_positive(wanted: Resources) -> bool:
    numbers = list(wanted.values()) if isinstance(wanted, Mapping) else []
    good = [isinstance(n, int | float) and n > 0 for n in numbers]
    return bool(good) and all(good)


def _fits(wanted: Resources, room: Resources) -> bool:
    return all(room.get(name, 0) >= number for name, number in wanted.items())


def names_of(nodes: Sequence[ClusterNode]) -> dict[str, str]:
    """Names of nodes by id: those of their hosts, with a number where they repeat."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.name] = counts.get(node.name, 0) + 1
        again = f"-{counts[node.name]}" * (counts[node.name] > 1)
        names[node.id] = node.name + again
    return names


def described(nodes: Sequence[ClusterNode]) -> str:
    """What nodes have, in words."""
    names = names_of(nodes)
    return "; ".join(
        f"{names[n.id]} has "
        + ", ".join(f"{n.resources.get(r, 0):g} {r}" for r in _named(n))
        for n in nodes
    )


def _named(node: ClusterNode) -> list[str]:
    """The resources that say something to a user."""
    hidden = ("memory", "object_store_memory")
    return ["CPU"] + sorted(
        name
        for name in node.resources
        if name not in hidden and name != "CPU" and not name.startswith("node:")
    )
