"""A simulated machine: the virtual clock, and steps on this host's default device."""

import os
from functools import partial

import jax

from hetjax.data.batching import nonzeros_per_example
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.protocols import Executor, Runtime
from hetjax.engine.steps import Steps
from hetjax.machine import Machine, SimulatedClock
from hetjax.runtimes.inline import Inline, Pooled
from hetjax.runtimes.step_modes import step_mode_of_table
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import check_calibration


def open_simulated(machine: Machine, strategy: Strategy, job: Job) -> Runtime:
    """Return the runtime of a simulated machine: virtual clock and local executor."""
    check_calibration(machine, job.programs.task)
    (device, *_) = jax.devices()
    step_mode = step_mode_of_table(job, device.platform)
    clock = SimulatedClock(
        machine,
        seed=job.seed,
        nonzeros_per_example=nonzeros_per_example(job.data.train),
    )
    run = partial(Steps(strategy, job).run, step_mode=step_mode)
    executor: Executor = Inline(run)
    if device.platform == "cpu" and cores() > 1:
        # one more than there are cores: it prepares the next batches
        threads = min(len(clock.workers), cores() + 1)
        executor = Pooled(run, threads) if threads > 1 else executor
    step_modes = {device.device_kind: step_mode}
    return Runtime(clock, executor, Placement(), step_modes)


def cores() -> int:
    """The number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1
