"""What one kind of merge sends to and fro: leaves, arrays, and parts of its program."""

import pickle
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.merge.member_program import MemberProgram


class Change(NamedTuple):
    """A leaf of a member's replica that a merge replaces, and its new value.

    One of the other fields is set: the index of an array that is sent, that of another
    leaf of the same replica before the merge, one number that fills the leaf, or the
    index of a result of the member's program.
    """

    leaf: int
    sent: int | None = None
    copy_of: int | None = None
    fill: float | None = None
    computed: int | None = None


# a member's program, and the indices of the sent arrays that are its arguments
MemberCall = tuple[MemberProgram, tuple[int, ...]]


class Parcel(NamedTuple):
    """What is sent to one member; its indices are those of the arrays of the parcel."""

    changes: tuple[Change, ...]
    program: MemberCall | None
    # indices of the merge's arrays: those in one tuple go to the same members
    arrays: tuple[tuple[int, ...], ...]
    packed: bytes  # the changes and the program, pickled once for all such merges

    def chosen(self, sent: Sequence[Any]) -> list[Any]:
        """Return the arrays of the parcel, of all arrays that the merge sends."""
        return [sent[i] for numbers in self.arrays for i in numbers]


@lru_cache(maxsize=256)
def unpacked(packed: bytes) -> tuple[tuple[Change, ...], MemberCall | None]:
    """Return the changes and the program of a parcel."""
    return pickle.loads(packed)


class Exchange(NamedTuple):
    """The leaves that are sent for one kind of merge, and its program.

    run(state, read, stats) -> (state, arrays to send, local members); `read` has the
    leaves of each member that `reads` lists: all leaves of a local member.
    """

    reads: tuple[tuple[int, ...], ...]  # indices of leaves, by member
    parcels: tuple[Parcel | None, ...]  # by member; None: no change
    run: Callable[[Any, Sequence[Sequence[Any]], Any], tuple[Any, list, list]]


def changed_leaves(
    before: Sequence[jax.Array],
    changes: Sequence[Change],
    call: MemberCall | None,
    sent: Sequence[Any],
    put: Callable[[Any], jax.Array],
    jitted: Callable[[MemberProgram], Callable[..., Sequence[jax.Array]]],
) -> list[jax.Array]:
    """The leaves of a replica after a merge, none of them in the buffer of another.

    `put` copies a sent array to the member's device, `jitted` returns a program.
    """
    after, computed = list(before), []
    if call is not None:
        program, numbers = call
        own = [before[i] for i in program.reads]
        computed = jitted(program)(*own, *(put(sent[i]) for i in numbers))
    for change in changes:
        leaf, like = change.leaf, before[change.leaf]
        if change.computed is not None:
            after[leaf] = computed[change.computed]
        elif change.sent is not None:
            after[leaf] = put(sent[change.sent])
        elif change.copy_of is not None:
            after[leaf] = jnp.copy(before[change.copy_of])
        else:
            after[leaf] = put(np.full(like.shape, change.fill, like.dtype))
    return after


def parcels(
    changes: Sequence[Sequence[Change]], programs: Sequence[MemberCall | None]
) -> tuple[Parcel | None, ...]:
    """What is sent to each member: arrays for the same members go as one."""
    receivers: dict[int, list[int]] = {}  # by array
    for m, (mine, program) in enumerate(zip(changes, programs, strict=True)):
        arguments = () if program is None else program[1]
        numbers = {c.sent for c in mine if c.sent is not None} | {*arguments}
        for number in sorted(numbers):
            receivers.setdefault(number, []).append(m)
    groups: dict[tuple[int, ...], list[int]] = {}  # arrays, by receivers
    for number, members in receivers.items():
        groups.setdefault(tuple(members), []).append(number)

    def parcel(m: int) -> Parcel | None:
        if not changes[m]:
            return None
        arrays = tuple(tuple(group) for to, group in groups.items() if m in to)
        place = {number: i for i, number in enumerate(n for g in arrays for n in g)}
        renumbered = tuple(
            c if c.sent is None else c._replace(sent=place[c.sent]) for c in changes[m]
        )
        program = programs[m]
        if program is not None:
            program = program[0], tuple(place[number] for number in program[1])
        packed = pickle.dumps((renumbered, program))
        return Parcel(renumbered, program, arrays, packed)

    return tuple(map(parcel, range(len(changes))))
