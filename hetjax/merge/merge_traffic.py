"""What is sent between a merge and its members, on a cluster.

There a replica stays with its worker. Before a merge, the leaves that it reads are sent
to the driver; after it, the leaves that it changed are sent to the members. Both are
found in the jaxpr of `Merge.apply`, for hetjax's merges and custom ones alike.

A changed leaf may be made of the member's own leaves and a few values of the driver:

    w_j - alpha (w_j' - z)      of SMA, with w_j' before the last step

Its worker then computes it (`MemberProgram`): only z is sent, the same to all members,
and w_j need not be sent to the driver. This is done if it saves a tenth of the bytes.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hetjax.merge.member_program import member_programs
from hetjax.merge.merge_exchange import Change, Exchange, parcels
from hetjax.merge.value_graph import ValueGraph
from hetjax.replica import Replica

Apply = Callable[[Any, tuple[Replica, ...], Any], tuple[Any, Sequence[Replica]]]
Members = list[list[Any]]  # values, by member and leaf
# by member: the leaves that it completes, and the values that it needs for that
Plan = list[dict[int, frozenset]]

# values that depend on members' leaves cost as if they had more bytes: others may be
# the same for all members
OWN_FACTOR, OWN_BYTES = 17 / 16, 64
WORTHWHILE = 0.9  # of the bytes with which the driver computes everything


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
    merge = _TracedMerge(apply, state, replicas, stats, local)
    nothing: Plan = [{} for _ in replicas]
    plan = [merge.completed(m) for m in range(len(replicas))]
    pays = merge.num_bytes(plan) < WORTHWHILE * merge.num_bytes(nothing)
    return merge.exchange(plan if pays else nothing)


class _TracedMerge:
    """A merge as a graph of values, and the ways to split it."""

    def __init__(
        self,
        apply: Apply,
        state: Any,
        replicas: Sequence[Replica],
        stats: Any,
        local: Sequence[bool],
    ):
        """As `exchange_of`."""
        leaves = [jax.tree.leaves(replica) for replica in replicas]
        self._structures = [jax.tree.structure(replica) for replica in replicas]
        self._local = local

        def flat(state, leaves, stats):
            given = zip(self._structures, leaves, strict=True)
            members = tuple(jax.tree.unflatten(s, own) for s, own in given)
            state, members = apply(state, members, stats)
            return state, [jax.tree.leaves(member) for member in members]

        self._flat, self._leaves = flat, leaves
        closed, like = jax.make_jaxpr(flat, return_shape=True)(state, leaves, stats)
        self.graph = graph = ValueGraph(closed)
        num_state = jax.tree.structure(like[0]).num_leaves
        self._outputs = graph.outputs[:num_state]
        self._num_state = jax.tree.structure(state).num_leaves
        given = graph.inputs[self._num_state :]
        self._before = _regrouped(leaves, given)
        self._after = _regrouped(like[1], graph.outputs[num_state:])
        # what the driver computes in any case
        of_locals = [v for m, own in enumerate(self._after) if local[m] for v in own]
        self._base = graph.read_by([*self._outputs, *of_locals])
        places = [v for own in self._before for v in own]
        self._masks = graph.masks({v: 1 << i for i, v in enumerate(places)})
        self._sizes = [graph.num_bytes(v) for v in places]
        self._base_mask = sum(1 << i for i, v in enumerate(places) if v in self._base)

    # -- which values are sent -------------------------------------------------------

    def _changed(self, member: int) -> Iterable[tuple[Change, Hashable]]:
        """The changed leaves of a member, and their values; `sent` has no index yet."""
        if self._local[member]:
            return
        before = self._before[member]
        for leaf, value in enumerate(self._after[member]):
            if value == before[leaf]:
                continue
            fill = self.graph.constant(value)
            if fill is not None:
                yield Change(leaf, fill=fill), value
            elif value in before:
                yield Change(leaf, copy_of=before.index(value)), value
            else:
                yield Change(leaf, sent=-1), value

    def completed(self, member: int) -> dict[int, frozenset]:
        """By leaf that the member can compute, the values that it needs for that."""
        if not self.graph.is_plain:
            return {}
        own = set(self._before[member])
        own_mask = 0
        for value in own:
            own_mask |= self._masks[value]
        needed: dict[Any, frozenset] = {}  # the values to send to have this one

        def is_apart(value: Any) -> bool:
            """Whether only the driver may compute a value, if the member has it not."""
            mask = self._masks.get(value, 0)
            if not self.graph.is_cheap(value):
                return True
            if not mask & own_mask:
                return not self.graph.is_broadcast(value)
            others = mask & ~own_mask  # as in a mean of all members
            return bool(others and (value in self._base or others & ~self._base_mask))

        def is_known(value: Any) -> bool:
            """Whether the member has a value without being sent anything."""
            return value in own or self.graph.constant(value) is not None

        def operands(value: Any) -> Sequence[Any]:
            alone = is_known(value) or is_apart(value)
            return () if alone else self.graph.operands(value)

        wanted = {c.leaf: v for c, v in self._changed(member) if c.sent is not None}
        for value in self.graph.in_order(wanted.values(), operands):
            parts = [needed[operand] for operand in operands(value)]
            alone, together = frozenset([value]), frozenset().union(*parts)
            if is_known(value) or (parts and self._cost(together) < self._cost(alone)):
                needed[value] = together
            else:
                needed[value] = alone
        return {k: needed[v] for k, v in wanted.items() if needed[v] != {v}}

    def _cost(self, values: frozenset) -> float:
        """The bytes of values, and of the leaves that are read only for these."""
        down, mask = 0.0, 0
        for value in values:
            own = self._masks.get(value, 0)
            size = self.graph.num_bytes(value)
            down += OWN_FACTOR * size + OWN_BYTES if own else size
            mask |= own
        mask &= ~self._base_mask
        while mask:
            last = mask & -mask
            down, mask = down + self._sizes[last.bit_length() - 1], mask ^ last
        return down

    def _sent(self, plan: Plan) -> list[list[Any]]:
        """The values that are sent to each member, in order."""
        found = []
        for m, completed in enumerate(plan):
            mine: dict[Any, None] = {}
            for change, value in self._changed(m):
                if change.sent is not None:
                    needs = completed.get(change.leaf)
                    # sorted: a set of keys has no order of its own
                    mine |= dict.fromkeys([value] if needs is None else sorted(needs))
            found.append(list(mine))
        return found

    def _reads(self, sent: Sequence[Sequence[Any]]) -> list[tuple[int, ...]]:
        """The indices of the leaves of each member that the driver reads."""
        wanted = self._base | self.graph.read_by(v for mine in sent for v in mine)
        return [
            tuple(i for i, v in enumerate(own) if is_local or v in wanted)
            for own, is_local in zip(self._before, self._local, strict=True)
        ]

    def num_bytes(self, plan: Plan) -> int:
        """The bytes that are sent to and by all members."""
        sent, size = self._sent(plan), self.graph.num_bytes
        total = sum(size(v) for mine in sent for v in mine)
        for m, numbers in enumerate(self._reads(sent)):
            if not self._local[m]:
                total += sum(size(self._before[m][i]) for i in numbers)
        return total

    # -- the programs ----------------------------------------------------------------

    def exchange(self, plan: Plan) -> Exchange:
        """The exchange in which members complete these leaves."""
        sent = self._sent(plan)
        reads = self._reads(sent)
        values = list(dict.fromkeys(v for mine in sent for v in mine))
        place = {value: i for i, value in enumerate(values)}
        changes = tuple(
            tuple(self._completed_changes(m, completed, place))
            for m, completed in enumerate(plan)
        )
        wanted = [
            [self._after[m][leaf] for leaf in completed]
            for m, completed in enumerate(plan)
        ]
        needs = [sorted(frozenset().union(*found.values())) for found in plan]
        programs = member_programs(self.graph, self._before, wanted, needs)
        calls = tuple(
            None if program is None else (program, tuple(place[v] for v in mine))
            for program, mine in zip(programs, needs, strict=True)
        )
        run = jax.jit(self._program(reads, values), donate_argnums=0)
        return Exchange(tuple(reads), parcels(changes, calls), run)

    def _completed_changes(
        self, member: int, completed: dict[int, frozenset], place: dict[Any, int]
    ) -> Iterable[Change]:
        """The changes of a member that completes these leaves."""
        computed = {leaf: i for i, leaf in enumerate(completed)}
        for change, value in self._changed(member):
            if change.leaf in computed:
                yield Change(change.leaf, computed=computed[change.leaf])
            elif change.sent is not None:
                yield Change(change.leaf, sent=place[value])
            else:
                yield change

    def _program(self, reads: Sequence[Sequence[int]], sent: list[Any]) -> Callable:
        """`Exchange.run`, not jitted."""
        inputs, num_state = self.graph.inputs, self._num_state
        places = {}  # (member, leaf) of a changed value
        for m, own in enumerate(self._after):
            places |= {value: (m, i) for i, value in enumerate(own)}
        others = [value for value in sent if value not in places]

        def run(state, read, stats):
            numbers = jax.tree.leaves(stats)
            states = zip(inputs[:num_state], jax.tree.leaves(state), strict=True)
            known = dict(states)
            known |= zip(inputs[len(inputs) - len(numbers) :], numbers, strict=True)
            full = []
            for m, given in enumerate(read):
                own = dict(zip(reads[m], given, strict=True))
                known |= {self._before[m][i]: array for i, array in own.items()}
                # leaves that are not read have no effect, and XLA removes them
                full.append(
                    [
                        own[i] if i in own else jnp.zeros(leaf.shape, leaf.dtype)
                        for i, leaf in enumerate(self._leaves[m])
                    ]
                )
            computed = dict(zip(others, self.graph.compute(others, known), strict=True))
            state, found = self._flat(state, full, stats)
            arrays = []
            for value in sent:
                if value in places:
                    m, i = places[value]
                    arrays.append(found[m][i])
                else:  # an input needs a buffer of its own, since the state is donated
                    array = computed[value]
                    arrays.append(jnp.copy(array) if value in known else array)
            members = [
                jax.tree.unflatten(self._structures[m], own)
                for m, own in enumerate(found)
                if self._local[m]
            ]
            return state, arrays, members

        return run


def _regrouped(trees: Sequence[Sequence[Any]], flat: Sequence[Any]) -> Members:
    """The flat values, in lists as long as the `trees`."""
    rest = iter(flat)
    return [[next(rest) for _ in own] for own in trees]
