"""Synchronous model averaging with momentum (CROSSBOW) and without (EASGD)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.formulas.moves import mean_correction, sma_correction
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import (
    buffer_of,
    centered_model,
    mean_statistics,
    moved_center,
    params_of,
    reset_to,
    without_momentum,
)
from hetjax.merge.merge_checks import check_fraction, check_not_negative
from hetjax.merge.types import Merge
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.tree import ModelState, Params, PyTree

CORRECTIONS = ("before", "after")
STATISTICS = ("mean", "first")


class SmaState(NamedTuple):
    """The central average model, its last move and its model state, in float32."""

    center: Params  # z
    velocity: PyTree  # z - z_prev
    model_state: ModelState


def sma(
    *,
    momentum: float = 0.9,
    alpha: float | None = None,
    beta: float = 1.0,
    correction: str = "before",
    statistics: str = "mean",
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
    buffer "prev_params" (for `correction="before"`). Promises: worker order is
    irrelevant; consensus at z without velocity is an exact fixed point; a member
    without local steps neither moves nor counts; without momentum z + sum_j w_j is
    conserved. Source: CROSSBOW 3.2; docs/algorithms C.1, C.2, C.4, G.1. The
    formula is `sma_correction`.
    """
    if correction not in CORRECTIONS:
        raise ValueError(f"correction={correction!r}: choose one of {CORRECTIONS}")
    if statistics not in STATISTICS:
        raise ValueError(f"statistics={statistics!r}: choose one of {STATISTICS}")
    check_not_negative("sma", alpha=alpha, beta=beta)
    check_fraction("sma", momentum=momentum)

    def init(params: Params, model_state: ModelState = ()) -> SmaState:
        center = tree.widened(params)
        velocity = tree.map_floats(jnp.zeros_like, center)
        return SmaState(center, velocity, tree.widened(model_state))

    def apply(
        state: SmaState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[SmaState, Group]:
        mean = proportional_weights(jnp.ones_like(stats.local_steps), stats.present)
        params = params_of(group)
        before = correction == "before"
        center, velocity, corrected = sma_correction(
            state.center,
            state.velocity,
            params,
            alpha=beta * mean if alpha is None else alpha,
            momentum=momentum,
            prev_trees=group.each(buffer_of("prev_params")) if before else params,
            present=stats.present,
        )
        shares = mean if statistics == "mean" else _first(stats)
        state = SmaState(center, velocity, mean_statistics(state, group, shares))
        group = group.each(lambda r, w: r._replace(params=w), corrected)
        resets = MergeOp.RESET_TO_CENTER in op
        return restarted(state, group) if resets else (state, group)

    def restarted(state: SmaState, group: Group) -> tuple[SmaState, Group]:
        group = group.each(lambda r: reset_to(r, state.center, r.model_state))
        if not reset_momentum:
            return state, group
        zero = tree.map_floats(jnp.zeros_like, state.velocity)
        return state._replace(velocity=zero), group.each(without_momentum)

    def as_member(state: SmaState) -> Replica:
        # r_g before its last merge: all right-hand sides in C.4 a are old values
        before = tree.map_floats(jnp.subtract, state.center, state.velocity)
        return Replica(state.center, state.model_state, (), {"prev_params": before})

    return group_merge(
        init,
        apply,
        centered_model,
        ops=PUSH_FETCH | MergeOp.RESET_TO_CENTER,
        requires=("prev_params",) if correction == "before" else (),
        as_member=as_member,
        from_parent=moved_center,
    )


def replica_mean(*, alpha: float = 0.1) -> Merge:
    """Replicas are pulled towards their own mean; there is no separate center.

        w_j <- (1 - alpha) w_j + alpha mean_k w_k - gamma g_j         w before the steps

    The evaluated model is the mean of the replicas. Its model state is the mean of
    theirs; replicas keep their own. Requires the buffer "prev_params". Promises: worker
    order is irrelevant; consensus is an exact fixed point; a member without local steps
    neither moves nor counts. Source: KungFu's SMA; docs/algorithms C.1. The formula is
    `mean_correction`.
    """
    check_not_negative("replica_mean", alpha=alpha)

    def init(params: Params, model_state: ModelState = ()) -> SmaState:
        return SmaState(tree.widened(params), (), tree.widened(model_state))

    def apply(
        state: SmaState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[SmaState, Group]:
        del op
        center, pulled = mean_correction(
            state.center,
            params_of(group),
            alpha=alpha,
            prev_trees=group.each(buffer_of("prev_params")),
            present=stats.present,
        )
        share = proportional_weights(jnp.ones_like(stats.local_steps), stats.present)
        state = SmaState(center, (), mean_statistics(state, group, share))
        return state, group.each(lambda r, w: r._replace(params=w), pulled)

    return group_merge(init, apply, centered_model, requires=("prev_params",))


def _first(stats: WorkerStats) -> jax.Array:
    """[n] one for the present worker with the lowest index, zero for the others."""
    lowest = jnp.min(jnp.where(stats.present, stats.worker, jnp.iinfo(jnp.int32).max))
    return jnp.where(stats.present & (stats.worker == lowest), 1.0, 0.0)
