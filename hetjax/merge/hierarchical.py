"""Sums of gradients up a tree: the merge of HierSGD."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from hetjax import tree
from hetjax.merge.types import (
    Facts,
    Merge,
    centered_model,
    emptied,
    mean_rate,
    mean_statistics,
    normalized_weights,
    restart,
)
from hetjax.replica import Replica


class HierarchicalState(NamedTuple):
    """A node's model, and gradients that the node above has not seen, in float32."""

    center: Any  # x_{h,i}
    model_state: Any
    gradients: Any  # sum over the subtree; () at the root


def hierarchical(*, gamma: float | None = None, root: bool = False) -> Merge:
    """One step on the sum of all gradients below, from which all go on.

        G = sum_n G_n;   x_{h,i} <- x_{h,i} - gamma_{h,i} G;   x_{h-1,n} <- x_{h,i}

    `gamma` is gamma_h over the learners' rate gamma_1; None is 1 / (learners below the
    node), which is averaging: gamma_2 = gamma_1 / p, gamma_h = gamma_{h-1} / children
    where all nodes of a level have equally many. A node hands its G up and begins anew
    after that; the `root` keeps none. Model state is averaged over the learners.
    Needs the slot "gradients". Promises: worker order is irrelevant; consensus without
    gradients is an exact fixed point; a member without updates is absent. Source:
    HierSGD, Algorithms 1 and 2; ALGORITHMS D.1.
    """

    def init(params: Any, model_state: Any) -> HierarchicalState:
        center = tree.float32(params)
        sums = () if root else tree.map_floats(jnp.zeros_like, center)
        return HierarchicalState(center, tree.float32(model_state), sums)

    def apply(
        state: HierarchicalState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[HierarchicalState, tuple[Replica, ...]]:
        del op
        ones = jnp.where(facts.present, 1.0, 0.0)
        g = tree.weighted_sum([r.carry["gradients"] for r in replicas], ones)
        alpha = normalized_weights(facts.leaves, facts.present)
        leaves = jnp.sum(jnp.where(facts.present, facts.leaves, 0.0))
        factor = 1 / jnp.maximum(leaves, 1) if gamma is None else gamma
        rate = factor * mean_rate(facts, alpha)
        center = tree.map_floats(lambda x, g: x - rate * g, state.center, g)
        sums = () if root else tree.map_floats(jnp.add, state.gradients, g)
        state = HierarchicalState(center, mean_statistics(state, replicas, alpha), sums)
        restarted = (restart(r, center, state.model_state) for r in replicas)
        return state, tuple(emptied(r, "gradients") for r in restarted)

    def member(state: HierarchicalState) -> Replica:
        carry = {"gradients": state.gradients}
        return Replica(state.center, state.model_state, (), carry)

    def adopt(state: HierarchicalState, replica: Replica) -> HierarchicalState:
        gradients = replica.carry["gradients"]
        return HierarchicalState(replica.params, replica.model_state, gradients)

    merge = Merge(init, apply, centered_model, ("gradients",), restarts=True)
    return merge if root else merge._replace(member=member, adopt=adopt)
