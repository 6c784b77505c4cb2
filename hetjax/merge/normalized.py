"""Normalized merging with perturbation: Algorithm 2 of the Adaptive SGD paper."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.machine.types import MergeOp
from hetjax.merge.averaging import AveragingState, average_from_parent, averaged
from hetjax.merge.formulas.weights import (
    NORMS,
    RULES,
    all_below,
    model_norm,
    perturbed,
    proportional_weights,
    unnormalized,
)
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import centered_member, centered_model
from hetjax.merge.merge_checks import check_fraction, check_not_negative
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.traced_settings import is_given
from hetjax.tree import ModelState, Params


class NormalizedState(NamedTuple):
    """The global model and two counters."""

    average: AveragingState
    condition_met: jax.Array  # int32: merges where all norms were below the threshold
    weights_changed: jax.Array  # int32: such merges whose weights were perturbed


def normalized(
    *,
    delta: float = 0.1,
    perturbation_threshold: float = 0.1,
    momentum: float = 0.9,
    weights: str = "paper",
    norm: str = "l2_over_dim",
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
    nothing is perturbed: the paper says that one worker equals Elastic SGD. Members
    without local steps are absent, also from r and s. At the first merge w_p = w.
    Source: Adaptive SGD, Algorithm 2; docs/algorithms A.3.
    """
    if weights not in RULES:
        raise ValueError(f"weights={weights!r}: choose one of {RULES}")
    if norm not in NORMS:
        raise ValueError(f"norm={norm!r}: choose one of {NORMS}")
    check_not_negative(
        "normalized", delta=delta, perturbation_threshold=perturbation_threshold
    )
    check_fraction("normalized", momentum=momentum)

    def init(params: Params, model_state: ModelState = ()) -> NormalizedState:
        previous = tree.widened(params) if is_given(momentum) else ()
        average = AveragingState(
            tree.widened(params), previous, tree.widened(model_state)
        )
        return NormalizedState(
            average, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        )

    def apply(
        state: NormalizedState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[NormalizedState, Group]:
        del op
        u, here = stats.local_steps, stats.present
        raw = unnormalized(weights, u, stats.batch_size, here)
        norms = group.values(lambda r: model_norm(r.params, norm))
        met = all_below(norms, perturbation_threshold, here)
        alpha = proportional_weights(raw, here)
        alpha, excess, changed = perturbed(alpha, u, met, delta, here)
        average, group = averaged(state.average, group, alpha, excess, momentum)
        counters = (state.condition_met + met, state.weights_changed + changed)
        return NormalizedState(average, *counters), group

    def report(state: NormalizedState) -> dict[str, jax.Array]:
        return {
            "condition_met": state.condition_met,
            "weights_changed": state.weights_changed,
        }

    def from_parent(state: NormalizedState, replica: Replica) -> NormalizedState:
        return state._replace(average=average_from_parent(state.average, replica))

    return group_merge(
        init,
        apply,
        lambda state: centered_model(state.average),
        report=report,
        properties=MergeProperty.BROADCASTS,
        as_member=lambda state: centered_member(state.average),
        from_parent=from_parent,
    )
