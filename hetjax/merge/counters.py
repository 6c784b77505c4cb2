"""Counters and flags of a model state, through any merge.

A merge averages floating numbers. Integers and booleans of a model state (a step
counter, "has started") have no mean: the merged model has the largest value of the
members, which for booleans is "any". With one worker that is its own value. A merge of
some of a run's workers also counts the value that the node has.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.group import Group
from hetjax.merge.types import Merge, WorkerStats
from hetjax.output.head import own_state
from hetjax.replica import Replica
from hetjax.tree import MergeState, ModelState, Params

Counters = tuple[jax.Array, ...]


class Counted(NamedTuple):
    """The state of a merge, and the counters of the node's model."""

    inner: MergeState
    counters: Counters


def counters_of(model_state: ModelState) -> Counters:
    """The integers and booleans of a model's own state, without its output layer's."""
    return tuple(filter(_is_counter, jax.tree.leaves(own_state(model_state))))


def with_counters(model_state: ModelState, counters: Counters) -> ModelState:
    """The model state with these values of `counters_of`, in its own dtypes."""
    own, rest = own_state(model_state), iter(counters)
    own = jax.tree.map(
        lambda x: jnp.asarray(next(rest), jnp.result_type(x)) if _is_counter(x) else x,
        own,
    )
    is_own = own_state(model_state) is model_state
    return own if is_own else model_state._replace(model=own)


def _is_counter(leaf: Any) -> bool:
    dtype = jnp.result_type(leaf)
    return jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_)


def counting(merge: Merge) -> Merge:
    """The merge, extended to the counters of the members' model states.

    Members that take the merged model (`broadcasts`) take its counters.
    """

    def init(params: Params, model_state: ModelState = ()) -> Counted:
        found = (jnp.array(x, copy=True) for x in counters_of(model_state))
        return Counted(merge.init(params, model_state), tuple(found))

    def apply(
        state: Counted,
        replicas: Group | Sequence[Replica],
        stats: WorkerStats,
        op: MergeOp = PUSH_FETCH,
    ) -> tuple[Counted, tuple[Replica, ...]]:
        group = replicas if isinstance(replicas, Group) else Group(tuple(replicas))
        inner, after = merge.apply(state.inner, replicas, stats, op)
        merged = state.counters
        if MergeOp.PUSH in op:
            merged = tuple(
                _largest(group, i, here, stats) for i, here in enumerate(merged)
            )
        takes = merge.broadcasts and bool(op & (MergeOp.FETCH | MergeOp.DELIVER))
        own = [counters_of(r.model_state) for r in group.members]
        members = tuple(
            _replaced(r, merged if takes else before)
            for r, before in zip(after, own, strict=True)
        )
        return Counted(inner, merged), members

    def model(state: Counted) -> tuple[Params, ModelState]:
        params, model_state = merge.model(state.inner)
        return params, with_counters(model_state, state.counters)

    def as_member(state: Counted) -> Replica:
        assert merge.as_member is not None
        return _replaced(merge.as_member(state.inner), state.counters)

    def from_parent(state: Counted, replica: Replica) -> Counted:
        assert merge.from_parent is not None
        inner = merge.from_parent(state.inner, replica)
        return Counted(inner, counters_of(replica.model_state))

    apply.__qualname__ = merge.apply.__qualname__
    report = merge.report
    return merge._replace(
        init=init,
        apply=apply,
        model=model,
        report=report and (lambda state: report(state.inner)),
        as_member=merge.as_member and as_member,
        from_parent=merge.from_parent and from_parent,
    )


def _largest(
    group: Group, number: int, here: jax.Array, stats: WorkerStats
) -> jax.Array:
    """The largest of the present members' counters of this number; `here` if none is.

    `here`, the node's own, counts besides unless all workers of the run are present.
    """
    as_int = jnp.int32 if here.dtype == jnp.bool_ else here.dtype
    values = group.values(
        lambda r: jnp.asarray(counters_of(r.model_state)[number], as_int)
    )  # [n, ...]
    present = stats.present.reshape(-1, *[1] * here.ndim)
    least = jnp.iinfo(as_int).min
    largest = jnp.max(jnp.where(present, values, least), axis=0)
    everyone = jnp.sum(stats.present * stats.leaves) >= stats.num_workers
    own = jnp.where(everyone, least, here.astype(as_int))
    found = jnp.maximum(largest, own).astype(here.dtype)
    return jnp.where(jnp.any(stats.present), found, here)


def _replaced(replica: Replica, counters: Counters) -> Replica:
    return replica._replace(model_state=with_counters(replica.model_state, counters))
