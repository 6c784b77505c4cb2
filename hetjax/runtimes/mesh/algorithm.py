"""What the programs of a mesh are made of: a strategy's parts, and their trees."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hetjax.engine.programs.task_programs import Programs
from hetjax.local import LocalUpdate
from hetjax.merge.types import Merge
from hetjax.replica import Replica, Requires
from hetjax.tree import PyTree

Replicas = tuple[Replica, ...]  # of a device's slots
States = dict[str, PyTree]


class Algorithm(NamedTuple):
    """The parts of a strategy and a job that programs are made of."""

    programs: Programs
    local: LocalUpdate
    merges: tuple[Merge, ...]
    requires: Requires  # buffers, of the lowest merge and of the local update
    levels: tuple[tuple[str, int], ...]  # keys of states and their merges' levels
    root: str  # the key of the root's state
    resets: bool  # is a replica that is not finite reset to the center?
    keeps: bool  # does the sampler observe every loss?

    def merge_of(self, key: str) -> Merge:
        """The merge of the nodes whose states have this key."""
        return self.merges[dict(self.levels)[key]]


def select(chosen: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """One of two trees, leaf by leaf."""
    return jax.tree.map(lambda n, o: jnp.where(chosen, n, o), new, old)
