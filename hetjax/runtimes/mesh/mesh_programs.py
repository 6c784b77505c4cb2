"""A superstep as one program: local steps on every device, then merges as collectives.

The program is the same on all devices (`jax.shard_map`), so differences between workers
are data: numbers of steps (each device has its own trip count), batch sizes (padded and
masked), learning rates, participation in merges. `Spec` has all static settings.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from hetjax import tree
from hetjax.engine.programs.local_round import RowBatches, over_workers
from hetjax.local import with_merge_buffers
from hetjax.merge.group import unstacked
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.runtimes.mesh.merge_stages import Stage
from hetjax.runtimes.mesh.mesh_layout import AXIS, MeshLayout, off_device, on_device
from hetjax.runtimes.mesh.stage_program import (
    Algorithm,
    Replicas,
    States,
    run_stage,
    select,
)
from hetjax.runtimes.mesh.superstep import Packed, Packing, unpack
from hetjax.tree import PyTree

STEPS = WorkerStats._fields.index("local_steps")


class Spec(NamedTuple):
    """The static settings of a superstep's program, apart from its inputs' shapes."""

    layout: MeshLayout
    step_mode: str  # "fused", "unrolled" or "vmapped"
    equal_steps: bool  # whether all workers make the same number of steps
    steps: bool  # whether there are local steps
    begins: bool  # whether some workers begin from the root's model
    checks: bool  # whether replicas must be finite after the steps
    broadcasts: bool  # whether other processes receive process 0's control message
    stages: tuple[Stage, ...]
    batches: RowBatches | None = None  # how they are gathered; None: they are sent


class SuperstepInputs(NamedTuple):
    """The inputs of a superstep; on the host, leaves [devices, ...].

    `steps` are batches, numbers and learning rates. For a device of L workers with up
    to K steps each: batches have leaves [L, K, ...], or are the row numbers [L, K, B]
    of batches that the device gathers; numbers are [L, 6] uint32 (local steps, seed,
    worker, first step, examples of a step, whether it begins from the root's model),
    and learning rates are [L].
    """

    steps: Any  # (): none
    stats: tuple[Any, ...]  # of each stage: [fields, members]
    taking_part: tuple[Any, ...]  # of each stage: [members of this device + 1]
    # [5] int32, a `ControlMessage`; zeros except on the first device of each process;
    # () for a single process
    message: Any


def begin_program(algorithm: Algorithm, layout: MeshLayout) -> Callable:
    """Return (params, model state) -> (replicas, states) on every device."""
    new_replica = algorithm.programs.replica(algorithm.local, algorithm.requires)

    def begin(*model: PyTree) -> tuple[Replicas, States]:
        replicas = tuple(new_replica(*model) for _ in range(layout.workers_per_device))
        states = {
            key: algorithm.merge_of(key).init(*tree.copies(model))
            for key, _ in algorithm.levels
        }
        return off_device(replicas), off_device(states)

    return jax.jit(_mapped(layout, begin, "rr", "ss"))


def superstep_program(algorithm: Algorithm, spec: Spec, packing: Packing) -> Callable:
    """Return (replicas, states, packed, held out, data) -> (replicas, states, numbers).

    Replicas and states are donated. The numbers are the same on all devices: "means"
    [N] of all workers, "finite" [N] if that is checked, "losses" [N, K, B] if the
    sampler observes them, "accuracy" of the members of every merge that requires it,
    and process 0's control "message" [5] if there are other processes. Packed inputs
    and numbers have a leading axis over the supersteps, which run one after another.
    """

    def body(
        replicas: Replicas, states: States, packed: Packed, held_out: Any, data: Any
    ) -> tuple[Replicas, States, dict[str, Any]]:
        program = _SuperstepProgram(algorithm, spec, data)
        replicas, states, packed = on_device((replicas, states, packed))

        def one(carry: tuple, packed: Packed) -> tuple[tuple, dict[str, Any]]:
            replicas, states = carry
            inputs = unpack(packed, packing)
            replicas, states, numbers = program.run(replicas, states, inputs, held_out)
            return (replicas, states), numbers

        (replicas, states), numbers = _over_supersteps(one, (replicas, states), packed)
        return off_device(replicas), off_device(states), numbers

    return jax.jit(_mapped(spec.layout, body, "sssrr", "ssr"), donate_argnums=(0, 1))


def _mapped(layout: MeshLayout, body: Callable, inputs: str, outputs: str) -> Callable:
    """The shard_map of trees: "s", sharded over the devices, or "r", replicated."""
    specs = {"s": PartitionSpec(AXIS), "r": PartitionSpec()}
    return jax.shard_map(
        body,
        mesh=layout.mesh,
        in_specs=tuple(specs[kind] for kind in inputs),
        out_specs=tuple(specs[kind] for kind in outputs),
        check_vma=False,
    )


def _over_supersteps(run: Callable, carry: Any, inputs: Packed) -> tuple[Any, Any]:
    """`lax.scan`, but without a loop for a single superstep.

    Inside a loop, XLA's CPU backend has no fast convolution.
    """
    if len(inputs.words) > 1:
        return lax.scan(run, carry, inputs)
    carry, numbers = run(carry, on_device(inputs))
    return carry, off_device(numbers)


class _SuperstepProgram:
    """The work of one device in a superstep; traced inside `shard_map`."""

    def __init__(self, algorithm: Algorithm, spec: Spec, data: Any):
        self._algorithm, self._spec, self._data = algorithm, spec, data
        programs, local_update = algorithm.programs, algorithm.local
        self._step = programs.step_fn(local_update, algorithm.requires)
        self._new_replica = programs.replica(local_update, algorithm.requires)

    def run(
        self, replicas: Replicas, states: States, inputs: SuperstepInputs, held_out: Any
    ) -> tuple[Replicas, States, dict[str, Any]]:
        """Make the local steps, then run the stages of merges in order."""
        numbers, local = {}, {}  # of all devices; of this one
        root = states[self._algorithm.root]
        if self._spec.begins:
            replicas = self._begin(replicas, inputs.steps[1][:, -1] == 0, root)
        if self._spec.steps:
            replicas, numbers, local = self._all_steps(replicas, inputs)
        if self._spec.checks:
            if "finite" not in local:
                local["finite"] = jnp.stack([tree.all_finite(r) for r in replicas])
            replicas = self._reset(replicas, local["finite"], root)
        if self._spec.broadcasts:
            local["message"] = inputs.message
        numbers |= _gather_all(local)
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
        """Return (replicas, {"losses"} if observed, numbers of this device)."""
        local = {}
        if self._spec.step_mode == "vmapped":
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *replicas)
            stacked, losses, means = over_workers(self._steps)(stacked, *inputs.steps)
            if self._spec.checks:  # faster than one by one
                local["finite"] = jax.vmap(tree.all_finite)(stacked)
            replicas = unstacked(stacked, len(replicas))
        else:
            each = [
                self._steps(replica, *jax.tree.map(lambda x, i=i: x[i], inputs.steps))
                for i, replica in enumerate(replicas)
            ]
            replicas = tuple(replica for replica, _, _ in each)
            losses = jnp.stack([found for _, found, _ in each])
            means = jnp.stack([mean for _, _, mean in each])
        local["means"] = means.astype(jnp.float32)
        if not self._algorithm.observes_losses:
            return replicas, {}, local
        return replicas, {"losses": lax.all_gather(losses, AXIS, tiled=True)}, local

    def _steps(
        self,
        replica: Replica,
        batches: Any,
        numbers: jax.Array,
        learning_rate: jax.Array,
    ) -> tuple[Replica, jax.Array, jax.Array]:
        """Return (replica, losses [K, B], mean loss of the last step) of one worker."""
        max_steps, size = (batches if self._spec.batches else batches.weight).shape
        observes, equal = self._algorithm.observes_losses, self._spec.equal_steps
        losses = jnp.zeros((max_steps, size) if observes else (0, size))
        step = self._step_number(batches, numbers, learning_rate)
        carry = (replica, losses, jnp.zeros(()))
        if max_steps == 0:  # rounds that only fetch the result of a merge
            return carry
        local_steps = numbers[0].astype(jnp.int32)

        def masked(i: Any, carry: tuple) -> tuple:
            after = step(i, carry)
            return after if equal else select(i < local_steps, after, carry)

        if self._spec.step_mode == "unrolled":
            for i in range(max_steps):
                carry = masked(i, carry)
            return carry
        if self._spec.step_mode == "vmapped":  # one trip count for all workers
            return lax.fori_loop(0, max_steps, masked, carry)
        return lax.fori_loop(0, max_steps if equal else local_steps, step, carry)

    def _step_number(
        self, batches: Any, numbers: jax.Array, learning_rate: jax.Array
    ) -> Callable:
        """Return step(i, (replica, losses, mean)), which has its own batch and key."""
        how = self._spec.batches

        def step(i: Any, carry: tuple) -> tuple:
            replica, losses, _ = carry
            batch = jax.tree.map(
                lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), batches
            )
            if how is not None:
                n = numbers[4].astype(jnp.int32)
                batch = how.gather.batch(self._data, batch, n, how.bucket)
            # (seed, worker, step), as in `hetjax.engine.step_runner`
            key_data = numbers[1:4].at[2].add(jnp.uint32(i))
            replica, values, mean = self._step(replica, batch, learning_rate, key_data)
            if self._algorithm.observes_losses:
                losses = losses.at[i].set(values)
            return replica, losses, mean

        return step

    def _begin(self, replicas: Replicas, stays: jax.Array, root: PyTree) -> Replicas:
        """Replace replicas by new ones of the root's model, except those that stay."""
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
        center = self._algorithm.merges[-1].model(root)
        model = tree.cast_like(center, (like.params, like.model_state))
        return self._new_replica(*model)


def _gather_all(local: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Gather the numbers of every device's workers on all devices: [n] -> [devices n].

    Of control messages, take the maximum: the numbers of process 0, and whether any
    process was interrupted.
    """
    return {
        name: lax.pmax(x, AXIS)
        if name == "message"
        else lax.all_gather(x, AXIS, tiled=True)
        for name, x in local.items()
    }
