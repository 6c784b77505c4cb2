"""Preparation of a real run: measure and compile before the clock starts."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hetjax.engine.capabilities import CheckpointSupport
from hetjax.engine.job import Job
from hetjax.engine.local_steps import StepRunner, StepSettings
from hetjax.engine.placement import Placement
from hetjax.engine.protocols import Runtime
from hetjax.engine.reference_player import ReferencePlayer
from hetjax.runtimes.real.dry_run import (
    DryRun,
    compile_merges,
    compile_steps,
    dry_run,
)
from hetjax.runtimes.real.step_mode_choice import choose_step_mode
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.runtimes.real.wall_clock import WallClock
from hetjax.runtimes.threads.device_workers import DeviceWorker, WorkerThreads
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.runtimes.threads.thread_executor import ThreadExecutor
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import header
from hetjax.tracing.format import Line
from hetjax.tracing.recorder import Recorder
from hetjax.tracing.trace import Trace


def open_threads(machine: LocalMachine, strategy: Strategy, job: Job) -> Runtime:
    """Measure the workers, compile their programs, and return the runtime."""
    settings = StepSettings.of(strategy)
    timer = StepTimer(settings, job)
    path = job.trace or job.usual_trace
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
    step_modes = choose_step_modes(machine, timer, found, before.get("step_modes", {}))
    by_worker = [step_modes[w.kind] for w in machine.workers]
    compile_steps(timer, job, devices, by_worker, found)
    compile_merges(strategy, job, infos, placement, found)
    crew = WorkerThreads(
        [
            DeviceWorker(w.name, w.device, w.slowdown, step_mode)
            for w, step_mode in zip(machine.workers, by_worker, strict=True)
        ],
        job.compilations,
    )
    clock = WallClock(
        infos,
        faults=machine.faults,
        on_slow=crew.slow,
        is_compiling=crew.is_compiling,
    )
    slowdowns = [worker.slowdown for worker in machine.workers]
    about = header(strategy, job, step_modes, fastest, slowdowns)
    recorder = Recorder(infos, about, path, continues=job.continues)
    # a trace file does not hold these, but `replay` in the same process can use them
    recorder.recording.context = (job.programs.task, job.data, strategy)
    executor = ThreadExecutor(StepRunner(settings, job), crew, clock)
    return Runtime(
        clock,
        ReferencePlayer(strategy, job, infos, executor, placement),
        step_modes,
        real=True,
        recorder=recorder,
        notes={"placement": "threads"},
        checkpoints=CheckpointSupport("threads"),
    )


def chosen_before(names: Sequence[str], job: Job, path: str | Path | None) -> Line:
    """The header of the trace of a run that goes on with the same workers; else {}.

    What was chosen by measuring stays, since it decides the last bits of the results:
    the trace must replay as one run.
    """
    if not job.continues or path is None:
        return {}
    found = Trace.header_of(path)
    before = [w["name"] for w in found.get("workers", [])]
    return found if before == list(names) else {}


def choose_step_modes(
    machine: LocalMachine, timer: StepTimer, found: DryRun, before: dict[str, str]
) -> dict[str, str]:
    """Choose the step mode for each kind of device, for its most common round.

    Those that were chosen `before` stay.
    """
    step_modes = {}
    for kind in {w.kind for w in machine.workers}:
        mine = [k for k, w in enumerate(machine.workers) if w.kind == kind]
        shapes = sum((found.shapes[k] for k in mine), Counter())
        learners = most_learners(machine, kind)
        # a single step of a single worker has only one step mode
        several = {
            k: n for k, n in shapes.items() if k[0] > 1 or (k[0] and learners > 1)
        }
        if machine.step_mode or not several:
            step_modes[kind] = machine.step_mode or "dispatch"
            continue
        if kind in before:
            step_modes[kind] = before[kind]
            continue
        local_steps, size = max(several, key=lambda shape: several[shape])
        device = machine.workers[mine[0]].device
        step_modes[kind], _ = choose_step_mode(
            timer, device, local_steps, size, learners
        )
    return step_modes


def most_learners(machine: LocalMachine, kind: str) -> int:
    """The largest number of workers that share a device of this kind."""
    return max(Counter(w.device for w in machine.workers if w.kind == kind).values())


def measure_costs(
    machine: LocalMachine, timer: StepTimer, batch_size: int
) -> dict[str, tuple[float, float]]:
    """Measure (fixed, per example) seconds of a step by worker.

    Each device is measured at `batch_size`. The fixed share is measured with a second
    batch size, on the first device of each kind.
    """
    kinds = {w.kind: w.device for w in reversed(machine.workers)}
    small = max(1, batch_size // 4)
    pairs = [(device, batch_size) for device in machine.devices]
    if small < batch_size:
        pairs += [(device, small) for device in kinds.values()]
    with ThreadPoolExecutor(min(4, len(pairs))) as pool:  # compile in parallel
        list(pool.map(lambda pair: timer.seconds(*pair, samples=1, shortest=0), pairs))
    seconds = {pair: first_quartile(timer.seconds(*pair)) for pair in pairs}
    fixed = {
        kind: fixed_share(
            batch_size, seconds[device, batch_size], small, seconds[device, small]
        )
        for kind, device in kinds.items()
    }
    costs = {}
    for worker in machine.workers:
        total = seconds[worker.device, batch_size]
        share = fixed[worker.kind]
        costs[worker.name] = share * total, (1 - share) * total / batch_size
    return costs


def fixed_share(size: int, seconds: float, small: int, of_small: float) -> float:
    """The share of a step's seconds that does not depend on its examples.

    It is found from steps of two sizes; with only one, it is 0.
    """
    if small == size:
        return 0.0
    slope = (seconds - of_small) / (size - small)
    return min(max(1 - slope * size / seconds, 0.0), 1.0)  # noise must not be negative


def first_quartile(seconds: list[float]) -> float:
    """The usual time of a step: a busy host makes steps slower but never faster."""
    return float(np.quantile(seconds, 0.25))
