"""Model averaging: the merge of K-step averaging, local SGD and sequential SGD."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.merge.types import (
    Facts,
    Merge,
    centered_member,
    centered_model,
    normalized_weights,
    restart,
    without_momentum,
)
from hetjax.replica import Replica

WEIGHTS: dict[str, Callable[[Facts], jax.Array]] = {
    "equal": lambda facts: jnp.ones_like(facts.updates),
    "updates": lambda facts: facts.updates,
    "examples": lambda facts: facts.examples,
    "batch_size": lambda facts: facts.batch_size,
}


class AveragingState(NamedTuple):
    """The common model of a node, in float32."""

    center: Any  # w
    previous: Any  # w_p, () without momentum
    model_state: Any


def average(
    *,
    weights: str | Callable[[Facts], jax.Array] = "equal",
    momentum: float = 0.0,
    reset: bool = False,
) -> Merge:
    """Weighted mean of the replicas, from which all of them go on.

        alpha_i = raw_i / sum_j raw_j           over the members with updates
        w' = sum_i alpha_i w_i + gamma (w - w_p);   w_p <- w;   w <- w'
        w_i <- w'

    `weights` names what raw_i is ("equal", "updates", "examples", "batch_size") or is
    a function of the facts; `momentum` is gamma. With `reset` the members' optimizer
    states go back to zero (those of SGD). Model state is averaged alike.
    Promises: worker order is irrelevant; consensus is an exact fixed point; a member
    without updates is absent. Source: K-AVG (Zhou & Cong 2018); with momentum the
    Elastic SGD of the Adaptive SGD paper.
    """
    if isinstance(weights, str) and weights not in WEIGHTS:
        raise ValueError(
            f"average: weights={weights!r} is unknown; known: {', '.join(WEIGHTS)}"
        )
    raw = WEIGHTS[weights] if isinstance(weights, str) else weights

    def init(params: Any, model_state: Any) -> AveragingState:
        previous = tree.float32(params) if momentum else ()
        return AveragingState(tree.float32(params), previous, tree.float32(model_state))

    def apply(
        state: AveragingState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[AveragingState, tuple[Replica, ...]]:
        del op
        alpha = normalized_weights(raw(facts), facts.present)
        if reset:
            replicas = tuple(map(without_momentum, replicas))
        zero = jnp.zeros(())
        return merge_and_restart(state, replicas, alpha, zero, momentum)

    return Merge(
        init,
        apply,
        centered_model,
        restarts=True,
        member=centered_member,
        adopt=averaged_adopt,
    )


def averaged_adopt(state: AveragingState, replica: Replica) -> AveragingState:
    """A node's momentum is of its own moves: what comes from above shifts w_p, too."""
    previous = state.previous
    if jax.tree.leaves(previous):  # there is momentum
        previous = tree.map_floats(
            lambda p, new, old: p + (new - old),
            previous,
            replica.params,
            state.center,
        )
    return AveragingState(replica.params, previous, replica.model_state)


def merge_and_restart(
    state: AveragingState,
    replicas: tuple[Replica, ...],
    alpha: jax.Array,
    excess: jax.Array,
    momentum: float,
) -> tuple[AveragingState, tuple[Replica, ...]]:
    """w' = sum_i alpha_i w_i + gamma (w - w_p), and every replica goes on from w'.

    `excess` is sum_i alpha_i - 1, given by the caller who knows when it is exactly 0:
    w + sum_i alpha_i (w_i - w) + excess w keeps consensus exact, sum_i alpha_i w_i
    does not.
    """
    w = state.center
    move = tree.weighted_move(w, [r.params for r in replicas], alpha)
    new = tree.map_floats(lambda w, m: w + m + excess * w, w, move)
    previous = state.previous
    if momentum:
        anybody = jnp.any(alpha != 0)  # a merge of nobody is no step of the momentum
        gamma = jnp.where(anybody, momentum, 0.0)
        new = tree.map_floats(lambda n, w, p: n + gamma * (w - p), new, w, previous)
        previous = tree.map_floats(lambda w, p: jnp.where(anybody, w, p), w, previous)
    moved = tree.weighted_move(
        state.model_state, [r.model_state for r in replicas], alpha
    )
    statistics = tree.map_floats(
        lambda s, m: s + m / (1 + excess), state.model_state, moved
    )
    restarted = tuple(restart(r, new, statistics) for r in replicas)
    return AveragingState(new, previous, statistics), restarted
