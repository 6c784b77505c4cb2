"""Aggregation rules of federated learning: FedNova, FedAcc, FedADP."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.arguments import Fraction, NotNegative, checked
from hetjax.merge import members
from hetjax.merge.formulas import weights
from hetjax.merge.formulas.moves import moved
from hetjax.merge.formulas.server_steps import nova_step
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import CenterState
from hetjax.merge.types import Merge, MergeProperty
from hetjax.traced_settings import is_given


@checked
def fed_nova(
    *,
    momentum: Fraction = 0.0,
    proximal: NotNegative = 0.0,
    server_momentum: Fraction = 0.0,
) -> Merge:
    """Averages progress per step, so that more steps do not mean more weight.

        x' = x + tau_eff sum_i p_i Delta_i / ||a_i||_1,    Delta_i = x^i - x
        tau_eff = sum_i p_i ||a_i||_1

    p_i is the member's share of the data (1/m if all members draw from all data). See
    `nova_weights` for ||a_i||_1 with local `momentum` rho or with the proximal form
    (`local.proximal`, mu is `proximal`). The members' optimizer states are set to zero.
    With `server_momentum` gmf

        buf <- gmf buf + (x - x') / eta;   x <- x - eta buf

    and consensus is no fixed point. Promises: with equal steps the merge is an average.
    Source: FedNova (Wang et al. 2020); docs/algorithms I.1. Formulas: `nova_weights`
    and `nova_step`.
    """
    if is_given(momentum) and is_given(proximal):
        raise ValueError(
            "fed_nova: pass momentum or proximal; both together have no published form"
        )

    def apply(state, group, stats, op):
        p = weights.proportional_weights(stats.share, stats.present)
        alpha = weights.nova_weights(
            stats.local_steps,
            stats.share,
            momentum=momentum,
            proximal=proximal,
            learning_rates=stats.learning_rate,
            present=stats.present,
        )
        group = members.without_momentum(group)
        if not is_given(server_momentum):
            return _moved(state, group, alpha, p)
        center, buffer = nova_step(
            state.center,
            state.memory,
            members.params_of(group),
            alpha,
            learning_rate=members.mean_learning_rate(stats, p),
            server_momentum=server_momentum,
            present=stats.present,
        )
        return _finished(state._replace(center=center, memory=buffer), group, p)

    init = members.center_state
    if is_given(server_momentum):
        init = members.center_with(members.zeros_like)
    return _federated(init, apply)


@checked
def fed_acc(*, power: NotNegative = 1.0, weight_by_share: bool = False) -> Merge:
    """Weights local models by their accuracy on held-out data.

        alpha_i = a_i^power / sum_k a_k^power      (a_i^power p_i if `weight_by_share`)
        x' = x + sum_i alpha_i (x^i - x)

    p_i is the member's share of the data. The loop measures a_i on a part of the
    training split that is held out from all workers, and charges the time to the clock.
    Weights are equal while all accuracies are zero. Source: FedAcc (Bejenar et al.
    2023), whose formula is not published: this is the interpretation in docs/algorithms
    I.2. Formula: `accuracy_weights`.
    """

    def apply(state, group, stats, op):
        alpha = weights.accuracy_weights(
            stats.accuracy,
            stats.share if weight_by_share else 1.0,
            power=power,
            present=stats.present,
        )
        return _moved(state, group, alpha, alpha)

    return _federated(members.center_state, apply, required_metrics=("accuracy",))


@checked
def fed_adp(*, alpha: NotNegative = 5.0) -> Merge:
    """Weights local models by how well their direction agrees with the mean's.

        Delta = sum_i D_i Delta_i / sum_i D_i
        theta_i = arccos(<Delta, Delta_i> / (|Delta| |Delta_i|))       [radians]
        theta~_i = ((t - 1) theta~_i + theta_i) / t        over the member's t rounds
        f_i = a (1 - exp(-exp(-a (theta~_i - 1))))                     a is `alpha`
        psi_i = D_i e^f_i / sum_k D_k e^f_k;   x' = x + sum_i psi_i Delta_i

    D_i is the member's share of the data; angles are between parameters only. Requires
    the buffer "angle". Source: FedAdp (Wu & Wang 2021); docs/algorithms I.3. Formulas:
    `angles` and `angle_weights`.
    """

    def apply(state, group, stats, op):
        share = weights.proportional_weights(stats.share, stats.present)
        moves = group.each(lambda r: tree.difference(r.params, state.center))
        theta = weights.angles(moves, share)
        old = group.values(members.buffer_of("angle"))  # [n, 2]: mean, rounds
        rounds = old[:, 1] + 1
        smooth = old[:, 0] + (theta - old[:, 0]) / rounds
        both = jnp.stack([smooth, rounds], axis=1)
        new = jnp.where(stats.present[:, None], both, old)
        group = group.each(lambda r, n: members.with_buffer(r, "angle", n), new)
        psi = weights.angle_weights(
            smooth, stats.share, alpha=alpha, present=stats.present
        )
        return _moved(state, group, psi, psi)

    return _federated(members.center_state, apply, requires=("angle",))


def _moved(
    state: CenterState, group: Group, alpha: jax.Array, statistics: jax.Array
) -> tuple[CenterState, Group]:
    """x' = x + sum_i alpha_i (x^i - x), from which all members continue."""
    center = moved(state.center, members.params_of(group), alpha)
    return _finished(state._replace(center=center), group, statistics)


def _finished(
    state: CenterState, group: Group, statistics: jax.Array
) -> tuple[CenterState, Group]:
    model_state = members.mean_statistics(state, group, statistics)
    state = state._replace(model_state=model_state)
    return state, group.each(
        lambda r: members.reset_to(r, state.center, state.model_state)
    )


def _federated(
    init: Callable[..., CenterState], apply: Callable[..., Any], **fields: Any
) -> Merge:
    return group_merge(
        init,
        apply,
        properties=MergeProperty.BROADCASTS,
        as_member=members.centered_member,
        from_parent=members.moved_center,
        **fields,
    )
