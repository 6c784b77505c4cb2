"""Averages of models: K-step averaging, local SGD, and Adaptive SGD's Algorithm 2."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.arguments import Fraction, NotNegative, checked
from hetjax.merge import members
from hetjax.merge.formulas.moves import momentum_mean, weighted_move
from hetjax.merge.formulas.weights import (
    Norm,
    WeightRule,
    model_norm,
    perturbed_weights,
    proportional_weights,
)
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import CenterState
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.traced_settings import is_given
from hetjax.tree import Params

RawWeights = Literal["equal", "local_steps", "examples", "batch_size"]


@checked
def average(
    *,
    weights: RawWeights | Callable[[WorkerStats], jax.Array] = "equal",
    momentum: Fraction = 0.0,
    reset: bool = False,
) -> Merge:
    """Averages the replicas with weights; all of them continue from the mean.

        alpha_i = raw_i / sum_j raw_j           over the members with local steps
        w' = sum_i alpha_i w_i + gamma (w - w_p);   w_p <- w;   w <- w'
        w_i <- w'

    `weights` is the name of raw_i or a function of the `WorkerStats`; `momentum` is
    gamma. With `reset` the members' optimizer states are set to zero (for SGD). Model
    state is averaged with the same weights. Source: K-AVG (Zhou & Cong 2018); with
    momentum, the Elastic SGD of the Adaptive SGD paper. Formula: `momentum_mean`.
    """

    def apply(state, group, stats, op):
        raw = members.raw_weights(weights, stats)
        alpha = proportional_weights(raw, stats.present)
        if reset:
            group = members.without_momentum(group)
        return _averaged(state, group, alpha, jnp.zeros(()), momentum)

    return group_merge(
        _with_previous(momentum),
        apply,
        properties=MergeProperty.BROADCASTS,
        as_member=members.centered_member,
        from_parent=_from_parent,
    )


class NormalizedState(NamedTuple):
    """The global model and two counters."""

    average: CenterState
    condition_met: jax.Array  # int32: merges where all norms were below the threshold
    weights_changed: jax.Array  # int32: such merges whose weights were perturbed


@checked
def normalized(
    *,
    delta: NotNegative = 0.1,
    perturbation_threshold: NotNegative = 0.1,
    momentum: Fraction = 0.9,
    weights: WeightRule = "paper",
    norm: Norm = "l2_over_dim",
) -> Merge:
    """Averages with weights from local steps, perturbed towards the busiest replica.

        alpha_i = b_i / sum_j b_j   if all u_i are equal,   else  u_i / sum_j u_j
        if ||w_i|| < threshold for all i:  alpha_r *= 1 + delta,  alpha_s *= 1 - delta
                                           with r = argmax u, s = argmin u
        w' = sum_i alpha_i w_i + gamma (w - w_p);   w_p <- w;   w <- w';   w_i <- w'

    u_i are the local steps, b_i the real-valued batch sizes [examples], gamma is
    `momentum`, the threshold is `perturbation_threshold` (pert_thr in the paper).
    `norm` chooses the norm (see `model_norm`) and `weights` the rule
    (see `normalized_weights`, also for ties). If r = s (one worker, or equal steps)
    nothing is perturbed: the paper says that one worker equals Elastic SGD. At the
    first merge w_p = w. Source: Adaptive SGD, Algorithm 2; docs/algorithms A.3.
    """
    begin = _with_previous(momentum)

    def init(params, model_state=()):
        average = begin(params, model_state)
        return NormalizedState(average, jnp.int32(0), jnp.int32(0))

    def apply(state, group, stats, op):
        norms = group.values(lambda r: model_norm(r.params, norm))
        found = perturbed_weights(
            stats.local_steps,
            stats.batch_size,
            norms,
            stats.present,
            delta,
            perturbation_threshold,
            weights,
        )
        average, group = _averaged(
            state.average, group, found.alpha, found.excess, momentum
        )
        return NormalizedState(
            average,
            state.condition_met + found.met,
            state.weights_changed + found.changed,
        ), group

    def report(state):
        return {
            "condition_met": state.condition_met,
            "weights_changed": state.weights_changed,
        }

    return group_merge(
        init,
        apply,
        lambda state: members.centered_model(state.average),
        report=report,
        properties=MergeProperty.BROADCASTS,
        as_member=lambda state: members.centered_member(state.average),
        from_parent=lambda state, replica: state._replace(
            average=_from_parent(state.average, replica)
        ),
    )


def _with_previous(momentum: float) -> Callable[..., CenterState]:
    """The `init` of a center whose memory is w_p, or () without momentum."""

    def previous(center: Params) -> Params:
        return tree.copies(center) if is_given(momentum) else ()

    return members.center_with(previous)


def _from_parent(state: CenterState, replica: Replica) -> CenterState:
    """The state with the parent's model; w_p shifts along, so that momentum stays."""
    previous = state.memory
    if jax.tree.leaves(previous):  # there is momentum
        previous = tree.map_floats(
            lambda p, new, old: p + (new - old), previous, replica.params, state.center
        )
    return CenterState(replica.params, replica.model_state, previous)


def _averaged(
    state: CenterState,
    group: Group,
    alpha: jax.Array,
    excess: jax.Array,
    momentum: float,
) -> tuple[CenterState, Group]:
    """The state after a weighted mean with momentum, and the replicas reset to it.

    `excess` is sum_i alpha_i - 1.
    """
    center, previous = momentum_mean(
        state.center,
        state.memory,
        members.params_of(group),
        alpha,
        momentum=momentum,
        excess=excess,
    )
    statistics = group.each(lambda r: r.model_state)
    move = weighted_move(state.model_state, statistics, alpha)
    model_state = tree.map_floats(
        lambda s, m: s + m / (1 + excess), state.model_state, move
    )
    state = CenterState(center, model_state, previous)
    return state, group.each(lambda r: members.reset_to(r, center, model_state))
