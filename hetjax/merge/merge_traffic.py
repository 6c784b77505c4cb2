"""What of its members' replicas a merge reads and changes, found in its program.

A replica stays with its worker. Before a merge, the arrays that the merge reads go to
the driver; after it, the arrays that it changed go to the members. Which ones these are
is declared nowhere: the jaxpr of `Merge.apply` has it, for hetjax's merges as for a
user's own.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from hetjax.replica import Replica

Apply = Callable[[Any, tuple[Replica, ...], Any], tuple[Any, Sequence[Replica]]]


class Change(NamedTuple):
    """A leaf of a member's replica that a merge replaces, and by what.

    One of the other fields is set: the number of an array that is sent, another leaf of
    the same replica as it was before the merge, or one number for all of the leaf.
    """

    leaf: int
    sent: int | None = None
    own: int | None = None
    fill: float | None = None


class Exchange(NamedTuple):
    """What crosses for one kind of merge.

    run(state, read, stats) -> (state, arrays to send, local members); `read` has for
    each member the leaves that `reads` lists, which are all of a local one.
    """

    reads: tuple[tuple[int, ...], ...]  # leaves, by member
    changes: tuple[tuple[Change, ...], ...]  # by member; of a local one, none
    run: Callable[[Any, Sequence[Sequence[Any]], Any], tuple[Any, list, list]]


def exchange_of(
    apply: Apply,
    state: Any,
    replicas: Sequence[Replica],
    stats: Any,
    local: Sequence[bool],
) -> Exchange:
    """Find what crosses in `apply(state, replicas, stats)`; compile nothing yet.

    The arguments are arrays, or their shapes. `local` members, such as the nodes of a
    tree, are with the driver: nothing of them crosses.
    """
    leaves = [jax.tree.leaves(replica) for replica in replicas]
    structures = [jax.tree.structure(replica) for replica in replicas]

    def flat(state: Any, leaves: Sequence[Sequence[Any]], stats: Any) -> Any:
        given = zip(structures, leaves, strict=True)
        members = tuple(jax.tree.unflatten(s, own) for s, own in given)
        state, members = apply(state, members, stats)
        return state, [jax.tree.leaves(member) for member in members]

    closed, like = jax.make_jaxpr(flat, return_shape=True)(state, leaves, stats)
    values = _Values(closed.jaxpr)
    before = _like(leaves, values.inputs[len(jax.tree.leaves(state)) :])
    num_state = len(jax.tree.leaves(like[0]))
    after = _like(like[1], values.outputs[num_state:])
    sent: dict[Hashable, tuple[int, int]] = {}  # a value -> a member's leaf that has it
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

    def run(state: Any, read: Sequence[Sequence[Any]], stats: Any) -> Any:
        # what is not read decides nothing, and XLA leaves it out
        full = [
            _filled(own, numbers, given)
            for own, numbers, given in zip(leaves, reads, read, strict=True)
        ]
        state, found = flat(state, full, stats)
        kept = [
            jax.tree.unflatten(structures[m], own)
            for m, own in enumerate(found)
            if local[m]
        ]
        return state, [found[m][i] for m, i in chosen], kept

    return Exchange(reads, changes, jax.jit(run, donate_argnums=0))


def _changes(
    member: int,
    before: Sequence[Hashable],
    after: Sequence[Hashable],
    values: "_Values",
    sent: dict[Hashable, tuple[int, int]],
) -> Iterable[Change]:
    """The leaves of a member that another value replaces; adds to what is sent."""
    for leaf, value in enumerate(after):
        if value == before[leaf]:
            continue
        fill = values.constant(value)
        if fill is not None:
            yield Change(leaf, fill=fill)
        elif value in before:
            yield Change(leaf, own=before.index(value))
        else:
            sent.setdefault(value, (member, leaf))
            yield Change(leaf, sent=list(sent).index(value))


def _like(trees: Sequence[Sequence[Any]], flat: Sequence[Any]) -> list[list[Any]]:
    """The flat values, in lists as long as the given ones."""
    rest = iter(flat)
    return [[next(rest) for _ in own] for own in trees]


def _filled(
    leaves: Sequence[Any], numbers: Sequence[int], given: Sequence[Any]
) -> list[Any]:
    """The given arrays as the leaves of these numbers, and zeros as all others."""
    known = dict(zip(numbers, given, strict=True))
    return [
        known[i] if i in known else jnp.zeros(leaf.shape, leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]


class _Values:
    """The values of a jaxpr: equal keys are equal values, however often computed."""

    def __init__(self, jaxpr: Any):
        """Number the values, by what computes them from which others."""
        self._keys: dict[Any, Hashable] = {
            v: ("input", i) for i, v in enumerate([*jaxpr.constvars, *jaxpr.invars])
        }
        self._made_of: dict[Hashable, tuple[Hashable, ...]] = {}
        self._fills: dict[Hashable, float] = {}
        self._unique: dict[Hashable, int] = {}
        for equation in jaxpr.eqns:
            self._number(equation)
        self.inputs = [self._key(v) for v in jaxpr.invars]
        self.outputs = [self._key(v) for v in jaxpr.outvars]

    def _number(self, equation: Any) -> None:
        given = tuple(self._key(v) for v in equation.invars)
        if equation.primitive.name == "copy":  # another buffer, the same value
            self._keys[equation.outvars[0]] = given[0]
            return
        params = tuple((k, _hashable(v)) for k, v in sorted(equation.params.items()))
        # a number for the key: keys within keys would grow with the program
        made = self._unique.setdefault(
            (equation.primitive.name, params, given), len(self._unique)
        )
        for place, variable in enumerate(equation.outvars):
            key = ("made", made, place)
            self._keys[variable] = key
            self._made_of[key] = given
            if equation.primitive.name == "broadcast_in_dim":
                fill = self.constant(given[0])
                if fill is not None:
                    self._fills[key] = fill

    def _key(self, variable: Any) -> Hashable:
        if isinstance(variable, Literal):
            return ("literal", float(variable.val), str(variable.aval))
        return self._keys[variable]

    def constant(self, value: Any) -> float | None:
        """The one number that a value is full of; None if it is another value."""
        return value[1] if value[0] == "literal" else self._fills.get(value)

    def read_by(self, values: Iterable[Hashable]) -> set[Hashable]:
        """All values that these are computed from, and themselves."""
        found, ahead = set(), list(values)
        while ahead:
            value = ahead.pop()
            if value not in found:
                found.add(value)
                ahead += self._made_of.get(value, ())
        return found


def _hashable(value: Any) -> Hashable:
    """A parameter of an equation as part of a key; equal only if surely the same."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
