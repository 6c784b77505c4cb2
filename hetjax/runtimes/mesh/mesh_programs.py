"""A wave as one program: local steps on every device, then the merges, as collectives.

The program is the same on all devices (`jax.shard_map`), so what differs between
workers is data: numbers of steps (each device has its own trip count), batch sizes
(padded and masked), learning rates, who takes part in a merge. What is static is in
`Spec`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from hetjax import tree
from hetjax.data.batching import Batch
from hetjax.engine.programs.task_programs import over_workers
from hetjax.local import with_merge_buffers
from hetjax.merge.group import unstacked
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.runtimes.mesh.algorithm import Algorithm, Replicas, States, select
from hetjax.runtimes.mesh.input_packing import Packed, Packing, unpack
from hetjax.runtimes.mesh.merge_stages import Stage
from hetjax.runtimes.mesh.mesh_layout import AXIS, MeshLayout, off_device, on_device
from hetjax.runtimes.mesh.stage_program import run_stage
from hetjax.tree import PyTree

STEPS = WorkerStats._fields.index("local_steps")


class Spec(NamedTuple):
    """What a wave's program depends on, besides the shapes of its inputs."""

    layout: MeshLayout
    step_mode: str  # "fused", "unrolled" or "vmapped"
    equal: bool  # do all workers make as many steps as there are batches?
    steps: bool  # are there local steps?
    begins: bool  # do some workers begin from the root's model, in their first round?
    checks: bool  # are they the last ones, after which replicas must be finite?
    hears: bool  # are there other processes than process 0, which hear its word?
    stages: tuple[Stage, ...]


class SuperstepInputs(NamedTuple):
    """The inputs of a wave; on the host, leaves [devices, ...].

    `steps` are batches, numbers and learning rates. For a device of L slots with up to
    K steps each: batches have leaves [L, K, ...], numbers are [L, 5] uint32 (local
    steps, seed, worker, first step, begins from the root's model?), and learning rates
    [L].
    """

    steps: Any  # (): none
    stats: tuple[Any, ...]  # of each stage: [fields, members]
    taking_part: tuple[Any, ...]  # of each stage: [members of this device + 1]
    word: Any  # [4] int32, a `Word`; zeros of most devices; () if all are local


