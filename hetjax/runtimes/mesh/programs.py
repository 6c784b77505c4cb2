"""A wave as one program: local steps on every device, then the merges, as collectives.

The program is the same on all devices (`jax.shard_map`), so what differs between
workers is data: numbers of steps (each device has its own trip count), batch sizes
(padded and masked), learning rates, who takes part in a merge. What is static is in
`Spec`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from hetjax import tree
from hetjax.data.batching import Batch
from hetjax.engine.compiled.programs import Programs
from hetjax.local import LocalUpdate, with_own_buffers
from hetjax.machine import MergeOp
from hetjax.merge.group import Group, unstacked
from hetjax.merge.types import Merge, WorkerStats, over_axis
from hetjax.replica import Replica, Requires
from hetjax.runtimes.mesh.layout import AXIS, Layout, off_device, on_device
from hetjax.runtimes.mesh.packing import Packed, Packing, unpack
from hetjax.runtimes.mesh.plan import Stage
from hetjax.tree import PyTree

_STEPS = WorkerStats._fields.index("local_steps")
_ACCURACY = WorkerStats._fields.index("accuracy")
Replicas = tuple[Replica, ...]  # of a device's slots
States = dict[str, PyTree]


class Spec(NamedTuple):
    """What a wave's program depends on, besides the shapes of its inputs."""

    layout: Layout
    step_mode: str  # "fused", "unrolled" or "vmapped"
    equal: bool  # do all workers make as many steps as there are batches?
    steps: bool  # are there local steps?
    checks: bool  # are they the last ones, after which replicas must be finite?
    hears: bool  # are there other processes than process 0, which hear its word?
    stages: tuple[Stage, ...]


class Inputs(NamedTuple):
    """The inputs of a wave; on the host, leaves [devices, ...].

    `steps` are batches, numbers and learning rates. For a device of L slots with up to
    K steps each: batches have leaves [L, K, ...], numbers are [L, 4] uint32 (local
    steps, seed, worker, first step), and learning rates [L].
    """

    steps: Any  # (): none
    stats: tuple[Any, ...]  # of each stage: [fields, members]
    taking_part: tuple[Any, ...]  # of each stage: [members of this device]
    word: Any  # [3] int32 of process 0, zeros of other devices; () of a process alone


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


def begin_program(algorithm: Algorithm, layout: Layout) -> Callable:
    """(params, model state) -> (replicas, states) on every device."""
    new_replica = algorithm.programs.replica(algorithm.local, algorithm.requires)

    def begin(*model: PyTree) -> tuple[Replicas, States]:
        replicas = tuple(new_replica(*model) for _ in range(layout.slots))
        states = {
            key: algorithm.merge_of(key).init(*tree.copies(model))
            for key, _ in algorithm.levels
        }
        return off_device(replicas), off_device(states)

    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    return jax.jit(
        jax.shard_map(
            begin,
            mesh=layout.mesh,
            in_specs=(everywhere, everywhere),
            out_specs=(split, split),
            check_vma=False,
        )
    )


def wave_program(algorithm: Algorithm, spec: Spec, packing: Packing) -> Callable:
    """(replicas, states, packed inputs, held out) -> (replicas, states, numbers).

    Replicas and states are donated. The numbers are the same on all devices: of all
    workers "means" [N], "finite" [N] if that is checked, and "losses" [N, K, B] if they
    are kept; "accuracy", the members' of every merge that requires it; and the "word"
    of process 0 [3], if there are others. Inputs and numbers are those of several
    waves, one after the other.
    """
    wave = _Wave(algorithm, spec)

    def body(
        replicas: Replicas, states: States, packed: Packed, held_out: Any
    ) -> tuple[Replicas, States, dict[str, Any]]:
        replicas, states, packed = on_device((replicas, states, packed))

        def one(carry: tuple, packed: Packed) -> tuple[tuple, dict[str, Any]]:
            replicas, states = carry
            inputs = unpack(packed, packing)
            replicas, states, numbers = wave.run(replicas, states, inputs, held_out)
            return (replicas, states), numbers

        (replicas, states), numbers = _over_waves(one, (replicas, states), packed)
        return off_device(replicas), off_device(states), numbers

    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    return jax.jit(
        jax.shard_map(
            body,
            mesh=spec.layout.mesh,
            in_specs=(split, split, split, everywhere),
            out_specs=(split, split, everywhere),
            check_vma=False,
        ),
        donate_argnums=(0, 1),
    )


