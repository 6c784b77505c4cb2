"""Cluster machines: the devices of a Ray cluster's nodes as workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hetjax.engine.local_steps import ALONE
from hetjax.machine import ScriptedFault
from hetjax.machine.types import WorkerInfo
from hetjax.runtimes.cluster.actor_pool import ActorPool
from hetjax.runtimes.real.real_machine import RealMachine
from hetjax.summaries import counted


@dataclass(frozen=True)
class ClusterWorker:
    """A worker in a process of its own, on a node of a cluster."""

    name: str
    node: str  # its name; "": of a node that may join
    kind: str  # of device; workers of one kind run the same programs
    resources: Mapping[str, float]  # of the node that it takes, by name
    slowdown: float = 1.0  # steps take this many times as long: it waits after each


@dataclass(frozen=True)
class ClusterMachine(RealMachine):
    """Workers of a cluster; `hetjax.cluster_machine` makes one.

    Its members (processes) serve all runs on it. `close()`, or a `with` block, ends
    them; else they end with this process.
    """

    record_name: ClassVar[str] = "cluster"

    workers: tuple[ClusterWorker, ...]
    pool: ActorPool = field(compare=False)
    faults: tuple[ScriptedFault, ...] = ()
    step_mode: str | None = None  # how K local steps run; None: measure and choose
    # the other arguments of `cluster_machine`, to make it again
    request: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self):
        self.check(ALONE)

    def __repr__(self) -> str:
        number = counted(len(self.workers), "worker")
        return self.summary(f"Machine: {number} on {self.described}")

    def __enter__(self) -> "ClusterMachine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the members, and the cluster if it was started for them."""
        self.pool.close()

    @property
    def described(self) -> str:
        """The nodes, in words."""
        if self.pool.closed:
            return "a cluster, closed"
        nodes = {w.node for w in self.workers if w.node}
        return f"a cluster of {counted(len(nodes), 'node')}"

    def record(self) -> dict[str, Any]:
        """Return the machine as JSON-ready data, with its call but for the faults."""
        given = {k: v for k, v in self.request.items() if v not in ("auto", None, 0)}
        slowdown = {w.name: w.slowdown for w in self.workers if w.slowdown != 1}
        given |= {"slowdown": slowdown} if slowdown else {}
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return super().record() | {"call": f"hetjax.cluster_machine({arguments})"}

    def infos(self, costs: Mapping[str, tuple[float, float]]) -> tuple[WorkerInfo, ...]:
        """The workers as policies see them; `costs` as for a `LocalMachine`."""
        names = [w.name for w in self.workers]
        away = set(names) - self.pool.names
        return self.infos_of(costs, devices=[""] * len(names), away=away)

    @property
    def present(self) -> "ClusterMachine":
        """The machine with only those workers that have a process."""
        here = self.pool.names
        return self.subset([w.name for w in self.workers if w.name in here])
