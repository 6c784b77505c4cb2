"""The members of a merge: a tuple of trees, or the trees along an axis of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from hetjax import tree
from hetjax.tree import PyTree


@flax.struct.dataclass
class Group:
    """Members that a merge may ask for three things only.

        each(fn, *values)     fn(x_i, value_i, ...) of every member x_i: a Group again
        total(of, weights)    sum_i w_i of(x_i), in float32
        values(of)            [n, ...] the small arrays of(x_i), in the members' order

    What is written with these runs on a tuple of trees (`axis=None`: plain Python
    loops, member by member) and, inside `jax.shard_map`, along a mesh axis: `members`
    are then those of this device, equally many on each, the members of the first
    device come first, and `total` ends in a `psum`, `values` in an `all_gather`.
    Weights and other arrays of one entry per member always have all n entries.

    Promised here, once: a member of weight zero is absent, and not even its NaN counts
    in a total; totals accumulate in float32. What is exact where all members agree is
    the business of the formulas: they sum differences from a center.
    """

    members: tuple[PyTree, ...]
    axis: str | None = flax.struct.field(pytree_node=False, default=None)

    @property
    def size(self) -> int:
        """The number n of all members."""
        devices = 1 if self.axis is None else lax.axis_size(self.axis)
        return len(self.members) * devices

    def each(self, fn: Callable, *values: Group | jax.Array) -> Group:
        """fn(member, value, ...) of every member.

        A value is another Group, or an array of one entry per member.
        """
        own = [v.members if isinstance(v, Group) else self.own(v) for v in values]
        return Group(
            tuple(fn(x, *vs) for x, *vs in zip(self.members, *own, strict=True)),
            self.axis,
        )

    def total(self, of: Callable[[PyTree], PyTree], weights: jax.Array) -> PyTree:
        """sum_i w_i of(x_i) in float32, over the floating leaves."""
        own = self.own(weights)
        here = tree.weighted_sum([of(x) for x in self.members], own)
        if self.axis is None:
            return here
        return tree.map_floats(lambda x: lax.psum(x, self.axis), here)

    def values(self, of: Callable[[PyTree], jax.Array]) -> jax.Array:
        """[n, ...] of(x_i) of every member: small arrays, which every device gets."""
        here = jnp.stack([of(x) for x in self.members])
        if self.axis is None:
            return here
        return lax.all_gather(here, self.axis, tiled=True)

    def own(self, values: jax.Array) -> jax.Array:
        """Those of one entry per member that belong to the members here."""
        if self.axis is None:
            return values
        k = len(self.members)
        return lax.dynamic_slice_in_dim(values, lax.axis_index(self.axis) * k, k)

    def gathered(self) -> tuple[PyTree, ...]:
        """All n members on every device: n times the memory."""
        if self.axis is None:
            return self.members

        def gather(*leaves: jax.Array) -> jax.Array:
            return lax.all_gather(jnp.stack(leaves), self.axis, tiled=True)

        stacked = jax.tree.map(gather, *self.members)
        return unstacked(stacked, self.size)

    def scattered(self, everybody: Sequence[PyTree]) -> tuple[PyTree, ...]:
        """Of all n members, which every device has, those that belong here."""
        if self.axis is None:
            return tuple(everybody)

        def choose(*leaves: jax.Array) -> jax.Array:
            return self.own(jnp.stack(leaves))

        return unstacked(jax.tree.map(choose, *everybody), len(self.members))


def as_group(trees: Group | Sequence[PyTree]) -> Group:
    """A Group of a sequence of trees; a Group as it is."""
    return trees if isinstance(trees, Group) else Group(tuple(trees))


def like(trees: Group | Sequence[PyTree], group: Group) -> Any:
    """The group in the form in which its trees were given: a Group, or a tuple."""
    return group if isinstance(trees, Group) else group.members


def unstacked(stacked: PyTree, n: int) -> tuple[PyTree, ...]:
    """The n trees of a tree whose leaves [n, ...] hold all of them."""
    return tuple(jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(n))
