"""The merges of a superstep as stages, each of which all devices run at the same time.

A policy requests one merge after another: a node of a tree, its sibling, their parent.
Merges of different workers and nodes commute, so siblings go into one stage: a single
collective, in which every group of the mesh axis merges on its own. This needs nodes
that consist of whole devices; other nodes merge one by one. `StagePlanner` plans the
stages on the host, and `run_stage` runs one inside the program of a superstep.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hetjax.data.batching import Batch
from hetjax.engine.programs.merge_functions import applied
from hetjax.engine.programs.task_programs import Programs
from hetjax.local import LocalUpdate
from hetjax.machine import ROOT, MergeAction, MergeOp, Topology
from hetjax.merge.group import Group
from hetjax.merge.group_merges import over_axis
from hetjax.merge.masking import masked
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica, Requires
from hetjax.runtimes.mesh.mesh_layout import AXIS, MeshLayout
from hetjax.tree import PyTree

_ACCURACY = WorkerStats._fields.index("accuracy")
_WORKER = WorkerStats._fields.index("worker")
_OF_NODE = [WorkerStats._fields.index(n) for n in ("server_steps", "num_workers")]


class RequestedMerge(NamedTuple):
    """A merge that the policy requested, with its members' packed statistics."""

    action: MergeAction
    stats: np.ndarray  # [fields, members]


class Stage(NamedTuple):
    """Merges that run at the same time; static, so that equal stages share a program.

    A stage is either along the axis, where each device has the state of the one node
    above it (`state` names the level), or that of a single node, whose state all
    devices have.
    """

    level: int  # of the merge, among those of the strategy
    op: MergeOp
    state: str  # the key of the nodes' states
    members: tuple[str, ...]  # keys of the member nodes' states; (): workers
    along_axis: bool
    # groups of devices along the axis; None: all devices merge together
    axis_groups: tuple[tuple[int, ...], ...] | None
    replicated_over: tuple[int, ...] | None  # the member node above each device
    whole: bool  # whether every worker, or device, takes part


class MergeStages(NamedTuple):
    """The stages of a superstep, with the inputs that vary between supersteps."""

    stages: tuple[Stage, ...]
    stats: tuple[np.ndarray, ...]  # of each stage: [devices, fields, members]
    # of each stage: [devices, members of it + 1] bool, the last for the node above
    taking_part: tuple[np.ndarray, ...]


class _Outline(NamedTuple):
    """A stage without its statistics, reused whenever the same merges recur."""

    stage: Stage
    numbers: list[int]  # of its merges, among all requested ones
    table: np.ndarray  # [devices, fields, members], of absent members
    where: list[tuple[Any, np.ndarray]]  # of each merge: devices, members' columns
    taking_part: np.ndarray  # [devices, members of a device + 1] bool
    covers_all: bool  # whether it is one merge of all members, in their order

    def filled(self, stats: Sequence[np.ndarray]) -> np.ndarray:
        """The table with the members' statistics [fields, members] of each merge."""
        if self.covers_all:
            return np.broadcast_to(stats[0], self.table.shape)
        table = self.table.copy()
        for (devices, columns), own in zip(self.where, stats, strict=True):
            part = self.table[0].copy()
            part[_OF_NODE] = own[_OF_NODE, :1]
            part[:, columns] = own
            table[devices] = part
        return table


