"""Where workers are on a mesh: so many devices, with equally many workers on each."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

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