def _over_waves(wave: Callable, carry: Any, inputs: Packed) -> tuple[Any, Any]:
    """`lax.scan`, but without a loop for a single wave.

    In a loop, XLA's CPU backend has no fast convolution.
    """
    if len(inputs.words) > 1:
        return lax.scan(wave, carry, inputs)
    carry, numbers = wave(carry, on_device(inputs))
    return carry, off_device(numbers)


class _Wave:
    """What one device does in a wave; traced inside `shard_map`."""

    def __init__(self, algorithm: Algorithm, spec: Spec):
        self._algorithm, self._spec = algorithm, spec
        programs, local_update = algorithm.programs, algorithm.local
        self._step = programs.step_fn(local_update, algorithm.requires)
        self._new_replica = programs.replica(local_update, algorithm.requires)

    def run(
        self, replicas: Replicas, states: States, inputs: Inputs, held_out: Any
    ) -> tuple[Replicas, States, dict[str, Any]]:
        """Make the local steps, then one stage of merges after the other."""
        numbers, finite = {}, None
        if self._spec.steps:
            replicas, numbers = self._all_steps(replicas, inputs)
        if self._spec.checks:
            here = jnp.stack([tree.all_finite(r) for r in replicas])
            finite = lax.all_gather(here, AXIS, tiled=True)
            numbers["finite"] = finite
            replicas = self._reset(replicas, here, states[self._algorithm.root])
        found = []
        for stage, stats, here in zip(
            self._spec.stages, inputs.stats, inputs.taking_part, strict=True
        ):
            if finite is not None and not stage.members:
                stats = stats.at[_STEPS].multiply(finite)
            replicas, states, accuracy = self._merge(
                stage, replicas, states, stats, here, held_out
            )
            found += accuracy
        numbers["accuracy"] = tuple(found)
        if self._spec.hears:
            numbers["word"] = lax.psum(inputs.word, AXIS)
        return replicas, states, numbers

    # -- local steps -------------------------------------------------------------------

    def _all_steps(
        self, replicas: Replicas, inputs: Inputs
    ) -> tuple[Replicas, dict[str, Any]]:
        if self._spec.step_mode == "vmapped":
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *replicas)
            stacked, losses, means = jax.vmap(self._steps)(stacked, *inputs.steps)
            replicas = unstacked(stacked, len(replicas))
        else:
            each = [
                self._steps(replica, *jax.tree.map(lambda x, i=i: x[i], inputs.steps))
                for i, replica in enumerate(replicas)
            ]
            replicas = tuple(replica for replica, _, _ in each)
            losses = jnp.stack([found for _, found, _ in each])
            means = jnp.stack([mean for _, _, mean in each])
        numbers = {"means": lax.all_gather(means, AXIS, tiled=True)}
        if self._algorithm.keeps:
            numbers["losses"] = lax.all_gather(losses, AXIS, tiled=True)
        return replicas, numbers

    def _steps(
        self,
        replica: Replica,
        batches: Batch,
        numbers: jax.Array,
        learning_rate: jax.Array,
    ) -> tuple[Replica, jax.Array, jax.Array]:
        """(replica, losses [K, B], mean of the last step) of one slot."""
        most, size = batches.weight.shape
        keeps, equal = self._algorithm.keeps, self._spec.equal
        losses = jnp.zeros((most, size) if keeps else (0, size))
        step = self._step_number(batches, numbers, learning_rate)
        carry = (replica, losses, jnp.zeros(()))
        local_steps = numbers[0].astype(jnp.int32)

        def masked(i: Any, carry: tuple) -> tuple:
            after = step(i, carry)
            return after if equal else _select(i < local_steps, after, carry)

        if self._spec.step_mode == "unrolled":
            for i in range(most):
                carry = masked(i, carry)
            return carry
        if self._spec.step_mode == "vmapped":  # one trip count for all slots
            return lax.fori_loop(0, most, masked, carry)
        return lax.fori_loop(0, most if equal else local_steps, step, carry)

    def _step_number(
        self, batches: Batch, numbers: jax.Array, learning_rate: jax.Array
    ) -> Callable:
        """step(i, (replica, losses, mean)): step i, with its own batch and key."""

        def step(i: Any, carry: tuple) -> tuple:
            replica, losses, _ = carry
            batch = jax.tree.map(
                lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), batches
            )
            # (seed, worker, step), as in `hetjax.engine.steps`
            key_data = numbers[1:].at[2].add(jnp.uint32(i))
            replica, values, mean = self._step(replica, batch, learning_rate, key_data)
            if self._algorithm.keeps:
                losses = losses.at[i].set(values)
            return replica, losses, mean

        return step

    def _reset(self, replicas: Replicas, finite: jax.Array, root: PyTree) -> Replicas:
        """Reset replicas that are not finite to the root's model (on_nan="reset")."""
        center = self._algorithm.merges[-1].model(root)

        def reset(replica: Replica) -> Replica:
            model = tree.cast_like(center, (replica.params, replica.model_state))
            new = self._new_replica(*model)
            return with_own_buffers(new, replica, self._algorithm.requires)

        return tuple(
            lax.cond(f, lambda r: r, reset, r)
            for f, r in zip(finite, replicas, strict=True)
        )

    # -- merges ------------------------------------------------------------------------

    def _merge(
        self,
        stage: Stage,
        replicas: Replicas,
        states: States,
        stats: jax.Array,
        here: jax.Array,
        held_out: Any,
    ) -> tuple[Replicas, States, list[jax.Array]]:
        """Run one stage; return the members' accuracies, too, if they were required."""
        merge, programs = self._algorithm.merges[stage.level], self._algorithm.programs
        state = states[stage.state]
        members = self._members(stage, replicas, states)
        accuracy = []
        if merge.required_metrics and MergeOp.PUSH in stage.op:
            measured = self._accuracy(members, held_out)
            if stage.along_axis or not stage.members:
                group = Group(tuple(measured), AXIS, stage.parts, stage.holds)
                measured = group.values(lambda x: x)
            stats = stats.at[_ACCURACY].set(measured)
            accuracy = [measured]
        if stage.op == MergeOp.FETCH:
            after, new = programs.fetch(merge)(state, members), state
        elif stage.along_axis or not stage.members:
            along = over_axis(merge, AXIS, parts=stage.parts, holds=stage.holds)
            new, after = along.apply(
                state, members, WorkerStats.unpacked(stats), stage.op
            )
        else:  # nodes whose states all devices know
            new, after = merge.apply(
                state, members, WorkerStats.unpacked(stats), stage.op
            )
        if not stage.whole:
            after = tuple(
                _select(h, a, m) for h, a, m in zip(here, after, members, strict=True)
            )
            if stage.along_axis:  # a device may be below a node that does not merge now
                new = _select(jnp.any(here), new, state)
        states = {**states, stage.state: new}
        if not stage.members:
            return after, states, accuracy
        for key, member in zip(stage.members, after, strict=True):
            from_parent = programs.from_parent(self._algorithm.merge_of(key))
            states[key] = from_parent(states[key], member)
        return replicas, states, accuracy

    def _members(self, stage: Stage, replicas: Replicas, states: States) -> Replicas:
        if not stage.members:
            return replicas
        as_member, of = self._algorithm.programs.as_member, self._algorithm.merge_of
        return tuple(as_member(of(key))(states[key]) for key in stage.members)

    def _accuracy(self, members: Sequence[Replica], held_out: Any) -> jax.Array:
        """[members] the main metric on the held-out data."""
        batches, total = held_out
        programs = self._algorithm.programs

        def look(sums: jax.Array, batch: Batch) -> tuple[jax.Array, None]:
            found = [
                programs.evaluate_fn(m.params, m.model_state, batch)[
                    programs.task.metric
                ]
                for m in members
            ]
            return sums + jnp.stack(found), None

        sums, _ = lax.scan(look, jnp.zeros(len(members)), batches)
        return sums / total


def _select(chosen: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda n, o: jnp.where(chosen, n, o), new, old)
