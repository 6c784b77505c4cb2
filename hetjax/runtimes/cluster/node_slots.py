"""Nodes of a cluster, and the slots for workers that fit on them.

A slot is a worker's share of a node's resources, as Ray counts them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Resources = Mapping[str, float]
ACCELERATORS = ("GPU", "TPU")


class ClusterNode(NamedTuple):
    """A live machine of the cluster."""

    id: str
    name: str
    resources: dict[str, float]  # in total, by name: "CPU", "GPU", ...
    is_driver: bool = False  # whether this process runs on it


class Slot(NamedTuple):
    """Room for one worker on a node."""

    node: ClusterNode
    name: str  # of the worker in it
    resources: Resources


def platform_of(resources: Resources) -> str | None:
    """The JAX platform of a worker with these resources; None: JAX's default."""
    return None if any(resources.get(name) for name in ACCELERATORS) else "cpu"


def slots_on(
    nodes: Sequence[ClusterNode], resources: Resources | Sequence[Resources] | None
) -> list[Slot]:
    """The slots that the nodes have room for.

    `resources` of one worker: as many slots as fit on each node. A sequence, one entry
    per worker: each slot is on the first node that has room left. None: one slot per
    accelerator, and one for the CPU of each node without accelerators.
    """
    names = node_names(nodes)
    taken: dict[str, dict[str, int]] = {}  # of a node: workers by kind of device
    found: list[Slot] = []

    def add(node: ClusterNode, wanted: Resources) -> None:
        kind = next((a.lower() for a in ACCELERATORS if wanted.get(a)), "cpu")
        counts = taken.setdefault(node.id, {})
        name = f"{names[node.id]}/{kind}:{counts.setdefault(kind, 0)}"
        counts[kind] += 1
        found.append(Slot(node, name, dict(wanted)))

    room = {node.id: dict(node.resources) for node in nodes}
    if resources is not None and not isinstance(resources, Mapping):
        for k, wanted in enumerate(resources):
            node = next((n for n in nodes if _take(wanted, room[n.id])), None)
            if node is None:
                raise ValueError(
                    f"resources[{k}] is {dict(wanted)}, but no node has this left: "
                    f"{describe_nodes(nodes)}"
                )
            add(node, wanted)
        return found
    for node in nodes:
        wanted = _default_resources(node) if resources is None else resources
        while wanted and _take(wanted, room[node.id]):
            add(node, wanted)
    return found


def find_slot(
    wanted: Resources,
    resources: Resources | Sequence[Resources] | None,
    nodes: Sequence[ClusterNode],
    taken: Sequence[tuple[str, Resources]],
    *,
    prefer: str,
) -> Slot | None:
    """A free slot with the `wanted` resources, if possible on the node `prefer`.

    `taken` lists (node's id, resources) of the existing workers. Without
    `resources` (see `slots_on`) the slot has the default resources of its node, if
    their platform is that of the wanted ones.
    """
    names = node_names(nodes)
    for node in sorted(nodes, key=lambda n: names[n.id] != prefer):
        mine = wanted if resources is not None else _default_resources(node)
        if not mine or platform_of(mine) != platform_of(wanted):
            continue
        room = dict(node.resources)
        for where, some in taken:
            if where == node.id:
                for name, number in some.items():
                    room[name] = room.get(name, 0) - number
        if _take(mine, room):
            return Slot(node, names[node.id], mine)
    return None


def _default_resources(node: ClusterNode) -> Resources:
    """The resources of a worker by default: an accelerator, or all CPUs."""
    cpus = node.resources.get("CPU", 0)
    for name in ACCELERATORS:
        count = node.resources.get(name, 0)
        if count >= 1:
            return {name: 1, "CPU": 1} if cpus >= count else {name: 1}
    return {"CPU": cpus} if cpus else {}


def check_resources(
    resources: Resources | Sequence[Resources] | None, workers: int | None
) -> None:
    """Raise a ValueError unless these are positive numbers by name, or one for each."""
    if resources is None:
        return
    several = [resources] if isinstance(resources, Mapping) else resources
    good = bool(several)
    for one in several:
        numbers = list(one.values()) if isinstance(one, Mapping) else []
        good = good and bool(numbers)
        good = good and all(isinstance(n, int | float) and n > 0 for n in numbers)
    if not good:
        raise ValueError(
            f"resources={resources!r}: must be positive numbers by name, as "
            '{"CPU": 4}, or a list of such mappings'
        )
    if several is resources and workers is not None and len(resources) != workers:
        raise ValueError(
            f"resources has {len(resources)} entries for {workers} workers: pass one "
            "entry per worker, or one mapping for all workers"
        )


def _take(wanted: Resources, room: dict[str, float]) -> bool:
    """Take the resources from the room, if they fit."""
    if any(room.get(name, 0) < number for name, number in wanted.items()):
        return False
    for name, number in wanted.items():
        room[name] -= number
    return True


def node_names(nodes: Sequence[ClusterNode]) -> dict[str, str]:
    """Unique names of nodes by id: their host names, numbered where they repeat."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.name] = counts.get(node.name, 0) + 1
        again = f"-{counts[node.name]}" * (counts[node.name] > 1)
        names[node.id] = node.name + again
    return names


def describe_nodes(nodes: Sequence[ClusterNode]) -> str:
    """The nodes' resources, in words."""
    names = node_names(nodes)
    return "; ".join(
        f"{names[n.id]} has "
        + ", ".join(f"{n.resources.get(r, 0):g} {r}" for r in _shown_resources(n))
        for n in nodes
    )


def _shown_resources(node: ClusterNode) -> list[str]:
    hidden = ("memory", "object_store_memory")
    return ["CPU"] + sorted(
        name
        for name in node.resources
        if name not in hidden and name != "CPU" and not name.startswith("node:")
    )
