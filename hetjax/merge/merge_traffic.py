"""The leaves of its members' replicas that a merge reads and changes.

On a cluster a replica stays with its worker. Before a merge, the leaves that it reads
are sent to the driver; after it, the leaves that it changed are sent to the members.
Both are found in the jaxpr of `Merge.apply`, for hetjax's merges and custom ones alike.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from hetjax.replica import Replica

Apply = Callable[[Any, tuple[Replica, ...], Any], tuple[Any, Sequence[Replica]]]


class Change(NamedTuple):
    """A leaf of a member's replica that a merge replaces, and its new value.

    One of the other fields is set: the index of an array that is sent, that of another
    leaf of the same replica before the merge, or one number that fills the leaf.
    """

    leaf: int
    sent: int | None = None
    copy_of: int | None = None
    fill: float | None = None


class Exchange(NamedTuple):
    """The leaves that are sent for one kind of merge, and its program.

    run(state, read, stats) -> (state, arrays to send, local members); `read` has the
    leaves of each member that `reads` lists: all leaves of a local member.
    """

    reads: tuple[tuple[int, ...], ...]  # indices of leaves, by member
    changes: tuple[tuple[Change, ...], ...]  # by member; none of a local member
    run: Callable[[Any, Sequence[Sequence[Any]], Any], tuple[Any, list, list]]


def exchange_of(
    apply: Apply,
    state: Any,
    replicas: Sequence[Replica],
    stats: Any,
    local: Sequence[bool],
) -> Exchange:
    """Find the leaves to send for `apply(state, replicas, stats)`, without compiling.

    The arguments are arrays, or their shapes. `local` members, such as the nodes of a
    tree, are on the driver: nothing of them is sent.
    """
    leaves = [jax.tree.leaves(replica) for replica in replicas]
    structures = [jax.tree.structure(replica) for replica in replicas]

    def flat(state, leaves, stats):
        given = zip(structures, leaves, strict=True)
        members = tuple(jax.tree.unflatten(s, own) for s, own in given)
        state, members = apply(state, members, stats)
        return state, [jax.tree.leaves(member) for member in members]

    closed, like = jax.make_jaxpr(flat, return_shape=True)(state, leaves, stats)
    values = _Values(closed.jaxpr)
    before = _regrouped(leaves, values.inputs[len(jax.tree.leaves(state)) :])
    num_state = len(jax.tree.leaves(like[0]))
    after = _regrouped(like[1], values.outputs[num_state:])
    sent: dict[Hashable, tuple[int, int]] = {}  # value -> (member, leaf)
    changes = tuple(
        () if is_local else tuple(_changes(m, old, new, values, sent))
        for m, (old, new, is_local) in enumerate(zip(before, after, local, strict=True))
    )
    of_locals = [v for m, own in enumerate(after) if local[m] for v in own]
    wanted = values.read_by([*values.outputs[:num_state], *of_locals, *sent])
    reads = tuple(
        tuple(i for i, v in enumerate(own) if is_local or v in wanted)
        for own, is_local in zip(before, local, strict=True)
    )
    chosen = list(sent.values())

    def run(state, read, stats):
        # leaves that are not read have no effect, and XLA removes them
        full = [
            _filled(own, numbers, given)
            for own, numbers, given in zip(leaves, reads, read, strict=True)
        ]
        state, found = flat(state, full, stats)
        local_members = [
            jax.tree.unflatten(structures[m], own)
            for m, own in enumerate(found)
            if local[m]
        ]
        return state, [found[m][i] for m, i in chosen], local_members

    return Exchange(reads, changes, jax.jit(run, donate_argnums=0))


def _changes(
    member: int,
    before: Sequence[Hashable],
    after: Sequence[Hashable],
    values: "_Values",
    sent: dict[Hashable, tuple[int, int]],
) -> Iterable[Change]:
    """The changed leaves of a member; adds the values to send to `sent`."""
    for leaf, value in enumerate(after):
        if value == before[leaf]:
            continue
        fill = values.constant(value)
        if fill is not None:
            yield Change(leaf, fill=fill)
        elif value in before:
            yield Change(leaf, copy_of=before.index(value))
        else:
            sent.setdefault(value, (member, leaf))
            yield Change(leaf, sent=list(sent).index(value))


def _regrouped(trees: Sequence[Sequence[Any]], flat: Sequence[Any]) -> list[list[Any]]:
    """The flat values, in lists as long as the `trees`."""
    rest = iter(flat)
    return [[next(rest) for _ in own] for own in trees]


def _filled(
    leaves: Sequence[Any], numbers: Sequence[int], given: Sequence[Any]
) -> list[Any]:
    """All leaves: those with these indices have the given values, the others zeros."""
    known = dict(zip(numbers, given, strict=True))
    return [
        known[i] if i in known else jnp.zeros(leaf.shape, leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]


class _Values:
    """Keys for the values of a jaxpr: equal keys mean equal values."""

    def __init__(self, jaxpr: Any):
        """Build each value's key from its primitive, parameters and operands."""
        self._keys: dict[Any, Hashable] = {
            v: ("input", i) for i, v in enumerate([*jaxpr.constvars, *jaxpr.invars])
        }
        self._operands: dict[Hashable, tuple[Hashable, ...]] = {}
        self._fills: dict[Hashable, float] = {}
        self._unique: dict[Hashable, int] = {}
        for equation in jaxpr.eqns:
            self._number(equation)
        self.inputs = [self._key(v) for v in jaxpr.invars]
        self.outputs = [self._key(v) for v in jaxpr.outvars]

    def _number(self, equation: Any) -> None:
        given = tuple(self._key(v) for v in equation.invars)
        if equation.primitive.name == "copy":  # the same value in another buffer
            self._keys[equation.outvars[0]] = given[0]
            return
        params = tuple((k, _hashable(v)) for k, v in sorted(equation.params.items()))
        # keys have numbers: nested keys would grow with the program
        made = self._unique.setdefault(
            (equation.primitive.name, params, given), len(self._unique)
        )
        for index, variable in enumerate(equation.outvars):
            key = ("made", made, index)
            self._keys[variable] = key
            self._operands[key] = given
            if equation.primitive.name == "broadcast_in_dim":
                fill = self.constant(given[0])
                if fill is not None:
                    self._fills[key] = fill

    def _key(self, variable: Any) -> Hashable:
        if isinstance(variable, Literal):
            return ("literal", float(variable.val), str(variable.aval))
        return self._keys[variable]

    def constant(self, value: Any) -> float | None:
        """The number that fills a value; None if it is not constant."""
        return value[1] if value[0] == "literal" else self._fills.get(value)

    def read_by(self, values: Iterable[Hashable]) -> set[Hashable]:
        """These values, and all values that they are computed from."""
        found, ahead = set(), list(values)
        while ahead:
            value = ahead.pop()
            if value not in found:
                found.add(value)
                ahead += self._operands.get(value, ())
        return found


def _hashable(value: Any) -> Hashable:
    """An equation's parameter as part of a key; unhashable ones equal themselves."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
