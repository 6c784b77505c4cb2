"""Prepare a run on threads: measure and compile before the clock starts."""

from hetjax.engine.capabilities import CheckpointSupport
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.protocols import Runtime
from hetjax.engine.reference_player import ReferencePlayer
from hetjax.engine.step_runner import StepRunner, StepSettings
from hetjax.runtimes.real.dry_run import compile_merges, compile_steps, dry_run
from hetjax.runtimes.real.step_mode_choice import (
    choose_step_mode,
    choose_step_modes,
    chosen_before,
)
from hetjax.runtimes.real.step_timer import StepTimer, measure_costs
from hetjax.runtimes.real.wall_clock import WallClock
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.runtimes.threads.thread_executor import DeviceWorker, ThreadExecutor
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import header
from hetjax.tracing.recorder import Recorder


def open_threads(machine: LocalMachine, strategy: Strategy, job: Job) -> Runtime:
    """Measure the workers, compile their programs, and return the runtime."""
    settings = StepSettings.of(strategy)
    timer = StepTimer(settings, job)
    path = job.trace or job.default_trace
    before = chosen_before([w.name for w in machine.workers], job, path)
    infos = machine.infos(measure_costs(machine, timer, strategy.batch_size))
    fastest = min(infos, key=lambda info: info.seconds(strategy.batch_size)).index
    fastest = before.get("nodes", fastest)
    devices = [w.device for w in machine.workers]
    placement = Placement(devices, devices[fastest], timed=True)
    found = dry_run(
        strategy,
        infos,
        machine.faults,
        num_examples=len(job.train),
        seconds=job.instants[-1],
    )
    step_modes = choose_step_modes(
        machine,
        found,
        before.get("step_modes", {}),
        lambda mine, *shape: choose_step_mode(timer, devices[mine[0]], *shape)[0],
    )
    by_worker = [step_modes[w.kind] for w in machine.workers]
    compile_steps(timer, job, devices, by_worker, found)
    compile_merges(strategy, job, infos, placement, found)
    clock = WallClock(
        infos,
        faults=machine.faults,
        on_slow=lambda worker, factor: executor.slow(worker, factor),
        is_compiling=lambda worker: executor.is_compiling(worker),
    )
    workers = [
        DeviceWorker(w.name, w.device, w.slowdown, step_mode)
        for w, step_mode in zip(machine.workers, by_worker, strict=True)
    ]
    executor = ThreadExecutor(StepRunner(settings, job), workers, clock)
    slowdowns = [worker.slowdown for worker in machine.workers]
    about = header(strategy, job, step_modes, fastest, slowdowns)
    recorder = Recorder(infos, about, path, continues=job.continues)
    # a trace file does not hold these, but `replay` in the same process can use them
    recorder.recording.context = (job.programs.task, job.data, strategy)
    return Runtime(
        clock,
        ReferencePlayer(strategy, job, infos, executor, placement),
        step_modes,
        real=True,
        recorder=recorder,
        notes={"placement": "threads"},
        checkpoints=CheckpointSupport("threads"),
        expect=executor.expect,
    )
