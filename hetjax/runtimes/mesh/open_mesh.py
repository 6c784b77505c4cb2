"""Preparation of a run on a mesh: measure the devices, choose the step mode.

The fastest step mode for one worker need not be the fastest for a program with the
steps of several workers: if they are unrolled, XLA runs those of different workers
concurrently. So supersteps are timed in each mode, once; the timings are cached.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax
import jaxlib
import numpy as np

from hetjax import tree
from hetjax.engine.capabilities import CheckpointSupport, Coordination
from hetjax.engine.job import Job
from hetjax.engine.player_parts import Assignment
from hetjax.engine.protocols import Runtime
from hetjax.engine.step_runner import StepSettings
from hetjax.machine import WorkerInfo
from hetjax.merge.types import MergeProperty
from hetjax.processes.exchange import current_processes
from hetjax.processes.lifecycle import leave
from hetjax.runtimes.mesh.merge_stages import StagePlanner
from hetjax.runtimes.mesh.mesh_clock import MeshClock
from hetjax.runtimes.mesh.mesh_layout import MeshLayout, check_fits, layout_of
from hetjax.runtimes.mesh.mesh_player import MeshPlayer
from hetjax.runtimes.mesh.stage_program import Algorithm
from hetjax.runtimes.mesh.superstep import may_unroll
from hetjax.runtimes.mesh.superstep_launcher import Supersteps
from hetjax.runtimes.real.step_mode_choice import fastest, measured_once
from hetjax.runtimes.real.step_timer import StepTimer, measure_costs
from hetjax.runtimes.step_modes import is_small, loops_are_fast, step_mode_of_table
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.schedule.action_checks import begin
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import header

# [s] to wait for a process that measures or evaluates; dead ones are detected earlier
_LONG = 3600.0
PASSES = 3  # over the step modes
SECONDS = 0.1  # minimum per step mode and pass


def open_mesh(machine: LocalMachine, strategy: Strategy, job: Job) -> Runtime:
    """Return the runtime of a mesh of the machine's devices."""
    check_fits(job.name, machine, strategy, recorded=job.trace is not None)
    layout, processes = layout_of(machine), current_processes()
    if not layout.is_single_process:
        processes.agree(_facts(machine, strategy, job))
    timer = StepTimer(StepSettings.of(strategy), job)
    # not `jax.local_devices()`, which are of JAX's default platform alone
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
    step_mode = _chosen_by_first(
        lambda: choose_step_mode(timer, layout, strategy, job, infos)
    )
    fast = loops_are_fast(job, layout.devices[0].platform)
    long_step_mode = "fused" if fast else "dispatch"
    return mesh_runtime(layout, strategy, job, infos, step_mode, long_step_mode)


def _chosen_by_first(choose: Callable[[], str]) -> str:
    """Return the choice of process 0; if it fails, all fail."""
    processes, found, failed = current_processes(), {}, None
    if processes.index == 0:
        try:
            found = {"mode": choose()}
        except Exception as error:
            failed = error
            found = {"error": f"{type(error).__name__}: {error}"}
    found = processes.broadcast("step mode", found, _LONG)
    if failed is not None:
        raise failed
    if "error" in found:
        raise RuntimeError(f"process 0 cannot measure step modes: {found['error']}")
    return found["mode"]


def _facts(machine: LocalMachine, strategy: Strategy, job: Job) -> dict[str, str]:
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
    long_step_mode: str = "",
) -> Runtime:
    """The runtime of workers whose measured step times are in `infos`.

    `long_step_mode` is the step mode of supersteps that are too long to unroll.
    """
    algorithm, planner = _algorithm_and_planner(layout, strategy, job, infos)
    device = layout.devices[layout.local[0]]
    # queued programs with collectives can deadlock on several CPU devices: each device
    # needs a thread of its own until all have arrived
    queues = device.platform != "cpu" or len(layout.devices) == 1
    supersteps = Supersteps(
        algorithm,
        layout,
        planner,
        job,
        step_mode=step_mode,
        ahead=int(queues),
        long_step_mode=long_step_mode,
    )
    # a sampler that observes losses needs them before it draws the next round
    fast = loops_are_fast(job, device.platform)
    several = fast and not algorithm.observes_losses and step_mode != "dispatch"
    clock = MeshClock(infos, several=several)
    supersteps.connect(clock)
    return Runtime(
        clock,
        MeshPlayer(strategy, job, supersteps, clock),
        {device.device_kind: step_mode},
        real=True,
        coordination=_coordination(clock, layout),
        notes={
            "placement": f"mesh of {len(layout.devices)} x {layout.workers_per_device} "
            f"workers{_gathered(algorithm, layout)}"
        },
        checkpoints=CheckpointSupport("mesh", at_rest=True),
    )


