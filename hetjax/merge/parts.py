"""Merges of a model in parts, each with a state and at a time of its own.

Which tensors belong to which part is a function of the model (`Division`). A policy
names the part of each merge (`MergeAction.part`): "0", "1", ...
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import flax.struct
import jax

from hetjax.arguments import Count, Share, checked
from hetjax.machine.merge_times import Traffic
from hetjax.machine.types import MergeOp
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import reset_to
from hetjax.merge.merge_bytes import dense
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Buffer, Replica, Requires
from hetjax.traced_settings import is_given
from hetjax.tree import MergeState, ModelState, Params, PyTree

Pattern: TypeAlias = Literal["strided", "contiguous", "balanced"]
Division: TypeAlias = Callable[[Params], Sequence[Sequence[int]]]
"""From a model to the indices of its leaves in each part."""

Indices: TypeAlias = tuple[tuple[int, ...], ...]


@checked
def divided(number: Count, pattern: Pattern = "strided") -> Division:
    """Divide a model's layers into `number` parts.

    A layer has all leaves of one container, such as a kernel and its bias. "strided":
    layer l is in part l mod P; "contiguous": the parts are ranges of layers;
    "balanced": layer by layer, the largest first, each to the part that is smallest so
    far. Sources: Streaming DiLoCo, Decoupled DiLoCo; docs/algorithms L.9, L.10.
    """

    def divide(params):
        layers = _layers(params)
        if len(layers) < number:
            raise ValueError(
                f"the model has {len(layers)} layers, which cannot be divided into "
                f"{number} parts: use at most {len(layers)} fragments"
            )
        places = _places(pattern, [size for size, _ in layers], number)
        return tuple(tuple(i for k in part for i in layers[k][1]) for part in places)

    return divide


def _layers(params: Params) -> list[tuple[int, list[int]]]:
    """The layers in order: their sizes, and the indices of their leaves."""
    found: dict[Any, list[int]] = defaultdict(list)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for i, (path, _) in enumerate(leaves):
        # leaves that lie directly in one flat container are layers by themselves
        found[path[:-1] if len(path) > 1 else path].append(i)
    return [(sum(leaves[i][1].size for i in own), own) for own in found.values()]


def _places(pattern: Pattern, sizes: list[int], number: int) -> list[list[int]]:
    """The indices of the layers in each part."""
    n = len(sizes)
    if pattern == "strided":
        return [[k for k in range(n) if k % number == p] for p in range(number)]
    if pattern == "contiguous":
        return [[k for k in range(n) if k * number // n == p] for p in range(number)]
    parts: list[list[int]] = [[] for _ in range(number)]
    for k in sorted(range(n), key=lambda k: (-sizes[k], k)):
        smallest = min(range(number), key=lambda p: sum(sizes[j] for j in parts[p]))
        parts[smallest].append(k)
    return [sorted(part) for part in parts]


@flax.struct.dataclass
class PartsState:
    """The states of the parts of a model, and where their leaves are."""

    states: tuple[MergeState, ...]
    indices: Indices = flax.struct.field(pytree_node=False)
    structure: Any = flax.struct.field(pytree_node=False)  # of the parameters

    def with_part(self, p: int, state: MergeState) -> "PartsState":
        """The states with another one of part p."""
        states = (*self.states[:p], state, *self.states[p + 1 :])
        return self.replace(states=states)  # pyright: ignore[reportAttributeAccessIssue]


@checked
def in_parts(merge: Merge, division: Division, *, blend: Share = 0.0) -> Merge:
    """The merge, applied to each part of the model by itself.

    A member that takes part p keeps a share of its own tensors:

        w_p <- a w_p + (1 - a) c_p                                     a is `blend`

    Traffic is that of the part. Model state (running statistics) goes with the first
    part. A merge that names no part is one of all parts in turn. `merge` may require
    "round_start" and custom buffers only. Source: Streaming DiLoCo (Douillard et al.
    2025); docs/algorithms L.10.
    """
    requires = _in_parts_of(merge.requires, division)
    properties = merge.properties
    if is_given(blend):
        properties &= ~MergeProperty.BROADCASTS

    def init(params, model_state=()):
        indices = tuple(map(tuple, division(params)))
        states = (
            merge.init(_leaves(params, own), model_state if p == 0 else ())
            for p, own in enumerate(indices)
        )
        return PartsState(tuple(states), indices, jax.tree.structure(params))

    def model(state):
        models = [merge.model(own) for own in state.states]
        leaves: list[Any] = [None] * state.structure.num_leaves
        for own, (params, _) in zip(state.indices, models, strict=True):
            for i, leaf in zip(own, params, strict=True):
                leaves[i] = leaf
        return jax.tree.unflatten(state.structure, leaves), models[0][1]

    def fetch(p, state, replica):
        """The replica with part p of the node's model."""
        sub = _part_of(replica, p, state.indices[p], merge)
        own = state.states[p]
        if merge.fetch is not None:
            taken = merge.fetch(own, sub)
        else:
            taken = reset_to(sub, *merge.model(own))
        given = taken.params
        if is_given(blend):
            params = jax.tree.map(
                lambda w, c: (blend * w + (1 - blend) * c).astype(w.dtype),
                sub.params,
                taken.params,
            )
            taken = taken._replace(params=params)
        replica = _with_part(replica, taken, p, state.indices[p], merge)
        if "round_start" in replica.carry:  # of the merge or of the local update
            start = _replaced(replica.carry["round_start"], state.indices[p], given)
            carry = {**replica.carry, "round_start": start}
            replica = replica._replace(carry=carry)
        return replica

    def apply(p, state, group, stats, op):
        """Merge part p; buffers of the members change, and their models by FETCH."""
        inner = op & ~MergeOp.FETCH
        if inner:
            before = group.each(lambda r: _part_of(r, p, state.indices[p], merge))
            new, after = _applied(merge, state.states[p], before, stats, inner)
            state = state.with_part(p, new)
            group = group.each(
                lambda r, b, a: _with_part(
                    r, b._replace(carry=a.carry), p, state.indices[p], merge
                ),
                before,
                after,
            )
        if MergeOp.FETCH in op:
            group = group.each(lambda r: fetch(p, state, r))
        return state, group

    def of(parts, traffic):
        """The merge of these parts; all of them, if none are given."""

        def numbers(state):
            return _numbers(parts, state.indices)

        def in_parts(state, group, stats, op):
            for p in numbers(state):
                state, group = apply(p, state, group, stats, op)
            return state, group

        def take(state, replica):
            for p in numbers(state):
                replica = fetch(p, state, replica)
            return replica

        in_parts.__qualname__ = "in_parts.rule"
        return group_merge(
            init,
            in_parts,
            model,
            ops=merge.ops | MergeOp.FETCH,
            properties=properties,
            requires=requires,
            fetch=take,
            traffic=traffic,
        )

    def traffic(parts, params, model_state, op):
        indices = division(params)
        every = [
            _traffic(
                merge, _leaves(params, indices[p]), model_state if p == 0 else (), op
            )
            for p in _numbers(parts, indices)
        ]
        return Traffic(sum(t.up for t in every), sum(t.down for t in every))

    def part(name):
        if not (name.isascii() and name.isdecimal()):
            raise ValueError(
                f"the policy merges the part {name!r} of the model, but in_parts has "
                "parts '0', '1', ..."
            )
        parts = (int(name),)
        return of(parts, partial(traffic, parts))

    return of(None, partial(traffic, None))._replace(part=part)


