"""Functions on replicas and groups of replicas that merges are written with."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.merge.formulas.moves import moved
from hetjax.merge.group import Group
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.tree import MergeState, ModelState, Params, PyTree


def mean_learning_rate(stats: WorkerStats, alpha: jax.Array) -> jax.Array:
    """The weighted mean learning rate; an absent member's may be NaN."""
    return jnp.sum(jnp.where(stats.present, alpha * stats.learning_rate, 0.0))


def mean_statistics(state: MergeState, group: Group, alpha: jax.Array) -> ModelState:
    """s + sum_i alpha_i (s_i - s): the model state for a weighted mean of members."""
    return moved(state.model_state, group.each(lambda r: r.model_state), alpha)


def centered_model(state: MergeState) -> tuple[Params, ModelState]:
    """The center and the averaged model state of a merge state that has both."""
    return state.center, state.model_state


def centered_member(state: MergeState) -> Replica:
    """The replica of a node whose parent sees its center."""
    return Replica(state.center, state.model_state)


def moved_center(state: MergeState, replica: Replica) -> MergeState:
    """The state with the replica's model as its center."""
    return state._replace(center=replica.params, model_state=replica.model_state)


def buffer_of(name: str) -> Callable[[Replica], PyTree]:
    """A function that returns the buffer `name` of a replica."""
    return lambda replica: replica.carry[name]


def params_of(group: Group) -> Group:
    """The members' parameters."""
    return group.each(lambda r: r.params)


def with_buffer(replica: Replica, name: str, value: PyTree) -> Replica:
    """The replica with this value in a buffer."""
    return replica._replace(carry={**replica.carry, name: value})


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
    return tree.map_floats(lambda x, y: y.astype(x.dtype), old, new)


def without_momentum(replica: Replica) -> Replica:
    """The replica with its optimizer state, that of SGD with momentum, set to zero."""
    return replica._replace(opt_state=jax.tree.map(jnp.zeros_like, replica.opt_state))


def emptied(replica: Replica, name: str) -> Replica:
    """The replica with zeros in a buffer."""
    return with_buffer(replica, name, jax.tree.map(jnp.zeros_like, replica.carry[name]))
