"""Seconds of steps on real devices, measured before a run or for a calibration."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from hetjax import tree
from hetjax.replica import Replica
from hetjax.run.compilations import Compilations
from hetjax.run.executor import Assignment, Device
from hetjax.run.job import Job
from hetjax.run.steps import Steps
from hetjax.strategies.types import Strategy

SAMPLES = 8  # of a measurement, at least
SECONDS = 0.05  # that it takes, at least


class StepTimer:
    """Runs steps of a strategy on a device, on throw-away replicas of the model."""

    def __init__(self, strategy: Strategy, job: Job, compilations: Compilations):
        """The model begins where a run with the job's seed does."""
        self._strategy, self._job = strategy, job
        self._model = job.programs.init(jax.random.key(job.seed))
        statistics = jax.tree.leaves(self._model[1])
        self.exact = any(map(tree.is_float, statistics))
        shared = strategy.merges[0].moves_working
        self.steps = Steps(
            strategy, job, compilations, exact=self.exact, donate=not shared
        )
        self._rng = np.random.default_rng(job.seed)

    def replica(self, device: Device) -> Replica:
        """A new one there."""
        rule, merge = self._strategy.local, self._strategy.merges[0]
        begin = self._job.programs.replica(rule, (*merge.needs, *rule.needs))
        return jax.device_put(begin(*self._model), device)

    def rows(self, steps: int, size: int) -> list[np.ndarray]:
        """Random examples for so many steps."""
        n = len(self._job.train)
        return [self._rng.integers(n, size=size) for _ in range(steps)]

    def lowered(self, device: Device, size: int) -> str:
        """The text of the program of one step."""
        (rows,) = self.rows(1, size)
        return self.steps.lowered(self.replica(device), rows)

    def once(
        self,
        replica: Replica,
        rows: Sequence[np.ndarray],
        device: Device,
        form: str = "dispatch",
    ) -> tuple[Any, float]:
        """(the replica behind the steps, their seconds)."""
        assignment = Assignment(0, replica, rows, np.float32(1e-6), 0)
        began = time.perf_counter()
        outcome = self.steps.run(assignment, form, device).wait()
        return outcome.replica, time.perf_counter() - began

    def seconds(
        self,
        device: Device,
        size: int,
        *,
        steps: int = 1,
        form: str = "dispatch",
        samples: int = SAMPLES,
        shortest: float = SECONDS,
    ) -> list[float]:
        """Seconds of one step of `size` examples, of each sample of `steps` steps.

        Programs are compiled before.
        """
        replica, _ = self.once(
            self.replica(device), self.rows(steps, size), device, form
        )
        found: list[float] = []
        total = 0.0
        while len(found) < samples or total < shortest:
            rows = self.rows(steps, size)
            replica, seconds = self.once(replica, rows, device, form)
            found.append(seconds / steps)
            total += seconds
        return found

    def seconds_of_several(
        self, device: Device, learners: int, size: int, *, steps: int, form: str
    ) -> list[float]:
        """As `seconds`, of learners that do such works on one device side by side.

        Seconds of the whole over all their steps, of each sample.
        """
        replicas = [self.replica(device) for _ in range(learners)]

        def apart(k: int) -> None:
            rows = self.rows(steps, size)
            replicas[k], _ = self.once(replicas[k], rows, device, form)

        found: list[float] = []
        with ThreadPoolExecutor(learners) as pool:
            while len(found) <= SAMPLES or sum(found[1:]) * learners * steps < SECONDS:
                began = time.perf_counter()
                if form == "vmapped":
                    replicas = self.together(device, replicas, size, steps)
                else:
                    list(pool.map(apart, range(learners)))
                found.append((time.perf_counter() - began) / learners / steps)
        return found[1:]  # the first one compiles

    def together(
        self, device: Device, replicas: Sequence[Replica], size: int, steps: int
    ) -> list[Replica]:
        """The replicas behind so many steps each, in one program."""
        group = [
            Assignment(k, replica, self.rows(steps, size), np.float32(1e-6), 0)
            for k, replica in enumerate(replicas)
        ]
        return [o.wait().replica for o in self.steps.together(group, device)]
