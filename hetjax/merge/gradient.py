"""Merges of gradients: synchronous SGD, and sums up a tree (HierSGD)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from hetjax import tree
from hetjax.machine.types import MergeOp
from hetjax.merge.formulas.server_steps import gradient_sum_step, optimizer_step
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import (
    buffer_of,
    centered_member,
    centered_model,
    emptied,
    mean_learning_rate,
    mean_statistics,
    moved_center,
    reset_to,
)
from hetjax.merge.merge_checks import check_not_negative
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.optimizer_needs import check_center_optimizer
from hetjax.replica import Replica
from hetjax.tree import ModelState, OptState, Params, PyTree
from hetjax.unit_learning_rate import check_unit_rate


class AggregationState(NamedTuple):
    """The model, in float32, and its optimizer state."""

    center: Params
    model_state: ModelState
    opt_state: OptState


def gradient_aggregation(
    optimizer: optax.GradientTransformation | None = None,
) -> Merge:
    """Takes one central optimizer step on the example-weighted mean gradient.

        g = sum_i n_i g_i / sum_i n_i        g_i: mean gradient over n_i examples
        w <- w + eta update(g);   w_i <- w

    `optimizer` is built with learning rate 1 (default `optax.sgd(1.0)`; any other
    learning rate is an error): eta is data, the learning rate of the members' rounds,
    averaged by examples. Model state is averaged by examples, too. With one member at a
    time, whose gradient is stale, this is the standard parameter server; after the
    operation PUSH alone the member keeps its model. Needs the local update `gradient`.
    Promises: worker order is irrelevant; the step equals that of one worker with all
    the examples; a member without local steps is absent. Source: synchronous SGD,
    Adaptive SGD paper II; docs/algorithms F.2, K.2. The formula is `optimizer_step`.
    """
    tx = optax.sgd(1.0) if optimizer is None else optimizer
    check_center_optimizer(tx, "gradient_aggregation(optimizer)")
    check_unit_rate(tx, "gradient_aggregation(optimizer)")

    def init(params: Params, model_state: ModelState = ()) -> AggregationState:
        center = tree.widened(params)
        return AggregationState(center, tree.widened(model_state), tx.init(center))

    def apply(
        state: AggregationState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[AggregationState, Group]:
        alpha = proportional_weights(stats.examples, stats.present)
        g = group.total(buffer_of("grad_sum"), alpha)
        eta = mean_learning_rate(stats, alpha)
        center, opt_state = optimizer_step(tx, state.center, state.opt_state, g, eta)
        statistics = mean_statistics(state, group, alpha)
        new = AggregationState(center, statistics, opt_state)
        # a merge without members is no optimizer step
        merges = jnp.any(stats.present)
        new = jax.tree.map(lambda n, o: jnp.where(merges, n, o), new, state)
        if MergeOp.FETCH not in op:
            return new, group
        return new, group.each(lambda r: reset_to(r, new.center, new.model_state))

    return group_merge(
        init,
        apply,
        centered_model,
        requires=("grad_sum",),
        properties=MergeProperty.BROADCASTS,
        as_member=centered_member,
        from_parent=moved_center,
    )


class HierarchicalState(NamedTuple):
    """A node's model and the gradients that its parent has not seen, in float32."""

    center: Params  # x_{h,i}
    model_state: ModelState
    gradients: PyTree  # sum over the subtree; () at the root


def hierarchical(*, gamma: float | None = None, root: bool = False) -> Merge:
    """Takes one step on the sum of all gradients below; all members continue from it.

        G = sum_n G_n;   x_{h,i} <- x_{h,i} - gamma_{h,i} G;   x_{h-1,n} <- x_{h,i}

    `gamma` is gamma_h relative to the learners' learning rate gamma_1. None means
    averaging, 1 / (learners below the node), as in

        gamma_2 = gamma_1 / p;   gamma_h = gamma_{h-1} / children

    if all nodes of a level have the same number of children. A node passes its sum of G
    up to its parent and then starts again from zero; the `root` has no sum. Model state
    is averaged over the learners. Requires the buffer "grad_sum". Promises: worker
    order is irrelevant; consensus without gradients is an exact fixed point; a member
    without local steps is absent. Source: HierSGD, Algorithms 1 and 2; docs/algorithms
    D.1. The formula is `gradient_sum_step`.
    """
    check_not_negative("hierarchical", gamma=gamma)

    def init(params: Params, model_state: ModelState = ()) -> HierarchicalState:
        center = tree.widened(params)
        sums = () if root else tree.map_floats(jnp.zeros_like, center)
        return HierarchicalState(center, tree.widened(model_state), sums)

    def apply(
        state: HierarchicalState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[HierarchicalState, Group]:
        del op
        here = stats.present
        alpha = proportional_weights(stats.leaves, here)
        leaves = jnp.sum(jnp.where(here, stats.leaves, 0.0))
        factor = 1 / jnp.maximum(leaves, 1) if gamma is None else gamma
        eta = factor * mean_learning_rate(stats, alpha)
        grads = group.each(buffer_of("grad_sum"))
        center, g = gradient_sum_step(state.center, grads, eta, present=here)
        sums = () if root else tree.map_floats(jnp.add, state.gradients, g)
        statistics = mean_statistics(state, group, alpha)
        group = group.each(
            lambda r: emptied(reset_to(r, center, statistics), "grad_sum")
        )
        return HierarchicalState(center, statistics, sums), group

    def as_member(state: HierarchicalState) -> Replica:
        carry = {"grad_sum": state.gradients}
        return Replica(state.center, state.model_state, (), carry)

    def from_parent(state: HierarchicalState, replica: Replica) -> HierarchicalState:
        gradients = replica.carry["grad_sum"]
        return HierarchicalState(replica.params, replica.model_state, gradients)

    merge = group_merge(
        init,
        apply,
        centered_model,
        requires=("grad_sum",),
        properties=MergeProperty.BROADCASTS,
    )
    return (
        merge if root else merge._replace(as_member=as_member, from_parent=from_parent)
    )
