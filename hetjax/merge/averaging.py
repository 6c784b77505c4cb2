"""Model averaging: the merge of K-step averaging, local SGD and sequential SGD."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.machine.types import MergeOp
from hetjax.merge.formulas.moves import momentum_mean, weighted_move
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import (
    centered_member,
    centered_model,
    params_of,
    reset_to,
    without_momentum,
)
from hetjax.merge.merge_checks import check_fraction
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.traced_settings import is_given
from hetjax.tree import ModelState, Params

WEIGHTS: dict[str, Callable[[WorkerStats], jax.Array]] = {
    "equal": lambda stats: jnp.ones_like(stats.local_steps),
    "local_steps": lambda stats: stats.local_steps,  # `bias_weights`
    "examples": lambda stats: stats.examples,
    "batch_size": lambda stats: stats.batch_size,
}


class AveragingState(NamedTuple):
    """The common model of a node, in float32."""

    center: Params  # w
    previous: Params  # w_p, () without momentum
    model_state: ModelState


def average(
    *,
    weights: str | Callable[[WorkerStats], jax.Array] = "equal",
    momentum: float = 0.0,
    reset: bool = False,
) -> Merge:
    """Averages the replicas with weights; all of them continue from the mean.

        alpha_i = raw_i / sum_j raw_j           over the members with local steps
        w' = sum_i alpha_i w_i + gamma (w - w_p);   w_p <- w;   w <- w'
        w_i <- w'

    `weights` is the name of raw_i ("equal", "local_steps", "examples", "batch_size") or
    a function of the `WorkerStats`; `momentum` is gamma. With `reset` the members'
    optimizer states are set to zero (for SGD). Model state is averaged with the same
    weights. Promises: worker order is irrelevant; consensus is an exact fixed point; a
    member without local steps is absent. Source: K-AVG (Zhou & Cong 2018); with
    momentum, the Elastic SGD of the Adaptive SGD paper. The formula is `momentum_mean`.
    """
    if isinstance(weights, str) and weights not in WEIGHTS:
        raise ValueError(
            f"average: weights={weights!r} is unknown; known: {', '.join(WEIGHTS)}"
        )
    check_fraction("average", momentum=momentum)
    raw = WEIGHTS[weights] if isinstance(weights, str) else weights

    def init(params: Params, model_state: ModelState = ()) -> AveragingState:
        previous = tree.widened(params) if is_given(momentum) else ()
        return AveragingState(tree.widened(params), previous, tree.widened(model_state))

    def apply(
        state: AveragingState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[AveragingState, Group]:
        del op
        alpha = proportional_weights(raw(stats), stats.present)
        if reset:
            group = group.each(without_momentum)
        return averaged(state, group, alpha, jnp.zeros(()), momentum)

    return group_merge(
        init,
        apply,
        centered_model,
        properties=MergeProperty.BROADCASTS,
        as_member=centered_member,
        from_parent=average_from_parent,
    )


def average_from_parent(state: AveragingState, replica: Replica) -> AveragingState:
    """The state with the parent's model; w_p shifts along, so that momentum stays."""
    previous = state.previous
    if jax.tree.leaves(previous):  # there is momentum
        previous = tree.map_floats(
            lambda p, new, old: p + (new - old),
            previous,
            replica.params,
            state.center,
        )
    return AveragingState(replica.params, previous, replica.model_state)


def averaged(
    state: AveragingState,
    group: Group,
    alpha: jax.Array,
    excess: jax.Array,
    momentum: float,
) -> tuple[AveragingState, Group]:
    """The state after a weighted mean with momentum, and the replicas reset to it.

    `excess` is sum_i alpha_i - 1.
    """
    center, previous = momentum_mean(
        state.center,
        state.previous,
        params_of(group),
        alpha,
        momentum=momentum,
        excess=excess,
    )
    statistics = group.each(lambda r: r.model_state)
    move = weighted_move(state.model_state, statistics, alpha)
    model_state = tree.map_floats(
        lambda s, m: s + m / (1 + excess), state.model_state, move
    )
    state = AveragingState(center, previous, model_state)
    return state, group.each(lambda r: reset_to(r, center, model_state))
