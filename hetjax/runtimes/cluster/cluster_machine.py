"""Cluster machines: the devices of a Ray cluster's nodes as workers.

`cluster_machine` connects to a running cluster, or starts one on this machine.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from hetjax.arguments import Count, Whole, as_kind, checked
from hetjax.machine import ScriptedFault
from hetjax.runtimes.cluster.actor_pool import ActorPool, wait_until_started
from hetjax.runtimes.cluster.node_slots import (
    Resources,
    check_resources,
    describe_nodes,
    slots_on,
)
from hetjax.runtimes.cluster.worker_group import Cluster
from hetjax.runtimes.real.real_machine import (
    RealMachine,
    Slowdown,
    Slowdowns,
    slowdowns_of,
)
from hetjax.summaries import counted

ActorStepMode = Literal["dispatch", "fused", "unrolled", None]


@checked
@dataclass(frozen=True)
class ClusterWorker:
    """A worker with its own process, on a node of a cluster."""

    device_name: ClassVar[str] = ""  # it shares no device

    name: str
    node: str  # the node's name; "": a joiner's, which is not known yet
    kind: str  # of device; workers of one kind run the same programs
    resources: Mapping[str, float]  # that the worker occupies on its node, by name
    slowdown: Slowdown = 1.0  # on the time of a step: it waits after each


@checked
@dataclass(frozen=True)
class ClusterMachine(RealMachine):
    """Workers of a cluster, made by `hetjax.cluster_machine`.

    Their actors (processes) serve all runs on the machine. They end with `close()`, a
    `with` block, or this process.
    """

    record_name: ClassVar[str] = "cluster"

    workers: tuple[ClusterWorker, ...]
    pool: ActorPool = field(compare=False)
    faults: tuple[ScriptedFault, ...] = ()
    step_mode: ActorStepMode = None  # how K local steps run; None: measure and choose
    # the arguments of `cluster_machine`, from which the machine can be made again
    request: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        number = counted(len(self.workers), "worker")
        return self.summary(f"Machine: {number} on {self.described}")

    def __enter__(self) -> "ClusterMachine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors, and the cluster if it was started for them."""
        self.pool.close()

    @property
    def described(self) -> str:
        """The nodes, in words."""
        if self.pool.closed:
            return "a cluster, closed"
        nodes = {w.node for w in self.workers if w.node}
        return f"a cluster of {counted(len(nodes), 'node')}"

    def record(self) -> dict[str, Any]:
        """Return JSON-ready data, with the call that made it (without the faults)."""
        given = {k: v for k, v in self.request.items() if v not in ("auto", None, 0)}
        slowdown = {w.name: w.slowdown for w in self.workers if w.slowdown != 1}
        given |= {"slowdown": slowdown} if slowdown else {}
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return super().record() | {"call": f"hetjax.cluster_machine({arguments})"}

    @property
    def away(self) -> set[str]:
        """The names of the workers that are not there when a run begins."""
        return super().away | {w.name for w in self.workers} - self.pool.names

    @property
    def present(self) -> "ClusterMachine":
        """The machine with only the workers that have an actor."""
        here = self.pool.names
        return self.subset([w.name for w in self.workers if w.name in here])


_machines = itertools.count(1)


@checked
def cluster_machine(
    address: str = "auto",
    *,
    workers: Count | None = None,
    resources: Resources | Sequence[Resources] | None = None,
    local_workers: Count | None = None,
    joiners: Whole = 0,
    slowdown: Slowdowns = 1.0,
    faults: Sequence[ScriptedFault] = (),
    step_mode: ActorStepMode = None,
) -> ClusterMachine:
    """Return the workers of a Ray cluster as a machine for real runs.

    `address` is the address of a running cluster, such as "10.0.0.1:6379"; "auto" finds
    the cluster of this machine (RAY_ADDRESS, or `ray start`). `local_workers=3` instead
    starts a cluster on this machine alone, with three workers of one CPU each.

    By default every GPU is a worker, and so is the CPU of each node without a GPU.
    `resources` overrides this: either the resources of every worker, such as
    {"CPU": 4}, so that each node has as many workers as fit; or one mapping per worker,
    such as [{"GPU": 1}, {"CPU": 8}]. `workers` limits the number of workers. `joiners`
    is the number of workers that may join a run later, on nodes that join the cluster.

    `slowdown`, `faults` and `step_mode` are those of `local_machine`. Each worker has a
    process until `machine.close()`, or until this process ends.

    Errors: ImportError without the extra hetjax[cluster]; ValueError if the cluster
    does not exist or has no room for the workers, or if their processes do not start.
    """
    check_resources(resources, workers or local_workers)
    if isinstance(slowdown, Mapping):  # before a cluster is started
        slowdown = {k: as_kind("slowdown", v, Slowdown) for k, v in slowdown.items()}
    from hetjax.runtimes.cluster import ray_cluster  # imports Ray, which takes a while

    cluster = ray_cluster.connect(address, local_workers)
    request = {
        "address": address,
        "workers": workers,
        "resources": resources,
        "local_workers": local_workers,
        "joiners": joiners,
        "step_mode": step_mode,
    }
    try:
        machine = make_machine(
            cluster,
            workers=workers or local_workers,
            resources=resources or ({"CPU": 1} if local_workers else None),
            joiners=joiners,
            slowdown=slowdown,
            faults=faults,
            step_mode=step_mode,
        )
    except BaseException:
        cluster.close()
        raise
    return dataclasses.replace(machine, request=request)


def make_machine(
    cluster: Cluster,
    *,
    workers: int | None = None,
    resources: Resources | Sequence[Resources] | None = None,
    joiners: int = 0,
    slowdown: Slowdowns = 1.0,
    faults: Sequence[ScriptedFault] = (),
    step_mode: ActorStepMode = None,
) -> ClusterMachine:
    """Start an actor for every worker of a cluster; see `cluster_machine`."""
    nodes = cluster.nodes()
    slots = slots_on(nodes, resources)
    if not slots or (workers is not None and len(slots) < workers):
        wanted = "any worker" if workers is None else f"{workers} workers"
        raise ValueError(
            f"the cluster has no room for {wanted} with resources={resources}: "
            f"{describe_nodes(nodes)}"
        )
    slots = slots[:workers]
    names = [p.name for p in slots] + [f"joiner-{k + 1}" for k in range(joiners)]
    factors = slowdowns_of(slowdown, names)
    pool = ActorPool(cluster, resources, next(_machines))
    try:
        started = [pool.start(slot, slot.name) for slot in slots]
        kinds = [
            wait_until_started(p.name, p, actor).kind
            for p, actor in zip(slots, started, strict=True)
        ]
        # joiners are like the first worker
        kinds += joiners * kinds[:1]
        nodes = [p.name.rpartition("/")[0] for p in slots] + joiners * [""]
        wanted = [p.resources for p in [*slots, *(joiners * slots[:1])]]
        found = zip(names, nodes, kinds, wanted, factors, strict=True)
        every = tuple(ClusterWorker(*fields) for fields in found)
        return ClusterMachine(every, pool, tuple(faults), step_mode)
    except BaseException:
        pool.remove_all()
        raise
