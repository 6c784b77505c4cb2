"""The inputs of waves, gathered on the host: batches, step numbers, learning rates."""

from typing import Any

import jax
import numpy as np

from hetjax.data.uneven import common_bucket, make_uneven_batches
from hetjax.engine.job import Job
from hetjax.engine.player_parts import Assignment
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.runtimes.mesh.superstep import Superstep

Steps = tuple[Any, Any, Any]  # batches, numbers, learning rates: [devices, slots, ...]


class Feed:
    """Gathers what the devices of this process need of a wave."""

    def __init__(self, layout: MeshLayout, job: Job):
        """Of one run."""
        self._layout, self._job = layout, job
        # this process's workers, in the order of its devices
        slots = range(layout.workers_per_device)
        self._mine = [
            d * layout.workers_per_device + s for d in layout.local for s in slots
        ]

    def wave(self, assignments: dict[int, Assignment]) -> Superstep:
        """The wave of these rounds."""
        job, chosen = self._job, dict(sorted(assignments.items()))
        bucket = common_bucket(
            job.train,
            [a.rows for a in chosen.values()],
            job.buckets,
            exact=job.programs.exact,
        )
        return Superstep(chosen, bucket)

    def steps(self, wave: Superstep) -> Steps:
        """The inputs of a wave's steps, of this process's devices."""
        found = [wave.assignments.get(k) for k in self._mine]
        rows = [a.rows if a else () for a in found]
        shape = len(self._layout.local), self._layout.workers_per_device
        batches = make_uneven_batches(
            self._job.train, rows, wave.most, wave.bucket, shape
        )
        seed = self._job.seed
        numbers = np.array(
            [
                (len(a.rows), seed, k, a.first_step, k in wave.late)
                if a
                else (0, seed, k, 0, False)
                for k, a in zip(self._mine, found, strict=True)
            ],
            np.uint32,
        ).reshape(*shape, -1)
        rates = np.array([a.learning_rate if a else 0 for a in found], np.float32)
        return batches, numbers, rates.reshape(shape)

    def step(self, steps: Steps, i: int) -> Steps:
        """The inputs of step i alone, of the inputs of a wave's steps."""
        batches, numbers, rates = steps
        only = numbers.copy()
        only[..., 0] = numbers[..., 0] > i
        only[..., 3] = numbers[..., 3] + i
        return jax.tree.map(lambda x: x[:, :, i : i + 1], batches), only, rates

    def held_out(self) -> Any:
        """The held-out batches [n, ...] and their examples; () without any."""
        job = self._job
        if not job.held_out:
            return ()
        stacked = jax.tree.map(
            lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *job.held_out
        )
        return self._layout.everyone((stacked, np.float32(job.num_held_out)))
