"""The layout of a mesh: its devices, with the same number of workers on each.

`check_fits` checks which machines and strategies fit on a mesh.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.strategies.types import Strategy
from hetjax.tree import PyTree

AXIS = "workers"  # of the mesh


class MeshLayout(NamedTuple):
    """The devices of a mesh, and the number of workers on each.

    With n = `workers_per_device`, worker k is number k % n on device k // n. A tree
    that is sharded over the mesh has leaves [devices, ...], with entry i on device i.
    """

    devices: tuple[Any, ...]
    workers_per_device: int

    @property
    def num_workers(self) -> int:
        """The number of workers on all devices."""
        return len(self.devices) * self.workers_per_device

    @property
    def mesh(self) -> Mesh:
        """The mesh, which has a single axis."""
        return _mesh(self.devices)

    @property
    def sharded(self) -> NamedSharding:
        """The sharding of trees with leaves [devices, ...], one entry per device."""
        return _sharding(self.devices, AXIS)

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of trees that are the same on all devices."""
        return _sharding(self.devices)

    @property
    def is_single_process(self) -> bool:
        """Whether all devices belong to this process."""
        return len(self.local) == len(self.devices)

    @property
    def local(self) -> list[int]:
        """The indices of this process's devices."""
        return _local(self.devices)

    def replicate(self, tree: PyTree) -> PyTree:
        """Replicate a tree, which every process has, on all devices."""
        if self.is_single_process:
            return jax.device_put(tree, self.replicated)
        return jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(
                self.replicated, np.asarray(x)
            ),
            tree,
        )

    def put_local(self, tree: PyTree) -> PyTree:
        """Shard a tree with leaves [local devices, ...] on the host over the devices.

        With a single device it stays on the host: a jitted call transfers it faster.
        """
        return tree if len(self.devices) == 1 else self.shard_local(tree)

    def shard_local(self, tree: PyTree) -> PyTree:
        """Shard a tree as `put_local` does, even with a single device."""
        if self.is_single_process:
            return jax.device_put(tree, self.sharded)
        return jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(
                self.sharded, x, (len(self.devices), *x.shape[1:])
            ),
            tree,
        )

    def place(self, worker: int) -> tuple[int, int]:
        """The device of a worker, and its number among the workers of that device."""
        return divmod(worker, self.workers_per_device)

    def devices_of(self, workers: Iterable[int]) -> tuple[int, ...] | None:
        """The devices of these workers; None if other workers share one of them."""
        chosen = frozenset(workers)
        devices = sorted({k // self.workers_per_device for k in chosen})
        whole = len(devices) * self.workers_per_device == len(chosen)
        return tuple(devices) if whole else None


@lru_cache  # called at every launch
def _local(devices: tuple[Any, ...]) -> list[int]:
    here = jax.process_index()
    return [i for i, d in enumerate(devices) if d.process_index == here]


@lru_cache
def _mesh(devices: tuple[Any, ...]) -> Mesh:
    return Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))


@lru_cache
def _sharding(devices: tuple[Any, ...], *axes: str) -> NamedSharding:
    return NamedSharding(_mesh(devices), PartitionSpec(*axes))


def on_device(tree: PyTree) -> PyTree:
    """Inside `shard_map`: drop the device axis of a tree with leaves [1, ...]."""
    return jax.tree.map(lambda x: x[0], tree)


def off_device(tree: PyTree) -> PyTree:
    """Inside `shard_map`: the inverse of `on_device`."""
    return jax.tree.map(lambda x: x[None], tree)


def first_part(tree: PyTree) -> PyTree:
    """The shard [1, ...] of a tree on the first device of this process."""
    return jax.tree.map(lambda x: x.addressable_shards[0].data, tree)


def layout_of(machine: LocalMachine) -> MeshLayout:
    """The layout of a machine's workers, which have passed `check_fits`."""
    counts = Counter(w.device for w in machine.workers)
    return MeshLayout(tuple(counts), next(iter(counts.values())))


def misfit_of_machine(machine: LocalMachine) -> str:
    """The reason why these workers cannot form a mesh; "" if they can."""
    kinds = dict.fromkeys(w.kind for w in machine.workers)
    if len(kinds) > 1:
        return (
            "a mesh needs devices of one kind, but the machine has "
            f"{' and '.join(kinds)}: one program cannot span them"
        )
    counts = Counter(w.device for w in machine.workers)
    if len(set(counts.values())) > 1:
        return "every device of a mesh must have the same number of workers"
    owners = [d.process_index for d in counts]
    if owners[0] != 0 or set(owners) != set(range(jax.process_count())):
        return (
            f"each of the {jax.process_count()} processes needs a device of the mesh, "
            "and process 0 the first one"
        )
    slow = [w.name for w in machine.workers if w.slowdown != 1]
    if slow:
        return f"{slow[0]} has a slowdown, which a program cannot imitate"
    if machine.faults:
        return "scripted faults hit single workers, but one program runs all of them"
    return ""


def misfit(machine: LocalMachine, strategy: Strategy, *, recorded: bool) -> str:
    """The reason why a strategy does not fit on this mesh; "" if it does."""
    if recorded:
        return "only runs on threads can be recorded"
    if why := misfit_of_machine(machine):
        return why
    if not strategy.policy.bulk_synchronous:
        return (
            "the policy is not bulk-synchronous: its next action depends on which "
            "worker arrives first, or workers join and leave"
        )
    if any(merge.updates_busy_workers for merge in strategy.merges):
        return "the merge changes replicas of busy workers"
    if any(merge.part is not None for merge in strategy.merges):
        return "the model is merged in parts, but a mesh merges whole models"
    return ""


def check_fits(
    name: str, machine: LocalMachine, strategy: Strategy, *, recorded: bool
) -> None:
    """Raise a ValueError if the strategy called `name` does not fit on a mesh."""
    why = misfit(machine, strategy, recorded=recorded)
    if why:
        raise ValueError(
            f'{name} cannot be placed on a mesh: {why}; use placement="threads" '
            "(in scripts --machine=local)"
        )