class StagePlanner:
    """Plans the merges of all supersteps of one run."""

    def __init__(self, layout: MeshLayout, topology: Topology, num_levels: int):
        """`num_levels` is the number of merges that the strategy has."""
        self._layout, self._topology = layout, topology
        self._num_levels = num_levels
        self._aligned = _aligned_levels(layout, topology)
        self._known: dict[tuple[MergeAction, ...], list[_Outline]] = {}

    @property
    def state_keys(self) -> dict[str, int]:
        """The keys of all states, and the level of the merge of each."""
        return {self._key(n): self.level_of(n) for n in self._topology.nodes}

    @property
    def root_key(self) -> str:
        """The key of the root's state."""
        return self._key(ROOT)

    def level_of(self, node: str) -> int:
        """The level of a node's merge; the root has the last one."""
        return self._topology.merge_level(node, self._num_levels)

    def _key(self, node: str) -> str:
        level = self._topology.level(node)
        return f"level {level}" if level in self._aligned else node

    def plan(self, requested: Sequence[RequestedMerge]) -> MergeStages:
        """Return the stages of these merges, with the same result as one by one."""
        actions = tuple(a.action for a in requested)
        if actions not in self._known:  # most supersteps have the same merges
            self._known[actions] = self._outline(actions)
        outlines = self._known[actions]
        return MergeStages(
            tuple(o.stage for o in outlines),
            tuple(o.filled([requested[i].stats for i in o.numbers]) for o in outlines),
            tuple(o.taking_part for o in outlines),
        )

    def _outline(self, actions: Sequence[MergeAction]) -> list["_Outline"]:
        """The stages of these merges, without their statistics."""
        outlines = []
        for numbers in self._commuting(actions):
            together = [actions[i] for i in numbers]
            stage = self._stage(together)
            outlines.append(self._tables(stage, together, numbers))
        return outlines

    def _commuting(self, actions: Sequence[MergeAction]) -> list[list[int]]:
        """Group the numbers of merges of one kind, on different workers and nodes."""
        groups: list[dict[tuple, list[int]]] = []
        depth: dict[int | str, int] = {}  # groups that must come first, per member
        for number, action in enumerate(actions):
            touched = (action.node, *action.members)
            first = max((depth.get(m, 0) for m in touched), default=0)
            while len(groups) <= first:
                groups.append({})
            groups[first].setdefault(self._kind(action), []).append(number)
            for member in touched:
                depth[member] = first + 1
        return [together for group in groups for together in group.values()]

    def _kind(self, action: MergeAction) -> tuple:
        level = self._topology.level(action.node)
        along = level in self._aligned
        members = any(isinstance(m, str) for m in action.members)
        return (action.op, level, members, "" if along else action.node)

    def _stage(self, actions: Sequence[MergeAction]) -> Stage:
        first, topology = actions[0], self._topology
        level = topology.level(first.node)
        along = level in self._aligned
        nodes = [m for m in first.members if isinstance(m, str)]
        groups = self._axis_groups(level) if along else None
        keys = dict.fromkeys(map(self._key, nodes))
        return Stage(
            level=self.level_of(first.node),
            op=first.op,
            state=self._key(first.node),
            members=tuple(keys),
            along_axis=along,
            axis_groups=groups,
            replicated_over=tuple(self._nodes_above(nodes))
            if along and nodes
            else None,
            whole=False,
        )

    def _axis_groups(self, level: int) -> tuple[tuple[int, ...], ...] | None:
        """The devices of each node of an aligned level, then the remaining devices."""
        nodes = [n for n in self._topology.nodes.values() if n.level == level]
        groups = [self._layout.devices_of(n.workers) or () for n in nodes]
        others = set(range(len(self._layout.devices))) - {d for g in groups for d in g}
        groups += [(d,) for d in sorted(others)]
        return tuple(groups) if len(groups) > 1 else None

    def _tables(
        self, stage: Stage, together: Sequence[MergeAction], numbers: list[int]
    ) -> "_Outline":
        """Return a stage's outline: which members take part, on which devices."""
        devices, fields = len(self._layout.devices), len(WorkerStats._fields)
        if not stage.along_axis and stage.members:  # the same tuple on every device
            (only,) = together
            n = len(only.members)
            present = np.ones((devices, n + 1), bool)
            where = [(slice(None), np.arange(n))]
            table = np.zeros((devices, fields, n), np.float32)
            stage = stage._replace(whole=True)
            return _Outline(stage, numbers, table, where, present, covers_all=True)
        names = self._member_names(stage)
        of_workers = stage.replicated_over is None
        per_device = self._layout.workers_per_device if of_workers else 1
        table = np.zeros((devices, fields, len(names)), np.float32)
        table[:, _WORKER] = names
        present = np.zeros((devices, per_device + 1), bool)
        where = []
        for action in together:
            columns = []
            for member in action.members:
                place = self._devices(member)
                if isinstance(member, int):
                    columns.append(member)
                    present[place[0], member % per_device] = True
                elif stage.replicated_over is not None:
                    columns.append(stage.replicated_over[place[0]])
                    present[place, 0] = True
            # the node's state changes on all devices that have it
            owners = self._devices(action.node) if stage.along_axis else range(devices)
            present[owners, -1] = True
            where.append((np.array(owners), np.array(columns, int)))
        whole = bool(present.all())
        first, every_column = where[0][1].tolist(), list(range(table.shape[2]))
        covers_all = whole and len(where) == 1 and first == every_column
        stage = stage._replace(whole=whole)
        return _Outline(stage, numbers, table, where, present, covers_all)

    def _member_names(self, stage: Stage) -> np.ndarray:
        """The numbers of all members along the axis, as in `WorkerStats.worker`."""
        if stage.replicated_over is None:
            return np.arange(self._layout.num_workers)
        return np.full(max(stage.replicated_over) + 1, -1)

    def _nodes_above(self, some: Sequence[str]) -> list[int]:
        """For each device, the number of the node above it at the level of `some`.

        Devices without one get numbers of their own, of members that are always absent.
        """
        nodes = self._topology.nodes
        level = nodes[some[0]].level
        numbers: dict[int, int] = {}
        of_level = [n for n in nodes.values() if n.level == level]
        for number, node in enumerate(of_level):
            for device in self._layout.devices_of(node.workers) or ():
                numbers[device] = number
        spare = iter(range(len(of_level), len(of_level) + len(self._layout.devices)))
        return [
            numbers[d] if d in numbers else next(spare)
            for d in range(len(self._layout.devices))
        ]

    def _devices(self, member: int | str) -> list[int]:
        """The devices of a worker, or of the workers below a node."""
        workers = self._topology.workers_of(member)
        return sorted({self._layout.place(k)[0] for k in workers})


def _aligned_levels(layout: MeshLayout, topology: Topology) -> frozenset[int]:
    """All levels if every node consists of whole devices, else none.

    The members of a node must be of one level, so that each device is below one member.
    """
    levels = frozenset(n.level for n in topology.nodes.values())
    for level in levels:
        nodes = [n for n in topology.nodes.values() if n.level == level]
        fits = all(layout.devices_of(n.workers) is not None for n in nodes)
        below = {
            topology.nodes[m].level
            for n in nodes
            for m in n.children
            if isinstance(m, str)
        }
        if not fits or len(below) > 1:
            return frozenset()
    return levels


# -- inside the program ----------------------------------------------------------------

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
    else:  # member nodes whose states all devices have
        new, after = applied(
            merge, state, members, WorkerStats.unpacked(stats), stage.op
        )
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
        from_parent = programs.from_parent(algorithm.merge_of(key))
        below = from_parent(states[key], member)
        if not stage.whole:  # each device is below one member node, maybe absent
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
