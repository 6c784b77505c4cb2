"""What the loop sees of the replicas on a mesh: a store that only takes orders.

It has the methods of `hetjax.engine.replicas.ReplicaStore`. Replicas stay on their
devices; merges join the wave that is being handled.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hetjax import tree
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.replicas import Model, counters
from hetjax.machine import ROOT, MergeAction, MergeOp, Stamps, Topology
from hetjax.merge.types import Merge
from hetjax.runtimes.mesh.layout import first_part, on_device
from hetjax.runtimes.mesh.plan import Asked, Planner
from hetjax.runtimes.mesh.waves import Waves
from hetjax.saved import Leaves
from hetjax.strategies.types import Strategy


class MeshStore:
    """The replicas and states of one run on a mesh."""

    shared = False  # no merge changes a replica during its round
    merges_block = True  # the next round is another program
    measures_members = True  # a wave's program measures what its merges require
    measures_traffic = False  # the ledger counts the models that merges move

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
        del placement, topology
        self._on_fetch = on_fetch
        self._begun: set[int] = set()  # workers that have a replica of their own
        self._moved = False  # has a merge changed the root's model?
        self._job, self._waves = job, waves
        self._merges = job.programs.merges_of(strategy)
        self._planner = planner
        with job.compilations.of("init"):
            initial = job.programs.init(jax.random.key(job.seed))
        self.num_bytes = tree.num_bytes(initial)
        self._like = jax.eval_shape(lambda *model: model, *initial)
        waves.launches.begin(initial)

    def model(self) -> Model:
        """Return the root's current model, on a device of this process."""
        state = first_part(self._waves.root_state())
        merge, programs = self._merges[-1], self._job.programs

        def model(state: Any) -> Model:
            return tree.cast_like(merge.model(on_device(state)), self._like)

        get = programs.once(("mesh model", merge), lambda: jax.jit(model))
        with self._job.compilations.of("evaluate"):
            return get(state)

    def report(self) -> dict[str, float]:
        """Return the counters of the root's merge."""
        merge = self._merges[-1]
        if not merge.report:
            return {}
        return counters(merge, on_device(first_part(self._waves.root_state())))

    def merge_of(self, node: str) -> Merge:
        """Return the merge of a node's level; the root has the last one."""
        return self._merges[self._planner.level_of(node)]

    def replica(self, worker: int) -> None:
        """Count a worker that merges among those that have a replica of their own."""
        if self._begins(worker):
            raise ValueError(
                f"worker {worker} takes part in a merge before its first round, but "
                "others have merged before: on a mesh a worker begins with a round; "
                'give it one, or take placement="threads"'
            )

    def check_out(self, worker: int) -> None:
        """Do nothing but once: a first round begins from the root's model."""
        if self._begins(worker):
            self._waves.begin_late(worker)

    def _begins(self, worker: int) -> bool:
        """Does a worker get its replica now, of a model that is not the initial one?"""
        if worker in self._begun:
            return False
        self._begun.add(worker)
        self._on_fetch(worker)
        return self._moved

    def check_in(self, worker: int, replica: None) -> None:
        """Do nothing: a worker's replica stays on its device."""

    def settle(self) -> bool:
        """Wait until it is known which rounds were finite."""
        self._waves.settle()
        return True

    def reset_to_center(self, worker: int) -> None:
        """Do nothing: the program has reset a replica that is not finite."""

    def save(self) -> dict[str, Any]:
        """Return the replicas and states of this process's devices."""
        self._waves.settle()
        root = on_device(first_part(self._waves.root_state()))
        return {
            "root": Leaves(jax.tree.leaves(root)),
            "mesh": self._waves.launches.save(),
            "begun": self._begun,
            "moved": self._moved,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self._waves.launches.load(saved["mesh"])
        self._begun, self._moved = saved["begun"], saved["moved"]

    def load_root(self, leaves: list[Any]) -> None:
        """Continue with the root alone: all else begins from its model."""
        merge, programs = self._merges[-1], self._job.programs
        like = jax.eval_shape(programs.state(merge), *self._like)
        state = tree.filled(like, leaves, "the state of the root")
        model = programs.model(merge)(state, *programs.init(jax.random.key(0)))
        self._waves.launches.begin(model, root=state)

    def leaves_of(self, replica: None) -> list[Any]:
        """Return nothing: a worker's replica stays on its device."""
        return []

    def model_of(self, leaves: list[Any]) -> Model:
        """Return a model from a saved one's arrays."""
        return self._job.programs.copies(tree.filled(self._like, leaves, "the model"))

    def gather(self, action: MergeAction) -> Sequence[int]:
        """Return nothing: a mesh that loses a worker ends."""
        del action
        return ()

    def traffic(self, worker: int) -> tuple[int, int]:
        """Return nothing: what XLA's collectives move is not counted."""
        del worker
        return 0, 0

    def merge(self, action: MergeAction, stats: np.ndarray) -> Stamps:
        """Add a merge to the wave; the stamps mean nothing."""
        changes = action.node == ROOT and action.op != MergeOp.FETCH
        self._moved = self._moved or changes
        self._waves.ask(Asked(action, stats))
        return Stamps(0.0, 0.0, 0.0, 0.0)
