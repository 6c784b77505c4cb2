"""Preparation of a run on a mesh: measure the devices, choose how steps run."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jaxlib
import numpy as np

from hetjax import tree
from hetjax.engine.job import Job
from hetjax.engine.local_steps import StepSettings
from hetjax.engine.protocols import CheckpointSupport, Runtime
from hetjax.machine import WorkerInfo
from hetjax.merge.types import MergeProperty
from hetjax.processes.agreement import blame, here, leave
from hetjax.runtimes.mesh.algorithm import Algorithm
from hetjax.runtimes.mesh.merge_stages import StagePlanner
from hetjax.runtimes.mesh.mesh_clock import MeshClock
from hetjax.runtimes.mesh.mesh_fit import check_fits, layout_of
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.runtimes.mesh.mesh_player import MeshPlayer
from hetjax.runtimes.mesh.mesh_step_modes import choose_step_mode
from hetjax.runtimes.mesh.supersteps import Supersteps
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.runtimes.step_modes import loops_are_fast
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.runtimes.threads.open_threads import measure_costs
from hetjax.schedule.action_checks import begin
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import header

# [s] that others wait for one that measures or evaluates; a death is noticed sooner
_LONG = 3600.0


def open_mesh(machine: LocalMachine, strategy: Strategy, job: Job) -> Runtime:
    """Return the runtime of a mesh of the machine's devices."""
    check_fits(job.name, machine, strategy, recorded=job.trace is not None)
    layout, processes = layout_of(machine), here()
    if not layout.is_alone:
        processes.agree(_facts(machine, strategy, job))
    timer = StepTimer(StepSettings.of(strategy), job)
    # not those of `jax.local_devices()`, which are of JAX's default platform alone
    own = jax.process_index()
    mine = machine.subset(
        [w.name for w in machine.workers if w.device.process_index == own]
    )
    measured = measure_costs(mine, timer, strategy.batch_size)
    costs = {
        k: v
        for each in processes.gather("costs", measured, _LONG)
        for k, v in each.items()
    }
    infos = machine.infos(costs)
    if machine.step_mode is not None:
        return mesh_runtime(layout, strategy, job, infos, machine.step_mode)
    step_mode = _of_first(lambda: _chosen(timer, layout, strategy, job, infos))
    fast = loops_are_fast(job, layout.devices[0].platform)
    longer = "fused" if fast else "dispatch"
    return mesh_runtime(layout, strategy, job, infos, step_mode, longer)


def _of_first(choose: Callable[[], str]) -> str:
    """What process 0 chooses; if it fails, all fail."""
    processes, found, failed = here(), {}, None
    if processes.index == 0:
        try:
            found = {"mode": choose()}
        except Exception as error:
            failed = error
            found = {"error": f"{type(error).__name__}: {error}"}
    found = processes.first("step mode", found, _LONG)
    if failed is not None:
        raise failed
    if "error" in found:
        raise RuntimeError(f"process 0 cannot measure step modes: {found['error']}")
    return found["mode"]


def _facts(machine: LocalMachine, strategy: Strategy, job: Job) -> dict[str, str]:
    """What all processes of a run must have in common."""
    about = header(strategy, job, {}, 0, [])
    versions = {m.__name__: m.__version__ for m in (jax, jaxlib, np)}
    names = {
        "versions": versions,
        "data": about["data"],
        "model": about["model"],
        "strategy": (strategy.name, about["settings"], strategy.batch_size),
        "seed": job.seed,
        "instants": job.instants,
        "settings": (job.on_nan, job.on_lost_worker, machine.step_mode),
        "workers": [(w.name, w.kind) for w in machine.workers],
    }
    return {name: repr(value) for name, value in names.items()}


