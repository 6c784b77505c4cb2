"""The state of a node, and functions on replicas, that merges are written with."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.merge.formulas.moves import moved
from hetjax.merge.group import Group
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.tree import ModelState, Params, PyTree


class CenterState(NamedTuple):
    """A node's model in float32, and whatever else its next merge needs."""

    center: Params
    model_state: ModelState
    memory: Any = ()  # such as a momentum


def center_state(params: Params, model_state: ModelState = ()) -> CenterState:
    """The state of a node whose merges need nothing but the model."""
    return CenterState(tree.widened(params), tree.widened(model_state))


def center_with(memory: Callable[[Params], Any]) -> Callable[..., CenterState]:
    """A merge's `init`, where `memory` is a function of the center."""

    def init(params, model_state=()):
        state = center_state(params, model_state)
        return state._replace(memory=memory(state.center))

    return init


def centered_model(state: CenterState) -> tuple[Params, ModelState]:
    """The model to evaluate."""
    return state.center, state.model_state


def centered_member(state: CenterState) -> Replica:
    """The replica of a node whose parent sees its center."""
    return Replica(state.center, state.model_state)


def moved_center(state: CenterState, replica: Replica) -> CenterState:
    """The state with the replica's model as its center."""
    return state._replace(center=replica.params, model_state=replica.model_state)


def zeros_like(params: PyTree) -> PyTree:
    """Zeros in place of floating numbers."""
    return tree.map_floats(jnp.zeros_like, params)


def wide_zeros_like(params: PyTree) -> PyTree:
    """Zeros in float32 in place of floating numbers: the begin of a sum."""
    return zeros_like(tree.widened(params))


def raw_weights(
    weights: str | Callable[[WorkerStats], jax.Array], stats: WorkerStats
) -> jax.Array:
    """Weights [n] before normalization: of a function, "equal", or a statistic."""
    if callable(weights):
        return weights(stats)
    if weights == "equal":
        return jnp.ones_like(stats.local_steps)
    return getattr(stats, weights)


def unless_empty(new: PyTree, old: PyTree, stats: WorkerStats) -> PyTree:
    """The new state, or the old one if no member is present."""
    merges = jnp.any(stats.present)
    return jax.tree.map(lambda n, o: jnp.where(merges, n, o), new, old)


def mean_learning_rate(stats: WorkerStats, alpha: jax.Array) -> jax.Array:
    """The weighted mean learning rate; an absent member's may be NaN."""
    return jnp.sum(jnp.where(stats.present, alpha * stats.learning_rate, 0.0))


def mean_statistics(state: CenterState, group: Group, alpha: jax.Array) -> ModelState:
    """s + sum_i alpha_i (s_i - s): the model state for a weighted mean of members."""
    return moved(state.model_state, group.each(lambda r: r.model_state), alpha)


def params_of(group: Group) -> Group:
    """The members' parameters."""
    return group.each(lambda r: r.params)


def buffer_of(name: str) -> Callable[[Replica], PyTree]:
    """A function that returns the buffer `name` of a replica."""
    return lambda replica: replica.carry[name]


def with_buffer(replica: Replica, name: str, value: PyTree) -> Replica:
    """The replica with this value in a buffer."""
    return replica._replace(carry={**replica.carry, name: value})


def emptied(group: Group, name: str) -> Group:
    """The members with zeros in a buffer."""

    def empty(replica):
        zeros = jax.tree.map(jnp.zeros_like, replica.carry[name])
        return with_buffer(replica, name, zeros)

    return group.each(empty)


def without_momentum(group: Group) -> Group:
    """The members with their optimizer states, of SGD with momentum, set to zero."""
    return group.each(
        lambda r: r._replace(opt_state=jax.tree.map(jnp.zeros_like, r.opt_state))
    )


def reset_to(replica: Replica, params: Params, model_state: ModelState) -> Replica:
    """The replica with the merged model in its own dtypes; optimizer state stays."""
    return at_round_start(
        replica._replace(
            params=_replaced(replica.params, params),
            model_state=_replaced(replica.model_state, model_state),
        )
    )


def at_round_start(replica: Replica) -> Replica:
    """The replica with its parameters in the buffer "round_start", if it has that."""
    if "round_start" not in replica.carry:
        return replica
    return with_buffer(replica, "round_start", replica.params)


def _replaced(old: PyTree, new: PyTree) -> PyTree:
    """Floating numbers of `new`; counters stay."""
    return tree.map_floats(lambda x, y: y.astype(x.dtype), old, new)
