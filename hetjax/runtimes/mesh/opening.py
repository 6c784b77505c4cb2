"""Preparation of a run on a mesh: measure the devices, choose how steps run."""

from collections import Counter
from functools import partial

from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.protocols import Runtime
from hetjax.machine import WorkerInfo
from hetjax.runtimes.mesh.clock import MeshClock
from hetjax.runtimes.mesh.executor import MeshExecutor
from hetjax.runtimes.mesh.layout import Layout
from hetjax.runtimes.mesh.placing import check_fits, layout_of
from hetjax.runtimes.mesh.plan import Planner
from hetjax.runtimes.mesh.programs import Algorithm
from hetjax.runtimes.mesh.store import MeshStore
from hetjax.runtimes.mesh.waves import Waves
from hetjax.runtimes.step_modes import loops_are_fast
from hetjax.runtimes.threads.machine import RealMachine
from hetjax.runtimes.threads.preparation import measure_costs
from hetjax.runtimes.threads.step_mode_choice import choose_step_mode
from hetjax.runtimes.threads.step_timer import StepTimer
from hetjax.strategies.types import Strategy


def open_mesh(machine: RealMachine, strategy: Strategy, job: Job) -> Runtime:
    """Return the runtime of a mesh of the machine's devices."""
    check_fits(job.name, machine, strategy, recorded=job.trace is not None)
    layout = layout_of(machine)
    timer = StepTimer(strategy, job)
    infos = machine.infos(measure_costs(machine, timer, strategy.batch_size))
    step_mode = machine.step_mode or _choose(timer, layout, strategy, job, infos)
    return mesh_runtime(layout, strategy, job, infos, step_mode)


def mesh_runtime(
    layout: Layout,
    strategy: Strategy,
    job: Job,
    infos: tuple[WorkerInfo, ...],
    step_mode: str,
) -> Runtime:
    """The runtime of workers whose measured step times are in `infos`."""
    topology = strategy.policy.topology(infos)
    planner = Planner(layout, topology, len(strategy.merges))
    algorithm = Algorithm(
        programs=job.programs,
        local=strategy.local,
        merges=strategy.merges,
        requires=(*strategy.merges[0].requires, *strategy.local.requires),
        levels=tuple(planner.state_keys.items()),
        root=planner.root_key,
        resets=job.on_nan == "reset",
        keeps=strategy.sampler.observe is not None,
    )
    device = layout.devices[0]
    # programs with collectives that queue on several CPU devices can block each other:
    # each device needs a thread of its own until all have arrived
    queues = device.platform != "cpu" or len(layout.devices) == 1
    waves = Waves(
        algorithm, layout, planner, job, step_mode=step_mode, ahead=int(queues)
    )
    # where losses are observed, the next round cannot be drawn before they are known
    several = not algorithm.keeps and loops_are_fast(job, device.platform)
    clock = MeshClock(infos, waves, several=several)
    return Runtime(
        clock,
        MeshExecutor(waves, clock),
        Placement(),
        {device.device_kind: step_mode},
        real=True,
        open_store=partial(MeshStore, waves=waves, planner=planner),
        corrected=clock.corrected,
        estimates_busy=True,
        note=f"mesh of {len(layout.devices)} x {layout.slots} workers",
    )


def _choose(
    timer: StepTimer,
    layout: Layout,
    strategy: Strategy,
    job: Job,
    infos: tuple[WorkerInfo, ...],
) -> str:
    """The step mode that is fastest for the most common round of the first wave."""
    _, actions = strategy.policy.init(infos, len(job.train))
    shapes = Counter((r.local_steps, r.size) for _, r in actions.dispatch)
    (local_steps, size), _ = shapes.most_common(1)[0]
    device = layout.devices[layout.local[0]]
    mode, _ = choose_step_mode(timer, device, local_steps, size, layout.slots)
    # steps that were fastest one by one need no loop in the program
    few = local_steps <= 16
    return mode if mode != "dispatch" else "unrolled" if few else "fused"
