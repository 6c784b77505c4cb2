"""Open a simulated machine: the virtual clock, and steps on devices of this host."""

import os
from contextlib import suppress
from itertools import islice
from typing import Any

from hetjax.data.batching import nonzeros_per_example
from hetjax.engine.capabilities import CheckpointSupport
from hetjax.engine.decisions import write_unplayed
from hetjax.engine.device_data import rows_on
from hetjax.engine.job import Job
from hetjax.engine.placement import Device, Placement
from hetjax.engine.player_parts import Assignment, Executor
from hetjax.engine.protocols import Runtime
from hetjax.engine.reference_player import ReferencePlayer
from hetjax.engine.step_runner import RoundOutcome, StepRunner, StepSettings
from hetjax.machine import Machine, SimulatedClock, WorkerInfo
from hetjax.runtimes.compiled.batch_sources import HostRows
from hetjax.runtimes.compiled.compiled_player import CompiledPlayer
from hetjax.runtimes.compiled.player_choice import (
    CHECKPOINT_KINDS,
    PlayerChoice,
    choose,
    max_steps_ahead,
    num_lanes,
    reconsider,
)
from hetjax.runtimes.compiled.side_by_side import SideBySidePlayer
from hetjax.runtimes.devices import default_device, device_name, simulation_devices
from hetjax.runtimes.inline import InlineExecutor, PooledExecutor, SpreadExecutor
from hetjax.runtimes.step_modes import step_mode_of_table
from hetjax.schedule.action_checks import begin
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import check_calibration

LOOKAHEAD = 1000  # entries of a tape, plus 20 for each worker


def open_simulated(machine: Machine, strategy: Strategy, job: Job) -> Runtime:
    """Return the runtime of a simulated machine: virtual clock and local executor."""
    check_calibration(machine, job.programs.task)
    clock = SimulatedClock(
        machine,
        seed=job.schedule,
        nonzeros_per_example=nonzeros_per_example(job.data.train),
    )
    devices = _devices(strategy, job, clock.workers)
    choice = choose(strategy, job, len(clock.workers), devices)
    begins = _lookahead(machine, strategy, job) if choice.compiled else []
    platform = devices[0].platform
    choice = reconsider(choice, strategy, job, clock.workers, begins, platform)
    placed = f"on {', '.join(map(device_name, devices))}"
    notes = {"placement": placed, "played": choice.description}
    if choice.compiled:
        player = _compiled(strategy, job, clock.workers, devices[0], choice)
        player.expect(begins)
        support = CheckpointSupport(CHECKPOINT_KINDS[True], whole=True)
        return Runtime(clock, player, {}, notes=notes, checkpoints=support)
    # worker k is on device k % D; merges and evaluations run on the first one
    number, placement = len(clock.workers), Placement()
    if devices != (default_device(),):
        of_workers = [devices[k % len(devices)] for k in range(number)]
        placement = Placement(of_workers, devices[0])
    step_mode = step_mode_of_table(job, platform)
    steps = StepRunner(StepSettings.of(strategy), job)
    executor = _executor(steps, step_mode, devices, placement, number)
    step_modes = {devices[0].device_kind: step_mode}
    player = ReferencePlayer(strategy, job, clock.workers, executor, placement)
    support = CheckpointSupport(CHECKPOINT_KINDS[False])
    return Runtime(clock, player, step_modes, notes=notes, checkpoints=support)


def _lookahead(machine: Machine, strategy: Strategy, job: Job) -> list[Any]:
    """Write the beginning of the run's tape in advance."""
    clock, entries = SimulatedClock(machine, seed=job.schedule), []
    tape = write_unplayed(
        strategy.policy,
        clock,
        num_examples=len(job.train),
        instants=job.instants,
    )
    with suppress(Exception):  # the run itself will raise it
        for entry in islice(tape, LOOKAHEAD + 20 * len(clock.workers)):
            entries.append(entry)
            if clock.now > job.instants[-1]:
                break
    return entries


def _compiled(
    strategy: Strategy,
    job: Job,
    workers: tuple[WorkerInfo, ...],
    device: Device,
    choice: PlayerChoice,
) -> CompiledPlayer:
    """Return the player of a compiled run on a device."""
    at = None if device == default_device() else device
    data = (
        rows_on(job, at)
        if choice.on_device
        else HostRows(job.train, strategy.batch_size)
    )
    make = CompiledPlayer if job.variants is None else SideBySidePlayer
    lanes = num_lanes(job, strategy, len(workers), device)
    most = max_steps_ahead(strategy, job, device.platform)
    return make(strategy, job, workers, data, at, lanes=lanes, max_steps_ahead=most)


def _devices(
    strategy: Strategy, job: Job, workers: tuple[WorkerInfo, ...]
) -> tuple[Device, ...]:
    """Return the devices over which the workers are spread.

    Unless the user names them, a single computing worker uses only one device: several
    would only add transfers.
    """
    devices = simulation_devices(job.devices)[: len(workers)]
    if job.devices is not None or len(devices) == 1:
        return devices
    _, actions = begin(strategy.policy, workers, len(job.train))
    several = len({worker for worker, _ in actions.dispatch}) > 1
    return devices if several else devices[:1]


def _executor(
    steps: StepRunner,
    step_mode: str,
    devices: tuple[Device, ...],
    placement: Placement,
    workers: int,
) -> Executor:
    """Return an executor of steps on the workers' devices."""

    def run(assignment: Assignment) -> RoundOutcome:
        return steps.run(assignment, step_mode, placement.of_worker(assignment.worker))

    # on a CPU, one more thread than cores: it prepares the next batches
    threads = min(workers, cores() + 1) if devices[0].platform == "cpu" else 1
    pooled = threads > 1 and cores() > 1
    executor = PooledExecutor(run, threads) if pooled else InlineExecutor(run)
    if len(devices) == 1:
        return executor
    return SpreadExecutor(run, placement.workers, executor)


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1