def _numbers(parts: tuple[int, ...] | None, indices: Sequence[Any]) -> Sequence[int]:
    """These parts, which have to be of the model; all of them for None."""
    if parts is not None and max(parts) >= len(indices):
        raise ValueError(
            f"the policy merges the part '{max(parts)}' of the model, which is divided "
            f"into parts '0' to '{len(indices) - 1}'"
        )
    return range(len(indices)) if parts is None else parts


def _applied(
    merge: Merge, state: MergeState, group: Group, stats: WorkerStats, op: MergeOp
) -> tuple[MergeState, Group]:
    """The state and the members after a merge, also of one written for tuples."""
    if MergeProperty.TAKES_GROUPS in merge.properties:
        state, members = merge.apply(state, group, stats, op)
    else:
        state, every = merge.apply(state, group.gathered(), stats, op)
        members = group.scattered(every)
    return state, dataclasses.replace(group, members=members)


def _traffic(
    merge: Merge, params: Params, model_state: ModelState, op: MergeOp
) -> Traffic:
    if merge.traffic is not None:
        return merge.traffic(params, model_state, op)
    size = dense(params, model_state)
    return Traffic(size, size)


def _leaves(params: PyTree, indices: Sequence[int]) -> list[Any]:
    leaves = jax.tree.leaves(params)
    return [leaves[i] for i in indices]


def _in_parts_of(requires: Requires, division: Division) -> Requires:
    """The buffers of a whole replica for a merge of its parts."""
    found = []
    for buffer in requires:
        if isinstance(buffer, Buffer):
            found.append(Buffer(buffer.name, partial(_of_parts, buffer, division)))
        elif buffer == "round_start":
            found.append(buffer)
        else:
            raise ValueError(
                f"in_parts: the merge requires the buffer {buffer!r}, which cannot be "
                "divided: use a merge of models, such as merge.outer()"
            )
    return tuple(found)


def _of_parts(buffer: Buffer, division: Division, params: Params) -> tuple[PyTree, ...]:
    return tuple(buffer.init(_leaves(params, own)) for own in division(params))


def _part_of(replica: Replica, p: int, indices: Sequence[int], merge: Merge) -> Replica:
    """Part p of a replica, as `merge` sees it."""
    carry: dict[str, PyTree] = {}
    for buffer in merge.requires:
        if isinstance(buffer, Buffer):
            carry[buffer.name] = replica.carry[buffer.name][p]
        else:
            carry[buffer] = _leaves(replica.carry[buffer], indices)
    model_state = replica.model_state if p == 0 else ()
    return Replica(_leaves(replica.params, indices), model_state, (), carry)


def _with_part(
    replica: Replica, part: Replica, p: int, indices: Sequence[int], merge: Merge
) -> Replica:
    """The replica with another part p."""
    carry = dict(replica.carry)
    for buffer in merge.requires:
        if isinstance(buffer, Buffer):
            own = carry[buffer.name]
            new = part.carry[buffer.name]
            carry[buffer.name] = (*own[:p], new, *own[p + 1 :])
        else:
            carry[buffer] = _replaced(carry[buffer], indices, part.carry[buffer])
    return replica._replace(
        params=_replaced(replica.params, indices, part.params),
        model_state=part.model_state if p == 0 else replica.model_state,
        carry=carry,
    )


def _replaced(whole: PyTree, indices: Sequence[int], new: Sequence[Any]) -> PyTree:
    """A tree of the model's structure with other leaves at these places."""
    leaves, structure = jax.tree.flatten(whole)
    for i, leaf in zip(indices, new, strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)