def mesh_runtime(
    layout: MeshLayout,
    strategy: Strategy,
    job: Job,
    infos: tuple[WorkerInfo, ...],
    step_mode: str,
    longer: str = "",
) -> Runtime:
    """The runtime of workers whose measured step times are in `infos`.

    `longer` is the step mode of waves that are too long to unroll.
    """
    algorithm, planner = _parts(layout, strategy, job, infos)
    device = layout.devices[layout.local[0]]
    # programs with collectives that queue on several CPU devices can block each other:
    # each device needs a thread of its own until all have arrived
    queues = device.platform != "cpu" or len(layout.devices) == 1
    waves = Supersteps(
        algorithm,
        layout,
        planner,
        job,
        step_mode=step_mode,
        ahead=int(queues),
        longer=longer,
        explain=blame,
    )
    # where losses are observed, the next round cannot be drawn before they are known
    fast = loops_are_fast(job, device.platform)
    several = fast and not algorithm.keeps and step_mode != "dispatch"
    clock = MeshClock(infos, several=several)
    waves.hear(clock)
    kept = CheckpointSupport("mesh", at_rest=True)
    if not layout.is_alone:
        kept = kept._replace(hear_due=clock.hear_due)
    return Runtime(
        clock,
        MeshPlayer(strategy, job, waves, clock),
        {device.device_kind: step_mode},
        real=True,
        corrected=clock.corrected,
        **_shared(clock, layout),
        kept=kept,
        estimates_busy=True,
        note=f"mesh of {len(layout.devices)} x {layout.workers_per_device} workers"
        + _gathered(algorithm, layout),
    )


def _parts(
    layout: MeshLayout, strategy: Strategy, job: Job, infos: tuple[WorkerInfo, ...]
) -> tuple[Algorithm, StagePlanner]:
    """What the programs are made of, and who plans their merges."""
    topology = strategy.policy.topology(infos)
    planner = StagePlanner(layout, topology, len(strategy.merges))
    return Algorithm(
        programs=job.programs,
        local=strategy.local,
        merges=job.programs.merges_of(strategy),
        requires=(*strategy.merges[0].requires, *strategy.local.requires),
        levels=tuple(planner.state_keys.items()),
        root=planner.root_key,
        resets=job.on_nan == "reset",
        keeps=strategy.sampler.observe is not None,
    ), planner


def _gathered(algorithm: Algorithm, layout: MeshLayout) -> str:
    """What merges that are written on tuples cost; "" without any.

    A merge of nodes above gathers fewer members than there are workers.
    """
    merges = algorithm.merges
    grouped = all(MergeProperty.TAKES_GROUPS in m.properties for m in merges)
    if grouped or len(layout.devices) == 1:
        return ""
    programs, n = algorithm.programs, layout.num_workers

    def replica(key: jax.Array) -> Any:
        new = programs.replica(algorithm.local, algorithm.requires)
        return new(*programs.init(key))

    each = tree.num_bytes(jax.eval_shape(replica, jax.random.key(0)))
    return (
        f"; a merge written on tuples gathers all {n} replicas on every device: "
        f"{n * each / 1e6:.3g} MB"
    )


def _shared(clock: MeshClock, layout: MeshLayout) -> dict[str, Any]:
    """What makes all processes do the same: process 0 decides."""
    if layout.is_alone:
        return {}
    share = partial(here().first, "evaluation", timeout=_LONG)
    interrupt = clock.hear_interrupt
    return {"shared": share, "hear_interrupt": interrupt, "leave": leave}


def _chosen(
    timer: StepTimer,
    layout: MeshLayout,
    strategy: Strategy,
    job: Job,
    infos: tuple[WorkerInfo, ...],
) -> str:
    """The step mode that is fastest for the steps of the policy's first wave."""
    _, actions = begin(strategy.policy, infos, len(job.train))
    rounds = dict(actions.dispatch)
    if not rounds:  # the policy waits for something
        return "fused"
    algorithm, planner = _parts(layout, strategy, job, infos)
    mode, _ = choose_step_mode(algorithm, planner, layout, job, timer, rounds)
    return mode
