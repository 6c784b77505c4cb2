"""The merges of a wave, stage by stage, inside its program.

All devices run a stage at the same time; see `hetjax.runtimes.mesh.merge_stages`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hetjax.data.batching import Batch
from hetjax.engine.programs.task_programs import Programs, applied
from hetjax.machine import MergeOp
from hetjax.merge.group import Group
from hetjax.merge.group_merges import over_axis
from hetjax.merge.masking import masked
from hetjax.merge.types import MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.runtimes.mesh.algorithm import Algorithm, Replicas, States, select
from hetjax.runtimes.mesh.merge_stages import Stage
from hetjax.runtimes.mesh.mesh_layout import AXIS

_ACCURACY = WorkerStats._fields.index("accuracy")


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
    """Run one stage; return the members' accuracies, too, if they were required.

    `here` tells which members of this device take part, and `merges` whether the
    node above them merges at all.
    """
    merge, programs = algorithm.merges[stage.level], algorithm.programs
    omits_absent = MergeProperty.TAKES_GROUPS | MergeProperty.MASKS
    if not (stage.whole or merge.properties & omits_absent):
        merge = masked(merge)  # on a tuple, as elsewhere, of who takes part
    state = states[stage.state]
    members = _members(algorithm, stage, replicas, states)
    accuracy = []
    if merge.required_metrics and MergeOp.PUSH in stage.op:
        measured = _accuracy(algorithm.programs, members, held_out)
        if stage.along_axis or not stage.members:
            group = Group(
                tuple(measured), AXIS, stage.axis_groups, stage.replicated_over
            )
            measured = group.values(lambda x: x)
        stats = stats.at[_ACCURACY].set(measured)
        accuracy = [measured]
    if stage.op == MergeOp.FETCH:
        after, new = programs.fetch(merge)(state, members), state
    elif stage.along_axis or not stage.members:
        along = over_axis(
            merge,
            AXIS,
            axis_groups=stage.axis_groups,
            replicated_over=stage.replicated_over,
        )
        new, after = applied(
            along, state, members, WorkerStats.unpacked(stats), stage.op
        )
    else:  # nodes whose states all devices know
        new, after = applied(
            merge, state, members, WorkerStats.unpacked(stats), stage.op
        )
    if not stage.whole:
        after = tuple(
            select(h, a, m) for h, a, m in zip(here, after, members, strict=True)
        )
        if stage.axis_groups:  # a device may be below a node that does not merge now
            new = select(merges, new, state)
    states = {**states, stage.state: new}
    if not stage.members:
        return after, states, accuracy
    for key, member in zip(stage.members, after, strict=True):
        from_parent = programs.from_parent(algorithm.merge_of(key))
        below = from_parent(states[key], member)
        if not stage.whole:  # then each device has one node below, maybe absent
            below = select(here[0], below, states[key])
        states[key] = below
    return replicas, states, accuracy


def _members(
    algorithm: Algorithm, stage: Stage, replicas: Replicas, states: States
) -> Replicas:
    if not stage.members:
        return replicas
    as_member, of = algorithm.programs.as_member, algorithm.merge_of
    return tuple(as_member(of(key))(states[key]) for key in stage.members)


def _accuracy(
    programs: Programs, members: Sequence[Replica], held_out: Any
) -> jax.Array:
    """[members] the main metric on the held-out data."""
    batches, total = held_out
    metric = programs.task.metric

    def look(sums: jax.Array, batch: Batch) -> tuple[jax.Array, None]:
        found = [
            programs.evaluate_fn(m.params, m.model_state, batch)[metric][0]
            for m in members
        ]
        return sums + jnp.stack(found), None

    sums, _ = lax.scan(look, jnp.zeros(len(members)), batches)
    return sums / total
