"""Where workers are on a mesh: so many devices, with equally many workers on each."""

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

    Worker k is in slot k % slots of device k // slots. A tree that lies on the mesh has
    leaves [devices, ...], whose entry i is on device i alone.
    """

    devices: tuple[Any, ...]
    workers_per_device: int

    @property
    def num_workers(self) -> int:
        """The number of workers on all devices."""
        return len(self.devices) * self.workers_per_device

    @property
    def mesh(self) -> Mesh:
        """The mesh, of one axis."""
        return _mesh(self.devices)

    @property
    def split(self) -> NamedSharding:
        """The sharding of what each device has its own of."""
        return _sharding(self.devices, AXIS)

    @property
    def everywhere(self) -> NamedSharding:
        """The sharding of what is the same on all devices."""
        return _sharding(self.devices)

    @property
    def is_alone(self) -> bool:
        """Are all devices those of this process?"""
        return len(self.local) == len(self.devices)

    @property
    def local(self) -> list[int]:
        """The indices of this process's devices."""
        return _local(self.devices)

    def everyone(self, tree: PyTree) -> PyTree:
        """The tree, which every process has, on all devices."""
        if self.is_alone:
            return jax.device_put(tree, self.everywhere)
        return jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(
                self.everywhere, np.asarray(x)
            ),
            tree,
        )

    def put_local(self, tree: PyTree) -> PyTree:
        """The tree with leaves [local devices, ...] on the host, each part there.

        For a single device it may stay on the host: a jitted call sends it sooner.
        """
        return tree if len(self.devices) == 1 else self.split_local(tree)

    def split_local(self, tree: PyTree) -> PyTree:
        """As `put_local`, always on the devices."""
        if self.is_alone:
            return jax.device_put(tree, self.split)
        return jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(
                self.split, x, (len(self.devices), *x.shape[1:])
            ),
            tree,
        )

    def place(self, worker: int) -> tuple[int, int]:
        """The (device, slot) of a worker."""
        return divmod(worker, self.workers_per_device)

    def devices_of(self, workers: Iterable[int]) -> tuple[int, ...] | None:
        """The devices whose workers these are; None if they are not whole devices."""
        chosen = frozenset(workers)
        devices = sorted({k // self.workers_per_device for k in chosen})
        whole = len(devices) * self.workers_per_device == len(chosen)
        return tuple(devices) if whole else None


@lru_cache  # asked for at every launch
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
    """Inside `shard_map`: a device's own part [1, ...] of a tree, without that axis."""
    return jax.tree.map(lambda x: x[0], tree)


def off_device(tree: PyTree) -> PyTree:
    """The inverse of `on_device`."""
    return jax.tree.map(lambda x: x[None], tree)


def first_part(tree: PyTree) -> PyTree:
    """The part [1, ...] of a tree that is on the first device of this process."""
    return jax.tree.map(lambda x: x.addressable_shards[0].data, tree)


def layout_of(machine: LocalMachine) -> MeshLayout:
    """The layout of a machine's workers, which `check_fits` has let pass."""
    counts = Counter(w.device for w in machine.workers)
    return MeshLayout(tuple(counts), next(iter(counts.values())))


def misfit_of_machine(machine: LocalMachine) -> str:
    """Why these workers make no mesh; "" if they do."""
    kinds = dict.fromkeys(w.kind for w in machine.workers)
    if len(kinds) > 1:
        return (
            f"a mesh has devices of one kind, but there are {' and '.join(kinds)}: one "
            "program cannot span them"
        )
    counts = Counter(w.device for w in machine.workers)
    if len(set(counts.values())) > 1:
        return "on a mesh every device has equally many workers"
    owners = [d.process_index for d in counts]
    if owners[0] != 0 or set(owners) != set(range(jax.process_count())):
        return (
            f"there are {jax.process_count()} processes, and each needs a device of "
            "the mesh, process 0 the first one"
        )
    slow = [w.name for w in machine.workers if w.slowdown != 1]
    if slow:
        return f"{slow[0]} is slowed down on purpose, which a program cannot do"
    if machine.faults:
        return "scripted faults concern single workers, but a mesh runs all as one"
    return ""


def misfit_of_strategy(strategy: Strategy) -> str:
    """Why a strategy cannot run as one program per wave; "" if it can."""
    if not strategy.policy.bulk_synchronous:
        return (
            "the policy is not bulk-synchronous: what it does next depends on which "
            "worker arrives first, or workers come and go"
        )
    if any(merge.updates_busy_workers for merge in strategy.merges):
        return "the merge changes replicas while their workers compute"
    return ""


def misfit(machine: LocalMachine, strategy: Strategy, *, recorded: bool) -> str:
    """Why a strategy does not fit on a mesh of this machine; "" if it does."""
    if recorded:
        return "only runs on threads are recorded"
    return misfit_of_machine(machine) or misfit_of_strategy(strategy)


def check_fits(
    name: str, machine: LocalMachine, strategy: Strategy, *, recorded: bool
) -> None:
    """Raise a ValueError if the strategy of this name does not fit on a mesh."""
    why = misfit(machine, strategy, recorded=recorded)
    if why:
        raise ValueError(
            f'{name} cannot be placed on a mesh: {why}; take placement="threads" '
            "(in scripts --machine=local)"
        )
