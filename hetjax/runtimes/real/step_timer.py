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

MIN_SAMPLES = 8  # of a measurement
MIN_SECONDS = 0.05  # of a measurement


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

    def run_once(
        self,
        replica: Replica,
        rows: Sequence[np.ndarray],
        device: Device,
        step_mode: str = "dispatch",
    ) -> tuple[Any, float]:
        """Run the steps; return (the replica after them, their seconds)."""
        assignment = Assignment(0, replica, rows, np.float32(1e-6), 0)
        began = time.perf_counter()
        outcome = self.steps.run(assignment, step_mode, device).wait()
        return outcome.replica, time.perf_counter() - began

    def seconds(
        self,
        device: Device,
        size: int,
        *,
        local_steps: int = 1,
        step_mode: str = "dispatch",
        samples: int = MIN_SAMPLES,
        shortest: float = MIN_SECONDS,
    ) -> list[float]:
        """Measure the seconds of one step of `size` examples.

        Each sample runs `local_steps` steps. Programs are compiled beforehand.
        """
        replica, _ = self.run_once(
            self.replica(device), self.rows(local_steps, size), device, step_mode
        )
        found: list[float] = []
        total = 0.0
        while len(found) < samples or total < shortest:
            rows = self.rows(local_steps, size)
            replica, seconds = self.run_once(replica, rows, device, step_mode)
            found.append(seconds / local_steps)
            total += seconds
        return found

    def seconds_of_several(
        self,
        device: Device,
        learners: int,
        size: int,
        *,
        local_steps: int,
        step_mode: str,
    ) -> list[float]:
        """Measure as `seconds` does, for `learners` concurrent workers of one device.

        Each sample is the total time divided by the number of all their steps.
        """
        replicas = [self.replica(device) for _ in range(learners)]

        def run_alone(k: int) -> None:
            rows = self.rows(local_steps, size)
            replicas[k], _ = self.run_once(replicas[k], rows, device, step_mode)

        found: list[float] = []
        with ThreadPoolExecutor(learners) as pool:
            while (
                len(found) <= MIN_SAMPLES
                or sum(found[1:]) * learners * local_steps < MIN_SECONDS
            ):
                began = time.perf_counter()
                if step_mode == "vmapped":
                    replicas = self.vmapped(device, replicas, size, local_steps)
                else:
                    list(pool.map(run_alone, range(learners)))
                found.append((time.perf_counter() - began) / learners / local_steps)
        return found[1:]  # the first one compiles

    def vmapped(
        self, device: Device, replicas: Sequence[Replica], size: int, local_steps: int
    ) -> list[Replica]:
        """Run steps of all replicas in one program; return the new replicas."""
        group = [
            Assignment(k, replica, self.rows(local_steps, size), np.float32(1e-6), 0)
            for k, replica in enumerate(replicas)
        ]
        return [o.wait().replica for o in self.steps.vmapped(group, device)]
