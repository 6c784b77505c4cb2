"""One stage of merges inside the program of a superstep."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from hetjax.data.batching import Batch
from hetjax.engine.programs.merge_functions import applied, fetch_fn
from hetjax.engine.programs.task_programs import Programs
from hetjax.local import LocalUpdate
from hetjax.machine import MergeOp
from hetjax.merge.group import Group
from hetjax.merge.group_merges import over_axis
from hetjax.merge.masking import masked
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica, Requires
from hetjax.runtimes.mesh.merge_stages import Stage
from hetjax.runtimes.mesh.mesh_layout import AXIS
from hetjax.tree import PyTree

_ACCURACY = WorkerStats._fields.index("accuracy")

Replicas = tuple[Replica, ...]  # of one device's workers
States = dict[str, PyTree]


class Algorithm(NamedTuple):
    """The parts of a strategy and a job that the programs of a mesh are built from."""

    programs: Programs
    local: LocalUpdate
    merges: tuple[Merge, ...]
    requires: Requires  # buffers that the lowest merge and the local update need
    levels: tuple[tuple[str, int], ...]  # keys of states, and levels of their merges
    root: str  # the key of the root's state
    resets: bool  # whether replicas that are not finite are reset to the center
    observes_losses: bool  # whether the sampler observes every loss

    def merge_of(self, key: str) -> Merge:
        """The merge of the nodes whose states have this key."""
        return self.merges[dict(self.levels)[key]]


def select(chosen: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """Select one of two trees, leaf by leaf."""
    return jax.tree.map(lambda n, o: jnp.where(chosen, n, o), new, old)


def run_stage(
    algorithm: Algorithm,
    stage: Stage,
    replicas: Replicas,
    states: States,
    stats: jax.Array,
    here: jax.Array,
    held_out: Any,
    *,
    merges: jax.Array,
) -> tuple[Replicas, States, list[jax.Array]]:
    """Run one stage; also return the members' accuracies if the merge requires them.

    `here` is the mask of this device's members that take part, and `merges` whether the
    node above them merges at all.
    """
    merge, programs = algorithm.merges[stage.level], algorithm.programs
    omits_absent = MergeProperty.TAKES_GROUPS | MergeProperty.MASKS
    if not (stage.whole or merge.properties & omits_absent):
        merge = masked(merge)  # on the tuple of those that take part, as elsewhere
    state = states[stage.state]
    of = algorithm.merge_of
    members = replicas
    if stage.members:
        members = tuple(programs.as_member(of(k))(states[k]) for k in stage.members)
    on_devices = stage.along_axis or not stage.members  # else every device has all
    accuracy = []
    if merge.required_metrics and MergeOp.PUSH in stage.op:
        measured = _accuracy(programs, members, held_out)
        if on_devices:
            group = Group(
                tuple(measured), AXIS, stage.axis_groups, stage.replicated_over
            )
            measured = group.values(lambda x: x)
        stats = stats.at[_ACCURACY].set(measured)
        accuracy = [measured]
    if stage.op == MergeOp.FETCH:
        after, new = fetch_fn(merge)(state, members), state
    else:
        if on_devices:
            groups, above = stage.axis_groups, stage.replicated_over
            merge = over_axis(merge, AXIS, axis_groups=groups, replicated_over=above)
        unpacked = WorkerStats.unpacked(stats)
        new, after = applied(merge, state, members, unpacked, stage.op)
    if not stage.whole:
        after = tuple(
            select(h, a, m) for h, a, m in zip(here, after, members, strict=True)
        )
        if stage.axis_groups:  # the node above a device may not merge now
            new = select(merges, new, state)
    states = {**states, stage.state: new}
    if not stage.members:
        return after, states, accuracy
    for key, member in zip(stage.members, after, strict=True):
        below = programs.from_parent(of(key))(states[key], member)
        if not stage.whole:  # each device is below one member node, maybe absent
            below = select(here[0], below, states[key])
        states[key] = below
    return replicas, states, accuracy


def _accuracy(
    programs: Programs, members: Sequence[Replica], held_out: Any
) -> jax.Array:
    """Return the main metric on the held-out data, [members]."""
    batches, total = held_out
    metric = programs.task.metric

    def add(sums: jax.Array, batch: Batch) -> tuple[jax.Array, None]:
        found = [
            programs.evaluate_fn(m.params, m.model_state, batch)[metric][0]
            for m in members
        ]
        return sums + jnp.stack(found), None

    sums, _ = lax.scan(add, jnp.zeros(len(members)), batches)
    return sums / total
