"""Synchronous model averaging with momentum (CROSSBOW) and without (EASGD)."""

from typing import Literal

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.arguments import Fraction, NotNegative, checked
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge import members
from hetjax.merge.formulas.moves import mean_correction, sma_correction
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import CenterState
from hetjax.merge.types import Merge
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica

Correction = Literal["before", "after"]
Statistics = Literal["mean", "first"]


@checked
def sma(
    *,
    momentum: Fraction = 0.9,
    alpha: NotNegative | None = None,
    beta: NotNegative = 1.0,
    correction: Correction = "before",
    statistics: Statistics = "mean",
    reset_momentum: bool = True,
) -> Merge:
    """Replicas and their central average attract each other; the average has momentum.

        c_j = alpha (w_j - z)                w_j before its last step
        w_j <- w_j - gamma g_j - c_j         the step was done by the local update
        z <- z + sum_j c_j + mu (z - z_prev)

    `momentum` is mu; `alpha` defaults to beta / k for the k members with local steps
    (beta = 1 in CROSSBOW, 0.9 in EASGD). With `correction="after"`, w_j is taken after
    its last step, as in torch-distlearn. z - z_prev is zero at the first merge. The
    average's model state is the mean of the members' (with `statistics="first"` that of
    the first member, as CROSSBOW evaluates); replicas keep their own. The operation
    RESET_TO_CENTER then sets w_j <- z and, with `reset_momentum`, z_prev <- z and the
    members' optimizer states to zero. A parent node sees z as a replica. Requires the
    buffer "prev_params" (for `correction="before"`). Promises: without momentum
    z + sum_j w_j is conserved. Source: CROSSBOW 3.2; docs/algorithms C.1, C.2, C.4,
    G.1. Formula: `sma_correction`.
    """
    before = correction == "before"

    def apply(state, group, stats, op):
        mean = proportional_weights(jnp.ones_like(stats.local_steps), stats.present)
        params = members.params_of(group)
        olds = group.each(members.buffer_of("prev_params")) if before else params
        center, velocity, corrected = sma_correction(
            state.center,
            state.memory,
            params,
            alpha=beta * mean if alpha is None else alpha,
            momentum=momentum,
            prev_trees=olds,
            present=stats.present,
        )
        shares = mean if statistics == "mean" else _first(stats)
        model_state = members.mean_statistics(state, group, shares)
        state = CenterState(center, model_state, velocity)
        group = group.each(lambda r, w: r._replace(params=w), corrected)
        if MergeOp.RESET_TO_CENTER not in op:
            return state, group
        group = group.each(lambda r: members.reset_to(r, center, r.model_state))
        if not reset_momentum:
            return state, group
        state = state._replace(memory=members.zeros_like(velocity))
        return state, members.without_momentum(group)

    def as_member(state):
        # r_g before its last merge: all right-hand sides in C.4 a are old values
        before = tree.map_floats(jnp.subtract, state.center, state.memory)
        return Replica(state.center, state.model_state, (), {"prev_params": before})

    return group_merge(
        members.center_with(members.zeros_like),  # z - z_prev
        apply,
        ops=PUSH_FETCH | MergeOp.RESET_TO_CENTER,
        requires=("prev_params",) if before else (),
        as_member=as_member,
        from_parent=members.moved_center,
    )


@checked
def replica_mean(*, alpha: NotNegative = 0.1) -> Merge:
    """Replicas are pulled towards their own mean; there is no separate center.

        w_j <- (1 - alpha) w_j + alpha mean_k w_k - gamma g_j         w before the steps

    The evaluated model is the mean of the replicas. Its model state is the mean of
    theirs; replicas keep their own. Requires the buffer "prev_params". Source: KungFu's
    SMA; docs/algorithms C.1. Formula: `mean_correction`.
    """

    def apply(state, group, stats, op):
        center, pulled = mean_correction(
            state.center,
            members.params_of(group),
            alpha=alpha,
            prev_trees=group.each(members.buffer_of("prev_params")),
            present=stats.present,
        )
        share = proportional_weights(jnp.ones_like(stats.local_steps), stats.present)
        state = CenterState(center, members.mean_statistics(state, group, share))
        return state, group.each(lambda r, w: r._replace(params=w), pulled)

    return group_merge(members.center_state, apply, requires=("prev_params",))


def _first(stats: WorkerStats) -> jax.Array:
    """[n] one for the present worker with the lowest index, zero for the others."""
    lowest = jnp.min(jnp.where(stats.present, stats.worker, jnp.iinfo(jnp.int32).max))
    return jnp.where(stats.present & (stats.worker == lowest), 1.0, 0.0)
