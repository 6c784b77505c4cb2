"""The members of a merge: a tuple of trees, or the trees along an axis of a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from hetjax import tree
from hetjax.merge.merge_checks import check_alike
from hetjax.tree import PyTree

SMALL = 2**14  # elements; leaves up to this size are summed in one collective


@flax.struct.dataclass
class Group:
    """The members of a merge, which offers three operations on them.

        each(fn, *values)     the Group of fn(x_i, value_i, ...) for every member x_i
        total(of, weights)    sum_i w_i of(x_i), in float32
        values(of)            [n, ...] the small arrays of(x_i), in the members' order

    A merge written with these runs on a tuple of trees (`axis=None`: plain Python loops
    over the members) and, inside `jax.shard_map`, along a mesh axis. There, `members`
    are those of this device, with the same number on each device; the members of the
    first device come first; `total` ends in a `psum` and `values` in an `all_gather`.
    Weights and other arrays with one entry per member always have all n entries.

    Along an axis that is divided into `axis_groups` (tuples of device indices), several
    groups merge at the same time, each with its own totals. Arrays still have entries
    for all n members along the axis: those of other groups have weight zero. Where
    devices hold copies of the same member, `replicated_over` is the index of the member
    on each device; a copy is treated like its member, and counts once.

    Inside one program, n members may also be `stacked=n`: `members` is then a single
    tree with leaves [n, ...], `each` and `values` are a `vmap`, and `total` a product.

    Promises: a member of weight zero is absent, and even its NaNs do not count in a
    total; totals accumulate in float32. Exactness where all members agree is up to the
    formulas, which sum differences from a center.
    """

    members: tuple[PyTree, ...]
    axis: str | None = flax.struct.field(pytree_node=False, default=None)
    axis_groups: tuple[tuple[int, ...], ...] | None = flax.struct.field(
        pytree_node=False, default=None
    )
    replicated_over: tuple[int, ...] | None = flax.struct.field(
        pytree_node=False, default=None
    )
    stacked: int = flax.struct.field(pytree_node=False, default=0)

    @property
    def size(self) -> int:
        """The number n of all members."""
        if self.stacked:
            return self.stacked
        if self.replicated_over is not None:
            return max(self.replicated_over) + 1
        devices = 1 if self.axis is None else lax.axis_size(self.axis)
        return len(self.members) * devices

    def each(self, fn: Callable, *values: Group | jax.Array) -> Group:
        """The Group of fn(member, value, ...) for every member.

        A value is another Group, or an array with one entry per member.
        """
        own = [v.members if isinstance(v, Group) else self.own(v) for v in values]
        if self.stacked:
            every = [v[0] if isinstance(v, tuple) else v for v in own]
            return dataclasses.replace(
                self, members=(self._mapped(fn)(self.members[0], *every),)
            )
        members = tuple(fn(x, *vs) for x, *vs in zip(self.members, *own, strict=True))
        return dataclasses.replace(self, members=members)

    def total(self, of: Callable[[PyTree], PyTree], weights: jax.Array) -> PyTree:
        """sum_i w_i of(x_i) in float32, over the floating leaves."""
        own = self.own(weights)
        if self.stacked:
            return _weighted(self._mapped(of)(self.members[0]), own)
        trees = [of(x) for x in self.members]
        check_alike(trees)
        here = tree.weighted_sum(trees, own)
        if self.axis is None:
            return here
        if self.replicated_over is not None:
            counts = self._here(
                [self._first[m] == d for d, m in enumerate(self.replicated_over)]
            )
            here = tree.map_floats(lambda x: jnp.where(counts, x, 0.0), here)
        return _summed(
            here, lambda x: lax.psum(x, self.axis, axis_index_groups=self.axis_groups)
        )

    def values(self, of: Callable[[PyTree], jax.Array]) -> jax.Array:
        """[n, ...] of(x_i) for every member: small arrays, the same on every device."""
        if self.stacked:
            return self._mapped(of)(self.members[0])
        here = jnp.stack([of(x) for x in self.members])
        if self.axis is None:
            return here
        return self._of_members(lax.all_gather(here, self.axis, tiled=True))

    def _mapped(self, fn: Callable) -> Callable:
        """`fn` of all stacked members; they may be trees without leaves."""
        return jax.vmap(fn, axis_size=self.stacked)

    def own(self, values: jax.Array) -> jax.Array:
        """The entries of a per-member array [n] that belong to `members`."""
        if self.axis is None:
            return values
        k = len(self.members)
        first = (
            lax.axis_index(self.axis)
            if self.replicated_over is None
            else self._here(self.replicated_over)
        )
        return lax.dynamic_slice_in_dim(values, first * k, k)

    @property
    def _first(self) -> list[int]:
        """The first device that holds each member, where devices hold copies."""
        holds = self.replicated_over or ()
        return [holds.index(m) for m in range(max(holds) + 1)]

    def _of_members(self, gathered: jax.Array) -> jax.Array:
        """The entries of all members, without those of copies."""
        if self.replicated_over is None:
            return gathered
        return gathered[jnp.array(self._first)]

    def _here(self, of_devices: Sequence[Any]) -> jax.Array:
        """This device's entry of a static list."""
        return jnp.array(of_devices)[lax.axis_index(self.axis)]

    def gathered(self) -> tuple[PyTree, ...]:
        """All n members on every device, which takes n times the memory."""
        if self.stacked:
            return unstacked(self.members[0], self.stacked)
        if self.axis is None:
            return self.members

        def gather(*leaves: jax.Array) -> jax.Array:
            stacked = lax.all_gather(jnp.stack(leaves), self.axis, tiled=True)
            return self._of_members(stacked)

        stacked = jax.tree.map(gather, *self.members)
        return unstacked(stacked, self.size)

    def scattered(self, trees: Sequence[PyTree]) -> tuple[PyTree, ...]:
        """This device's members among all n trees, which every device has."""
        if self.stacked:
            return (jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees),)
        if self.axis is None:
            return tuple(trees)

        def choose(*leaves: jax.Array) -> jax.Array:
            return self.own(jnp.stack(leaves))

        return unstacked(jax.tree.map(choose, *trees), len(self.members))


