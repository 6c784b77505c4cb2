"""The runtime of a cluster."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hetjax.engine.capabilities import CheckpointSupport, Unreachable
from hetjax.engine.job import Job
from hetjax.engine.protocols import Runtime
from hetjax.engine.reference_player import ReferencePlayer
from hetjax.engine.tape import GatherReplicas
from hetjax.runtimes.cluster.actor_preparation import TIMED, Preparation
from hetjax.runtimes.cluster.cluster_executor import ClusterExecutor
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.cluster.cluster_store import ClusterStore
from hetjax.runtimes.cluster.supervisor import Supervisor
from hetjax.runtimes.cluster.worker_group import RemoteActor, WorkerGroup
from hetjax.runtimes.devices import default_device
from hetjax.runtimes.real.deadlines import ALLOWANCE
from hetjax.runtimes.real.step_mode_choice import chosen_before
from hetjax.runtimes.real.wall_clock import WallClock
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import header
from hetjax.tracing.recorder import Recorder

SLOWEST_NETWORK = 25e6  # [bytes/s] that deadlines allow for sending a model


def open_cluster(machine: ClusterMachine, strategy: Strategy, job: Job) -> Runtime:
    """Equip and measure the actors, compile their programs, and return the runtime."""
    if machine.pool.closed:
        raise ValueError(
            "machine: it was closed (by close(), or at the end of its with block); "
            "make another one with cluster_machine(...)"
        )
    names = [w.name for w in machine.workers]
    path = job.trace or job.default_trace
    before = chosen_before(names, job, path)
    actors = machine.pool.actors_of(names)
    group = WorkerGroup(machine.pool.cluster, actors)
    slowdowns = [worker.slowdown for worker in machine.workers]
    trace_header = header(strategy, job, {}, 0, slowdowns)  # reads all data
    prepared = Preparation(machine, strategy, job, group, trace_header["data"])
    trace_header["step_modes"] = step_modes = prepared.run(before.get("step_modes", {}))
    clock = WallClock(
        prepared.infos,
        faults=machine.faults,
        on_slow=group.slow,
        is_compiling=group.is_compiling,
        may_appear=lambda: supervisor.may_appear,
        allowance=ALLOWANCE + prepared.num_bytes * len(names) / SLOWEST_NETWORK,
    )
    supervisor = Supervisor(machine, group, prepared.prepare, clock.report)

    def failed(worker: int, actor: RemoteActor, error: BaseException) -> None:
        if isinstance(error, Unreachable):
            supervisor.lost(worker, actor, str(error))
        else:  # a call could not be unpickled, or raised an error
            supervisor.unresponsive(worker, actor, str(error))

    def unreachable(worker: int, why: str) -> None:
        supervisor.unresponsive(worker, group.actors[worker], why)

    group.on_failed = failed
    trace_header["nodes_kind"] = default_device().device_kind
    trace_header["split_merges"] = True
    recorder = Recorder(clock.workers, trace_header, path, continues=job.continues)
    recorder.recording.context = (job.programs.task, job.data, strategy)
    by_worker = [step_modes[w.kind] for w in machine.workers]
    executor = ClusterExecutor(group, clock, by_worker, job.compilations, supervisor)
    open_store = partial(ClusterStore, group=group, on_unreachable=unreachable)

    def nodes() -> list[str]:
        return [machine.pool.moved.get(w.name, w.node) for w in machine.workers]

    player = ClusterPlayer(
        strategy, job, clock.workers, executor, TIMED, open_store, nodes=nodes
    )
    return Runtime(
        clock,
        player,
        step_modes,
        real=True,
        recorder=recorder,
        notes={"placement": machine.described},
        checkpoints=CheckpointSupport("cluster"),
    )


class ClusterPlayer(ReferencePlayer):
    """Plays a tape on a cluster: members may be unreachable, and bytes are counted."""

    store: ClusterStore

    def __init__(self, *args: Any, nodes: Callable[[], Sequence[str]]):
        """Like `ReferencePlayer`; `nodes()` are those of all workers at present."""
        super().__init__(*args)
        self._nodes = nodes

    def open(self) -> None:
        """Make the initial model."""
        super().open()
        self.traits = self.traits._replace(
            traffic=self.store.traffic, nodes=self._nodes, may_be_unreachable=True
        )
        self.plays = {
            **self.plays,
            GatherReplicas: lambda e: self.store.gather(e.action),
        }