def _algorithm_and_planner(
    layout: MeshLayout, strategy: Strategy, job: Job, infos: tuple[WorkerInfo, ...]
) -> tuple[Algorithm, StagePlanner]:
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
        observes_losses=strategy.sampler.observe is not None,
    ), planner


def _gathered(algorithm: Algorithm, layout: MeshLayout) -> str:
    """A note on the memory that merges written on tuples need; "" without any.

    A merge of member nodes gathers fewer members than there are workers.
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


def _coordination(clock: MeshClock, layout: MeshLayout) -> Coordination:
    if layout.is_single_process:
        return Coordination()
    share = partial(current_processes().broadcast, "evaluation", timeout=_LONG)
    return Coordination(share, clock.broadcast_interrupt, clock.broadcast_due, leave)


# -- the step mode ---------------------------------------------------------------------


def choose_step_mode(
    timer: StepTimer,
    layout: MeshLayout,
    strategy: Strategy,
    job: Job,
    infos: tuple[WorkerInfo, ...],
) -> str:
    """Choose the step mode that is fastest for the policy's first superstep.

    Only this process's devices are used, and no merges.
    """
    _, actions = begin(strategy.policy, infos, len(job.train))
    rounds = dict(actions.dispatch)
    if not rounds:  # the policy begins without rounds
        return "fused"
    algorithm, planner = _algorithm_and_planner(layout, strategy, job, infos)
    local = MeshLayout(
        tuple(layout.devices[i] for i in layout.local), layout.workers_per_device
    )
    device, first = local.devices[0], layout.local[0] * layout.workers_per_device
    steps = tuple(
        (rounds[k].local_steps, rounds[k].size) if k in rounds else (0, 1)
        for k in range(first, first + local.num_workers)
    )
    tried = candidates(
        max(number for number, _ in steps),
        layout.workers_per_device,
        step_mode_of_table(job, device.platform),
        is_small(job),
    )
    if len(tried) < 2:
        return tried[0]
    rows = [timer.rows(*each) for each in steps]

    def measure() -> dict[str, float]:
        found: dict[str, list[float]] = {mode: [] for mode in tried}
        for mode in PASSES * tried:  # interleaved: the machine may be busy for a while
            supersteps = Supersteps(
                algorithm, local, planner, job, step_mode=mode, ahead=0
            )
            found[mode] += _time_supersteps(supersteps, job, rows)
        return {mode: median(seconds) for mode, seconds in found.items()}

    about = (
        len(local.devices),
        local.workers_per_device,
        steps,
        tried,
        algorithm.resets,
    )
    lowered = timer.lowered(device, max(size for _, size in steps)).as_text()
    seconds = measured_once(measure, lowered, f"mesh {about}", device)
    return fastest(seconds)


def candidates(
    max_steps: int, workers_per_device: int, of_table: str, small: bool
) -> list[str]:
    """The step modes that are worth a measurement, the most likely first.

    `max_steps` is the longest worker's number of steps, which all workers of a device
    make if they are unrolled. `of_table` is the tabulated mode of a single worker:
    models that it does not fuse have slow loops. Models that are not `small` compile
    for minutes if they are unrolled.
    """
    unrolls = small and may_unroll(max_steps, workers_per_device)
    unrolled = ["unrolled"] if unrolls else []
    if of_table == "dispatch":
        return ["dispatch"]
    if of_table == "unrolled":
        return [*unrolled, *(["dispatch"] if max_steps > 1 or not unrolled else [])]
    several = ["vmapped"] if workers_per_device > 1 else []
    if max_steps < 2:
        return [*unrolled, *several] or ["fused"]
    return ["fused", *unrolled, *several]


def _time_supersteps(
    supersteps: Supersteps, job: Job, rows: list[list[np.ndarray]]
) -> list[float]:
    """Time supersteps with these rows of every worker, on new replicas [s]."""
    supersteps.in_flight.begin(job.programs.init(jax.random.key(job.seed)))
    found: list[float] = []
    while len(found) < 2 or sum(found[1:]) < SECONDS:
        began = time.perf_counter()
        for k, own in enumerate(rows):
            supersteps.start(Assignment(k, None, own, np.float32(1e-6), 0))
        supersteps.advance()
        supersteps.complete()
        supersteps.wait()
        found.append(time.perf_counter() - began)
    return found[1:]  # the first one compiles
