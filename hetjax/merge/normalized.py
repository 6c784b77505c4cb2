"""Normalized merging with perturbation: Algorithm 2 of the Adaptive SGD paper."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.merge.averaging import AveragingState, averaged_adopt, merge_and_restart
from hetjax.merge.types import (
    Facts,
    Merge,
    centered_member,
    centered_model,
    normalized_weights,
)
from hetjax.replica import Replica

REG_MEASURES = ("l2_over_dim", "rms", "rms_per_leaf")
WEIGHT_RULES = ("paper", "updates", "updates_x_batch")


class NormalizedState(NamedTuple):
    """The global model and two counters."""

    average: AveragingState
    condition_met: jax.Array  # int32: merges whose replicas were all well-regularised
    weights_changed: jax.Array  # int32: those of them whose weights were perturbed


def normalized(
    *,
    delta: float = 0.1,
    pert_thr: float = 0.1,
    momentum: float = 0.9,
    weights: str = "paper",
    reg_measure: str = "l2_over_dim",
) -> Merge:
    """Weights from update counts, perturbed towards the busiest replica.

        alpha_i = b_i / sum_j b_j   if all u_i are equal,   else  u_i / sum_j u_j
        if ||w_i|| < pert_thr for all i:  alpha_r *= 1 + delta,  alpha_s *= 1 - delta
                                          with r = argmax u, s = argmin u
        w' = sum_i alpha_i w_i + gamma (w - w_p);   w_p <- w;   w <- w';   w_i <- w'

    u_i: updates, b_i: real-valued batch sizes [examples], `momentum` is gamma. The
    weights are not normalised again after the perturbation. ||.|| is the 2-norm over
    the number of parameters (`reg_measure="l2_over_dim"`, the paper's text), its root
    mean square ("rms"), or the largest root mean square of a leaf ("rms_per_leaf").
    `weights`: "paper" as above, "updates" (u_i always) or "updates_x_batch" (u_i b_i).
    When r = s (one worker, or equal updates) nothing is perturbed: the paper says that
    one worker equals Elastic SGD. Ties take the lowest index. Members without updates
    are absent, from r and s too. At the first merge w_p = w. Source: Adaptive SGD,
    Algorithm 2; ALGORITHMS A.3.
    """
    if weights not in WEIGHT_RULES:
        raise ValueError(f"weights={weights!r}: choose one of {WEIGHT_RULES}")
    if reg_measure not in REG_MEASURES:
        raise ValueError(f"reg_measure={reg_measure!r}: choose one of {REG_MEASURES}")

    def init(params: Any, model_state: Any) -> NormalizedState:
        previous = tree.float32(params) if momentum else ()
        average = AveragingState(
            tree.float32(params), previous, tree.float32(model_state)
        )
        return NormalizedState(
            average, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        )

    def apply(
        state: NormalizedState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[NormalizedState, tuple[Replica, ...]]:
        del op
        alpha = normalized_weights(_raw(weights, facts), facts.present)
        met = _all_below(reg_measure, pert_thr, replicas, facts.present)
        alpha, excess, changed = perturb(alpha, facts, met, delta)
        average, replicas = merge_and_restart(
            state.average, replicas, alpha, excess, momentum
        )
        counters = (state.condition_met + met, state.weights_changed + changed)
        return NormalizedState(average, *counters), replicas

    def report(state: NormalizedState) -> dict[str, jax.Array]:
        return {
            "condition_met": state.condition_met,
            "weights_changed": state.weights_changed,
        }

    def adopt(state: NormalizedState, replica: Replica) -> NormalizedState:
        return state._replace(average=averaged_adopt(state.average, replica))

    return Merge(
        init,
        apply,
        lambda state: centered_model(state.average),
        report=report,
        restarts=True,
        member=lambda state: centered_member(state.average),
        adopt=adopt,
    )


def _raw(rule: str, facts: Facts) -> jax.Array:
    """[n] unnormalised weights."""
    u, b = facts.updates, facts.batch_size
    if rule == "updates":
        return u
    if rule == "updates_x_batch":
        return u * b
    highest = jnp.max(u)
    equal = jnp.all((u == highest) | ~facts.present)
    return jnp.where(equal, b, u)


def perturb(
    alpha: jax.Array, facts: Facts, met: jax.Array, delta: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The perturbed weights [n], how far their sum is from one, and whether changed."""
    u = facts.updates
    r = jnp.argmax(u)
    s = jnp.argmin(jnp.where(facts.present, u, jnp.inf))
    changed = met & (u[r] != u[s])
    index = jnp.arange(u.shape[0])
    factor = 1 + delta * (index == r) - delta * (index == s)
    excess = jnp.where(changed, delta * (alpha[r] - alpha[s]), 0.0)
    return jnp.where(changed, alpha * factor, alpha), excess, changed


def _all_below(
    measure: str, threshold: float, replicas: tuple[Replica, ...], present: jax.Array
) -> jax.Array:
    """Is the measure of every present replica below the threshold?"""
    values = jnp.stack([_measure(measure, r.params) for r in replicas])
    return jnp.all((values < threshold) | ~present) & jnp.any(present)


def _measure(measure: str, params: Any) -> jax.Array:
    if measure == "rms_per_leaf":
        leaves = [x for x in jax.tree.leaves(params) if tree.is_float(x)]
        return jnp.max(jnp.stack([jnp.sqrt(tree.mean_square(x)) for x in leaves]))
    rms = jnp.sqrt(tree.mean_square(params))
    # ||w||_2 / d = rms / sqrt(d)
    return rms if measure == "rms" else rms / jnp.sqrt(float(tree.size(params)))