def _weighted(stack: PyTree, weights: jax.Array) -> PyTree:
    """As `tree.weighted_sum`, of stacked trees."""

    def total(leaf: jax.Array) -> jax.Array:
        if not tree.is_float(leaf):
            return leaf[0]
        here = (weights != 0).reshape(-1, *[1] * (leaf.ndim - 1))
        values = jnp.where(here, tree.wide(leaf), 0.0)
        return jnp.tensordot(weights, values, axes=1, precision=lax.Precision.HIGHEST)

    return jax.tree.map(total, stack)


def _summed(trees: PyTree, psum: Callable) -> PyTree:
    """Sum all floating leaves along the axis; small ones together in one collective.

    Every collective has a latency, above all between processes.
    """
    leaves, structure = jax.tree.flatten(trees)
    floats = [i for i, x in enumerate(leaves) if tree.is_float(x)]
    small = [i for i in floats if leaves[i].size <= SMALL]
    for i in floats:
        if i not in small:
            leaves[i] = psum(leaves[i])
    if small:
        together = psum(jnp.concatenate([leaves[i].ravel() for i in small]))
        start = 0
        for i in small:
            part, start = (
                together[start : start + leaves[i].size],
                start + leaves[i].size,
            )
            leaves[i] = part.reshape(leaves[i].shape).astype(leaves[i].dtype)
    return jax.tree.unflatten(structure, leaves)


def as_group(trees: Group | Sequence[PyTree]) -> Group:
    """A sequence of trees as a Group; a Group is returned as it is."""
    return trees if isinstance(trees, Group) else Group(tuple(trees))


def like(trees: Group | Sequence[PyTree], group: Group) -> Any:
    """The group as its trees were given: a Group, or a tuple."""
    return group if isinstance(trees, Group) else group.members


def unstacked(stacked: PyTree, n: int) -> tuple[PyTree, ...]:
    """The n trees of a tree with stacked leaves [n, ...]."""
    return tuple(jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(n))
