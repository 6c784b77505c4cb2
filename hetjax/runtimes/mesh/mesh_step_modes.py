"""The step mode of a mesh: waves of each mode are run, once; the figures are kept.

What is fastest for the steps of one worker need not be so for a program with the steps
of several workers: where they are unrolled, XLA runs those of different workers side by
side.
"""

import time
from statistics import median

import jax
import numpy as np

from hetjax.engine.job import Job
from hetjax.engine.player_parts import Assignment
from hetjax.machine import LocalRound
from hetjax.runtimes.mesh.algorithm import Algorithm
from hetjax.runtimes.mesh.merge_stages import StagePlanner
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.runtimes.mesh.superstep import may_unroll
from hetjax.runtimes.mesh.supersteps import Supersteps
from hetjax.runtimes.real.step_mode_choice import measured_once
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.runtimes.step_modes import is_small, step_mode_of_table

GAIN = 0.03  # by which a step mode must be faster than the first of the candidates
PASSES = 3  # over the step modes
SECONDS = 0.1  # of a step mode in a pass, at least


def choose_step_mode(
    algorithm: Algorithm,
    planner: StagePlanner,
    layout: MeshLayout,
    job: Job,
    timer: StepTimer,
    rounds: dict[int, LocalRound],
) -> tuple[str, dict[str, float]]:
    """Choose the step mode of waves like the one of these `rounds` by worker.

    Only this process's devices are used. Returns (step mode, seconds of a wave without
    merges in each step mode that was tried).
    """
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
        return tried[0], {}
    rows = [timer.rows(*each) for each in steps]

    def measure() -> dict[str, float]:
        found: dict[str, list[float]] = {mode: [] for mode in tried}
        for mode in PASSES * tried:  # in turns: the machine may be busy for a while
            waves = Supersteps(algorithm, local, planner, job, step_mode=mode, ahead=0)
            found[mode] += _seconds(waves, job, rows)
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
    best = min(seconds, key=lambda mode: seconds[mode])
    worth = seconds[best] < (1 - GAIN) * seconds[tried[0]]
    return best if worth else tried[0], seconds


def candidates(most: int, slots: int, of_table: str, small: bool) -> list[str]:
    """The step modes that are worth a measurement, the likeliest first.

    `most` is the longest worker's number of steps; every worker of a device makes as
    many if they are unrolled. `of_table` is the mode that a table has for a worker
    alone: models that it does not fuse have slow loops. Models that are not `small`
    compile for minutes if they are unrolled.
    """
    unrolled = ["unrolled"] if small and may_unroll(most, slots) else []
    if of_table == "dispatch":
        return ["dispatch"]
    if of_table == "unrolled":
        return [*unrolled, *(["dispatch"] if most > 1 or not unrolled else [])]
    several = ["vmapped"] if slots > 1 else []
    if most < 2:
        return [*unrolled, *several] or ["fused"]
    return ["fused", *unrolled, *several]


def _seconds(waves: Supersteps, job: Job, rows: list[list[np.ndarray]]) -> list[float]:
    """The seconds of waves with these rows of every worker, on new replicas."""
    waves.launches.begin(job.programs.init(jax.random.key(job.seed)))
    found: list[float] = []
    while len(found) < 2 or sum(found[1:]) < SECONDS:
        began = time.perf_counter()
        for k, own in enumerate(rows):
            waves.start(Assignment(k, None, own, np.float32(1e-6), 0))
        waves.next()
        waves.complete()
        waves.wait()
        found.append(time.perf_counter() - began)
    return found[1:]  # the first one compiles
