"""Measure the seconds of steps on real devices, before a run or to calibrate."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from hetjax.engine.job import Job
from hetjax.engine.placement import Device
from hetjax.engine.player_parts import Assignment
from hetjax.engine.step_runner import StepRunner, StepSettings
from hetjax.replica import Replica
from hetjax.runtimes.real.real_machine import RealMachine

MIN_SAMPLES = 8  # of a measurement
MIN_SECONDS = 0.05  # of a measurement

Costs = tuple[float, float]  # fixed, and per example: seconds of a step


class StepTimer:
    """Runs steps of a strategy on a device, on temporary replicas of the model."""

    def __init__(self, settings: StepSettings, job: Job):
        """Initialize the model as in a run with the job's seed."""
        self._settings, self.job = settings, job
        self._model = job.programs.init(jax.random.key(job.seed))
        self.exact = job.programs.exact
        self.steps = StepRunner(settings, job)
        self._rng = np.random.default_rng(job.seed)

    def replica(self, device: Device) -> Replica:
        """Return a new replica on the device."""
        begin = self.job.programs.replica(
            self._settings.local_update, self._settings.buffers
        )
        return jax.device_put(begin(*self._model), device)

    def rows(self, local_steps: int, size: int) -> list[np.ndarray]:
        """Draw random examples for `local_steps` steps of `size` examples."""
        n = len(self.job.train)
        return [self._rng.integers(n, size=size) for _ in range(local_steps)]

    def arguments(self, device: Device, size: int) -> tuple[Any, ...]:
        """Return the arguments of the program of one step of `size` examples."""
        (rows,) = self.rows(1, size)
        return self.steps.arguments(self.replica(device), rows)

    def lowered(self, device: Device, size: int) -> jax.stages.Lowered:
        """Return the lowered program of one step."""
        return self.steps.lowered(self.arguments(device, size))

    def run(
        self,
        replicas: Sequence[Replica],
        local_steps: int,
        size: int,
        device: Device,
        step_mode: str = "dispatch",
    ) -> list[Replica]:
        """Run the steps of concurrent workers of a device; return the new replicas."""
        group = [
            Assignment(k, replica, self.rows(local_steps, size), np.float32(1e-6), 0)
            for k, replica in enumerate(replicas)
        ]

        def alone(assignment: Assignment) -> Replica:
            return self.steps.run(assignment, step_mode, device).wait().replica

        if len(group) == 1:
            return [alone(group[0])]
        if step_mode == "vmapped":
            return [o.wait().replica for o in self.steps.vmapped(group, device)]
        with ThreadPoolExecutor(len(group)) as pool:
            return list(pool.map(alone, group))

    def seconds(
        self,
        device: Device,
        size: int,
        *,
        local_steps: int = 1,
        step_mode: str = "dispatch",
        learners: int = 1,
        shortest: float = MIN_SECONDS,
    ) -> list[float]:
        """Measure the seconds of a step of `size` examples, several times.

        Each sample is the time of `local_steps` steps of each of `learners` concurrent
        workers, divided by the number of steps. Programs are compiled beforehand.
        """
        steps = local_steps * learners
        replicas = [self.replica(device) for _ in range(learners)]
        found: list[float] = []
        while len(found) <= MIN_SAMPLES or sum(found[1:]) * steps < shortest:
            began = time.perf_counter()
            replicas = self.run(replicas, local_steps, size, device, step_mode)
            found.append((time.perf_counter() - began) / steps)
        return found[1:]  # the first one compiles

    def costs(self, device: Device, size: int) -> Costs:
        """Measure the costs of a step at `size`, and at a quarter of it.

        Of each, the first quartile counts: a busy host makes steps slower, not faster.
        """
        small = max(1, size // 4)
        total, of_small = (
            float(np.quantile(self.seconds(device, n), 0.25)) for n in (size, small)
        )
        share = fixed_share(size, total, small, of_small)
        return share * total, (1 - share) * total / size


def measure_costs(
    machine: RealMachine, timer: StepTimer, batch_size: int
) -> dict[str, Costs]:
    """Measure the costs of a step by worker, without its slowdown."""
    devices = list(dict.fromkeys(w.device for w in machine.workers))

    def compile_on(device: Device) -> None:
        for size in (batch_size, max(1, batch_size // 4)):
            timer.run([timer.replica(device)], 1, size, device)

    with ThreadPoolExecutor(min(4, len(devices))) as pool:
        list(pool.map(compile_on, devices))
    costs = {device: timer.costs(device, batch_size) for device in devices}
    return {worker.name: costs[worker.device] for worker in machine.workers}


def fixed_share(size: int, seconds: float, small: int, small_seconds: float) -> float:
    """Return the share of a step's seconds that does not depend on its examples.

    It is computed from steps of two sizes; with only one size it is 0.
    """
    if small == size:
        return 0.0
    slope = (seconds - small_seconds) / (size - small)
    return min(max(1 - slope * size / seconds, 0.0), 1.0)  # noise may exceed both
