"""What the loop sees of the replicas on a mesh: a store that only takes orders.

It has the methods of `hetjax.engine.replicas.ReplicaStore`. Replicas stay on their
devices; merges join the wave that is being handled.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hetjax import tree
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.replicas import Model, counters
from hetjax.machine import MergeAction, Stamps, Topology
from hetjax.merge.types import Merge
from hetjax.runtimes.mesh.layout import first_part, on_device
from hetjax.runtimes.mesh.plan import Asked, Planner
from hetjax.runtimes.mesh.waves import Waves
from hetjax.strategies.types import Strategy


class MeshStore:
    """The replicas and states of one run on a mesh."""

    shared = False  # no merge changes a replica during its round
    measures_members = True  # a wave's program measures what its merges require

    def __init__(
        self,
        strategy: Strategy,
        job: Job,
        placement: Placement,
        topology: Topology,
        *,
        waves: Waves,
        planner: Planner,
        on_fetch: Callable[[int], None],
    ):
        """Initialize the model with the job's seed, and copy it to all devices."""
        del placement, topology, on_fetch  # replicas begin with the initial model
        self._strategy, self._job, self._waves = strategy, job, waves
        self._planner = planner
        with job.compilations.of("init"):
            self._initial = job.programs.init(jax.random.key(job.seed))
        self.num_bytes = tree.num_bytes(self._initial)
        waves.begin(self._initial)

    def model(self) -> Model:
        """Return the root's current model, on a device of this process."""
        state = first_part(self._waves.root_state())
        merge, programs = self._strategy.merges[-1], self._job.programs

        def model(state: Any, *like: Any) -> Model:
            return tree.cast_like(merge.model(on_device(state)), like)

        get = programs.once(("mesh model", merge), lambda: jax.jit(model))
        with self._job.compilations.of("evaluate"):
            return get(state, *self._initial)

    def report(self) -> dict[str, float]:
        """Return the counters of the root's merge."""
        merge = self._strategy.merges[-1]
        if not merge.report:
            return {}
        return counters(merge, on_device(first_part(self._waves.root_state())))

    def merge_of(self, node: str) -> Merge:
        """Return the merge of a node's level; the root has the last one."""
        return self._strategy.merges[self._planner.level_of(node)]

    def replica(self, worker: int) -> None:
        """Do nothing: every worker has had its replica since the run began."""

    def check_out(self, worker: int) -> None:
        """Do nothing: a worker's replica stays on its device."""

    def check_in(self, worker: int, replica: None) -> None:
        """Do nothing: a worker's replica stays on its device."""

    def merge(self, action: MergeAction, stats: np.ndarray) -> Stamps:
        """Add a merge to the wave; the stamps mean nothing."""
        self._waves.ask(Asked(action, stats))
        return Stamps(0.0, 0.0, 0.0, 0.0)
