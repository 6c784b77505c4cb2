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
from hetjax.engine.protocols import Assignment
from hetjax.engine.steps import LONGEST
from hetjax.runtimes.mesh.algorithm import Algorithm
from hetjax.runtimes.mesh.layout import Layout
from hetjax.runtimes.mesh.plan import Planner
from hetjax.runtimes.mesh.waves import Waves
from hetjax.runtimes.step_modes import loops_are_fast
from hetjax.runtimes.threads.step_mode_choice import measured_once
from hetjax.runtimes.threads.step_timer import StepTimer

MOST = 64  # steps of all workers of a device to unroll at most: each is compiled
GAIN = 0.03  # by which a step mode must be faster than the first of the candidates
PASSES = 3  # over the step modes
SECONDS = 0.1  # of a step mode in a pass, at least


def choose_step_mode(
    algorithm: Algorithm,
    planner: Planner,
    layout: Layout,
    job: Job,
    timer: StepTimer,
    local_steps: int,
    size: int,
) -> tuple[str, dict[str, float]]:
    """Choose the step mode of waves in which every worker makes so many steps.

    Only this process's devices are used. Returns (step mode, seconds of a wave without
    merges in each step mode that was tried).
    """
    local = Layout(tuple(layout.devices[i] for i in layout.local), layout.slots)
    device = local.devices[0]
    tried = candidates(local_steps, layout.slots, loops_are_fast(job, device.platform))
    if len(tried) < 2:
        return tried[0], {}
    rows = timer.rows(local_steps, size)

    def measure() -> dict[str, float]:
        found: dict[str, list[float]] = {mode: [] for mode in tried}
        for mode in PASSES * tried:  # in turns: the machine may be busy for a while
            waves = Waves(algorithm, local, planner, job, step_mode=mode, ahead=0)
            found[mode] += _seconds(waves, job, rows)
        return {mode: median(seconds) for mode, seconds in found.items()}

    about = f"{local_steps} steps on a mesh of {len(local.devices)} x {local.slots}"
    seconds = measured_once(measure, timer.lowered(device, size), about, device)
    best = min(seconds, key=lambda mode: seconds[mode])
    worth = seconds[best] < (1 - GAIN) * seconds[tried[0]]
    return best if worth else tried[0], seconds


def candidates(local_steps: int, slots: int, loops_are_fast: bool) -> list[str]:
    """The step modes that are worth a measurement, for so many workers of a device."""
    short = local_steps <= LONGEST and slots * local_steps <= MOST
    unrolled = ["unrolled"] if short else []
    if not loops_are_fast:
        return [*unrolled, "dispatch"] if local_steps > 1 else ["unrolled"]
    fused = ["fused"] if local_steps > 1 or not short else []
    return [*fused, *unrolled, *(["vmapped"] if slots > 1 else [])]


def _seconds(waves: Waves, job: Job, rows: list[np.ndarray]) -> list[float]:
    """The seconds of waves of these rows, on new replicas."""
    waves.begin(job.programs.init(jax.random.key(job.seed)))
    found: list[float] = []
    while len(found) < 2 or sum(found[1:]) < SECONDS:
        began = time.perf_counter()
        for k in range(waves.layout.num_workers):
            waves.start(Assignment(k, None, rows, np.float32(1e-6), 0))
        waves.next()
        waves.complete()
        waves.wait()
        found.append(time.perf_counter() - began)
    return found[1:]  # the first one compiles