def begin_program(algorithm: Algorithm, layout: MeshLayout) -> Callable:
    """(params, model state) -> (replicas, states) on every device."""
    new_replica = algorithm.programs.replica(algorithm.local, algorithm.requires)

    def begin(*model: PyTree) -> tuple[Replicas, States]:
        replicas = tuple(new_replica(*model) for _ in range(layout.workers_per_device))
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
    of process 0 [4], if there are others. Inputs and numbers are those of several
    waves, one after the other.
    """
    wave = _SuperstepProgram(algorithm, spec)

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


class _SuperstepProgram:
    """What one device does in a wave; traced inside `shard_map`."""

    def __init__(self, algorithm: Algorithm, spec: Spec):
        self._algorithm, self._spec = algorithm, spec
        programs, local_update = algorithm.programs, algorithm.local
        self._step = programs.step_fn(local_update, algorithm.requires)
        self._new_replica = programs.replica(local_update, algorithm.requires)

    def run(
        self, replicas: Replicas, states: States, inputs: SuperstepInputs, held_out: Any
    ) -> tuple[Replicas, States, dict[str, Any]]:
        """Make the local steps, then one stage of merges after the other."""
        numbers, told = {}, {}  # of all devices; of this one
        root = states[self._algorithm.root]
        if self._spec.begins:
            replicas = self._begin(replicas, inputs.steps[1][:, -1] == 0, root)
        if self._spec.steps:
            replicas, numbers, told = self._all_steps(replicas, inputs)
        if self._spec.checks:
            if "finite" not in told:
                told["finite"] = jnp.stack([tree.all_finite(r) for r in replicas])
            replicas = self._reset(replicas, told["finite"], root)
        if self._spec.hears:
            told["word"] = inputs.word
        numbers |= _heard(told)
        finite, found = numbers.get("finite"), []
        for stage, stats, here in zip(
            self._spec.stages, inputs.stats, inputs.taking_part, strict=True
        ):
            if finite is not None and not stage.members:
                stats = stats.at[STEPS].multiply(finite)
            replicas, states, accuracy = run_stage(
                self._algorithm,
                stage,
                replicas,
                states,
                stats,
                here[:-1],
                held_out,
                merges=here[-1],
            )
            found += accuracy
        numbers["accuracy"] = tuple(found)
        return replicas, states, numbers

    # -- local steps -------------------------------------------------------------------

    def _all_steps(
        self, replicas: Replicas, inputs: SuperstepInputs
    ) -> tuple[Replicas, dict[str, Any], dict[str, jax.Array]]:
        """(replicas, {"losses": of all workers} if kept, what this device tells)."""
        told = {}
        if self._spec.step_mode == "vmapped":
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *replicas)
            stacked, losses, means = over_workers(self._steps)(stacked, *inputs.steps)
            if self._spec.checks:  # sooner than one by one
                told["finite"] = jax.vmap(tree.all_finite)(stacked)
            replicas = unstacked(stacked, len(replicas))
        else:
            each = [
                self._steps(replica, *jax.tree.map(lambda x, i=i: x[i], inputs.steps))
                for i, replica in enumerate(replicas)
            ]
            replicas = tuple(replica for replica, _, _ in each)
            losses = jnp.stack([found for _, found, _ in each])
            means = jnp.stack([mean for _, _, mean in each])
        told["means"] = means.astype(jnp.float32)
        if not self._algorithm.keeps:
            return replicas, {}, told
        return replicas, {"losses": lax.all_gather(losses, AXIS, tiled=True)}, told

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
        if most == 0:  # rounds that only take what a merge gives
            return carry
        local_steps = numbers[0].astype(jnp.int32)

        def masked(i: Any, carry: tuple) -> tuple:
            after = step(i, carry)
            return after if equal else select(i < local_steps, after, carry)

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
            # (seed, worker, step), as in `hetjax.engine.local_steps`
            key_data = numbers[1:4].at[2].add(jnp.uint32(i))
            replica, values, mean = self._step(replica, batch, learning_rate, key_data)
            if self._algorithm.keeps:
                losses = losses.at[i].set(values)
            return replica, losses, mean

        return step

    def _begin(self, replicas: Replicas, stays: jax.Array, root: PyTree) -> Replicas:
        """Make new replicas of the root's model, but for those that stay."""
        return tuple(
            lax.cond(s, lambda r: r, lambda r: self._at_root(root, r), r)
            for s, r in zip(stays, replicas, strict=True)
        )

    def _reset(self, replicas: Replicas, finite: jax.Array, root: PyTree) -> Replicas:
        """Reset replicas that are not finite to the root's model (on_nan="reset")."""

        def reset(replica: Replica) -> Replica:
            new = self._at_root(root, replica)
            return with_merge_buffers(new, replica, self._algorithm.requires)

        def reset_some(replicas: Replicas) -> Replicas:
            return tuple(
                lax.cond(f, lambda r: r, reset, r)
                for f, r in zip(finite, replicas, strict=True)
            )

        return lax.cond(finite.all(), lambda rs: rs, reset_some, replicas)

    def _at_root(self, root: PyTree, like: Replica) -> Replica:
        """A new replica of the root's model."""
        center = self._algorithm.merges[-1].model(root)
        model = tree.cast_like(center, (like.params, like.model_state))
        return self._new_replica(*model)


def _heard(told: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """What every device tells all others, in a single collective.

    Means and flags of its workers: [n] each -> [devices n]. Of words, the largest
    numbers: those of process 0, and whether any process was interrupted.
    """
    if not told:
        return {}
    bits = [
        lax.bitcast_convert_type(x, jnp.int32) if x.dtype == jnp.float32 else x
        for x in told.values()
    ]
    row = jnp.concatenate([x.astype(jnp.int32) for x in bits])
    table = lax.all_gather(row, AXIS)
    heard, start = {}, 0
    for name, x in told.items():
        columns, start = table[:, start : start + len(x)], start + len(x)
        if name == "word":
            heard[name] = columns.max(axis=0)
        elif x.dtype == jnp.float32:
            heard[name] = lax.bitcast_convert_type(columns, x.dtype).ravel()
        else:
            heard[name] = columns.ravel() != 0
    return heard
