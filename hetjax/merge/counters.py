"""Counters and flags of a model state, through any merge.

A merge averages floating numbers. Integers and booleans of a model state (a step
counter, "has started") have no mean: the merged model has the largest value of the
members, which for booleans is "any". With one worker that is its own value. A merge of
only some of the run's workers also counts the node's own value.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.group import Group
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.output.head import without_layer_state
from hetjax.replica import Replica
from hetjax.tree import MergeState, ModelState

Counters = tuple[jax.Array, ...]


class Counted(NamedTuple):
    """The state of a merge, and the counters of the node's model."""

    inner: MergeState
    counters: Counters


def places_of(model_state: ModelState) -> tuple[int, ...]:
    """The positions of integers and booleans among the leaves of a model's state.

    Those of the output layer are left out: they stay with their worker.
    """
    leaves = jax.tree.leaves(without_layer_state(model_state))
    dtypes = map(jnp.result_type, leaves)
    return tuple(i for i, d in enumerate(dtypes) if _is_counter(d))


def _is_counter(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_)


def counters_of(
    model_state: ModelState, places: tuple[int, ...] | None = None
) -> Counters:
    """The leaves at these places, by default `places_of` the model state."""
    places = places_of(model_state) if places is None else places
    leaves = jax.tree.leaves(without_layer_state(model_state))
    return tuple(jnp.asarray(leaves[i]) for i in places)


def with_counters(
    model_state: ModelState, counters: Counters, places: tuple[int, ...] | None = None
) -> ModelState:
    """The model state with these values of `counters_of`."""
    places = places_of(model_state) if places is None else places
    own = without_layer_state(model_state)
    leaves, structure = jax.tree.flatten(own)
    for place, counter in zip(places, counters, strict=True):
        leaves[place] = counter
    new = jax.tree.unflatten(structure, leaves)
    return new if own is model_state else model_state._replace(model=new)


def counting(merge: Merge, places: tuple[int, ...]) -> Merge:
    """The merge, extended to the counters of the members' model states.

    `places` are those of the task's model state: a custom merge may have changed the
    dtypes of its own. Members that take the merged model
    (`MergeProperty.BROADCASTS`) take its counters.
    """

    broadcasts = MergeProperty.BROADCASTS in merge.properties

    def init(params, model_state=()):
        counters = counters_of(model_state, places)
        found = (jnp.array(x, copy=True) for x in counters)
        return Counted(merge.init(params, model_state), tuple(found))

    def apply(state, replicas, stats, op=PUSH_FETCH):
        group = replicas if isinstance(replicas, Group) else Group(tuple(replicas))
        inner, after = merge.apply(state.inner, replicas, stats, op)
        merged = state.counters
        if MergeOp.PUSH in op:
            merged = tuple(
                _largest(group, place, here, stats)
                for place, here in zip(places, merged, strict=True)
            )
        takes = broadcasts and bool(op & (MergeOp.FETCH | MergeOp.DELIVER))
        own = group.each(lambda r: counters_of(r.model_state, places))
        after = dataclasses.replace(group, members=tuple(after)).each(
            lambda r, before: _replaced(r, merged if takes else before, places), own
        )
        return Counted(inner, merged), after.members

    def model(state):
        params, model_state = merge.model(state.inner)
        return params, with_counters(model_state, state.counters, places)

    def as_member(state):
        assert merge.as_member is not None
        return _replaced(merge.as_member(state.inner), state.counters, places)

    def from_parent(state, replica):
        assert merge.from_parent is not None
        inner = merge.from_parent(state.inner, replica)
        return Counted(inner, counters_of(replica.model_state, places))

    def fetch(state, replica):
        assert merge.fetch is not None
        fetched = merge.fetch(state.inner, replica)
        return _replaced(fetched, state.counters, places)

    apply.__qualname__ = merge.apply.__qualname__
    apply.__module__ = merge.apply.__module__
    report = merge.report
    return merge._replace(
        init=init,
        apply=apply,
        model=model,
        report=report and (lambda state: report(state.inner)),
        as_member=merge.as_member and as_member,
        from_parent=merge.from_parent and from_parent,
        fetch=merge.fetch and fetch,
    )


def _largest(
    group: Group, place: int, here: jax.Array, stats: WorkerStats
) -> jax.Array:
    """The largest counter of the present members at a place; `here` without any.

    The node's own counter, `here`, also counts unless all workers of the run are
    present.
    """
    as_int = jnp.int32 if here.dtype == jnp.bool_ else here.dtype
    values = group.values(
        lambda r: jnp.asarray(counters_of(r.model_state, (place,))[0], as_int)
    )  # [n, ...]
    present = stats.present.reshape(-1, *[1] * here.ndim)
    least = jnp.iinfo(as_int).min
    largest = jnp.max(jnp.where(present, values, least), axis=0)
    everyone = jnp.sum(stats.present * stats.leaves) >= stats.num_workers
    own = jnp.where(everyone, least, here.astype(as_int))
    found = jnp.maximum(largest, own).astype(here.dtype)
    return jnp.where(jnp.any(stats.present), found, here)


def _replaced(replica: Replica, counters: Counters, places: tuple[int, ...]) -> Replica:
    state = with_counters(replica.model_state, counters, places)
    return replica._replace(model_state=state)
