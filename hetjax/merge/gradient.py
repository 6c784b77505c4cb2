"""Merges of gradients: synchronous SGD, and sums up a tree (HierSGD)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from hetjax import tree
from hetjax.arguments import NotNegative, checked
from hetjax.machine.types import MergeOp
from hetjax.merge import members
from hetjax.merge.formulas.server_steps import gradient_sum_step, optimizer_step
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import CenterState
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.optimizers import Optimizer, built, check_center_optimizer


@checked
def gradient_aggregation(
    optimizer: Optimizer = optax.sgd,
    *,
    scale: Callable[[WorkerStats], jax.Array] | None = None,
) -> Merge:
    """Takes one central optimizer step on the example-weighted mean gradient.

        g = sum_i n_i g_i / sum_i n_i        g_i: mean gradient over n_i examples
        w <- w + eta update(g);   w_i <- w

    eta is data: the learning rate of the members' rounds, averaged by examples, each
    times `scale(stats)` [n] if that is passed (such as less for a late gradient).
    `optimizer` is as in `local.from_optax`. Model state is averaged by examples, too.
    With one member at a time, whose gradient is stale, this is the standard parameter
    server; after the operation PUSH alone the member keeps its model. Needs the local
    update `gradient`. Promises: the step equals that of one worker with all the
    examples. Source: synchronous SGD, Adaptive SGD paper II; docs/algorithms F.2, K.2.
    Formula: `optimizer_step`.
    """
    tx = built(optimizer, "gradient_aggregation(optimizer)")
    check_center_optimizer(tx, "gradient_aggregation(optimizer)")

    def apply(state, group, stats, op):
        alpha = proportional_weights(stats.examples, stats.present)
        g = group.total(members.buffer_of("grad_sum"), alpha)
        scaled = alpha if scale is None else alpha * scale(stats)
        eta = members.mean_learning_rate(stats, scaled)
        center, opt_state = optimizer_step(tx, state.center, state.memory, g, eta)
        statistics = members.mean_statistics(state, group, alpha)
        new = CenterState(center, statistics, opt_state)
        new = members.unless_empty(new, state, stats)
        if MergeOp.FETCH not in op:
            return new, group
        return new, group.each(
            lambda r: members.reset_to(r, new.center, new.model_state)
        )

    return group_merge(
        members.center_with(tx.init),
        apply,
        requires=("grad_sum",),
        properties=MergeProperty.BROADCASTS,
        as_member=members.centered_member,
        from_parent=members.moved_center,
    )


@checked
def hierarchical(*, gamma: NotNegative | None = None, root: bool = False) -> Merge:
    """Takes one step on the sum of all gradients below; all members continue from it.

        G = sum_n G_n;   x_{h,i} <- x_{h,i} - gamma_{h,i} G;   x_{h-1,n} <- x_{h,i}

    `gamma` is gamma_h relative to the learners' learning rate gamma_1. None means
    averaging, 1 / (learners below the node), as in

        gamma_2 = gamma_1 / p;   gamma_h = gamma_{h-1} / children

    if all nodes of a level have the same number of children. A node passes its sum of G
    up to its parent and then starts again from zero; the `root` has no sum. Model state
    is averaged over the learners. Requires the buffer "grad_sum". Source: HierSGD,
    Algorithms 1 and 2; docs/algorithms D.1. Formula: `gradient_sum_step`.
    """

    def apply(state, group, stats, op):
        here = stats.present
        alpha = proportional_weights(stats.leaves, here)
        leaves = jnp.sum(jnp.where(here, stats.leaves, 0.0))
        factor = 1 / jnp.maximum(leaves, 1) if gamma is None else gamma
        eta = factor * members.mean_learning_rate(stats, alpha)
        grads = group.each(members.buffer_of("grad_sum"))
        center, g = gradient_sum_step(state.center, grads, eta, present=here)
        sums = () if root else tree.map_floats(jnp.add, state.memory, g)
        statistics = members.mean_statistics(state, group, alpha)
        group = group.each(lambda r: members.reset_to(r, center, statistics))
        return CenterState(center, statistics, sums), members.emptied(group, "grad_sum")

    def as_member(state):
        return members.centered_member(state)._replace(carry={"grad_sum": state.memory})

    def from_parent(state, replica):
        gradients = replica.carry["grad_sum"]
        return members.moved_center(state, replica)._replace(memory=gradients)

    return group_merge(
        members.center_with(lambda center: () if root else members.zeros_like(center)),
        apply,
        requires=("grad_sum",),
        properties=MergeProperty.BROADCASTS,
        as_member=None if root else as_member,
        from_parent=None if root else from_parent,
    )
