"""Aggregation rules of federated learning: FedNova, FedAcc, FedADP."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.machine.types import MergeOp
from hetjax.merge.formulas.moves import moved
from hetjax.merge.formulas.server_steps import nova_step
from hetjax.merge.formulas.weights import (
    accuracy_weights,
    angle_weights,
    angles,
    nova_weights,
    proportional_weights,
)
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import (
    buffer_of,
    centered_member,
    centered_model,
    mean_learning_rate,
    mean_statistics,
    moved_center,
    params_of,
    reset_to,
    with_buffer,
    without_momentum,
)
from hetjax.merge.merge_checks import check_fraction, check_not_negative
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.traced_settings import is_given
from hetjax.tree import ModelState, Params, PyTree


class FederatedState(NamedTuple):
    """The server's model, in float32."""

    center: Params  # x
    model_state: ModelState
    buffer: PyTree = ()  # of the server's momentum


def _init(params: Params, model_state: ModelState = ()) -> FederatedState:
    return FederatedState(tree.widened(params), tree.widened(model_state))


def _moved(
    state: FederatedState, group: Group, alpha: jax.Array, statistics: jax.Array
) -> tuple[FederatedState, Group]:
    """x' = x + sum_i alpha_i (x^i - x), from which all members continue."""
    center = moved(state.center, params_of(group), alpha)
    return _finished(state._replace(center=center), group, statistics)


def _finished(
    state: FederatedState, group: Group, statistics: jax.Array
) -> tuple[FederatedState, Group]:
    state = state._replace(model_state=mean_statistics(state, group, statistics))
    model = centered_model(state)
    return state, group.each(lambda r: reset_to(r, *model))


def fed_nova(
    *, momentum: float = 0.0, proximal: float = 0.0, server_momentum: float = 0.0
) -> Merge:
    """Averages progress per step, so that more steps do not mean more weight.

        x' = x + tau_eff sum_i p_i Delta_i / ||a_i||_1,    Delta_i = x^i - x
        tau_eff = sum_i p_i ||a_i||_1

    p_i is the member's share of the data (1/m if all members draw from all data). See
    `nova_weights` for ||a_i||_1 with local `momentum` rho or with the proximal form
    (`local.proximal`, mu is `proximal`). The members' optimizer states are set to zero.
    With `server_momentum` gmf

        buf <- gmf buf + (x - x') / eta;   x <- x - eta buf

    Promises: worker order is irrelevant; consensus is an exact fixed point (without
    server momentum); a member without local steps is absent; with equal steps the merge
    is an average. Source: FedNova (Wang et al. 2020); docs/algorithms I.1. The formulas
    are `nova_weights` and `nova_step`.
    """
    check_fraction("fed_nova", momentum=momentum, server_momentum=server_momentum)
    check_not_negative("fed_nova", proximal=proximal)
    if is_given(momentum) and is_given(proximal):
        raise ValueError(
            "fed_nova: pass momentum or proximal; both together have no published form"
        )

    def init(params: Params, model_state: ModelState = ()) -> FederatedState:
        state = _init(params, model_state)
        if not is_given(server_momentum):
            return state
        return state._replace(buffer=tree.map_floats(jnp.zeros_like, state.center))

    def apply(
        state: FederatedState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[FederatedState, Group]:
        del op
        p = proportional_weights(stats.share, stats.present)
        alpha = nova_weights(
            stats.local_steps,
            stats.share,
            momentum=momentum,
            proximal=proximal,
            learning_rates=stats.learning_rate,
            present=stats.present,
        )
        group = group.each(without_momentum)
        if not is_given(server_momentum):
            return _moved(state, group, alpha, p)
        center, buffer = nova_step(
            state.center,
            state.buffer,
            params_of(group),
            alpha,
            learning_rate=mean_learning_rate(stats, p),
            server_momentum=server_momentum,
            present=stats.present,
        )
        return _finished(state._replace(center=center, buffer=buffer), group, p)

    return _federated(init, apply)


def fed_acc(*, power: float = 1.0, weight_by_share: bool = False) -> Merge:
    """Weights local models by their accuracy on held-out data.

        alpha_i = a_i^power / sum_k a_k^power      (a_i^power p_i if `weight_by_share`)
        x' = x + sum_i alpha_i (x^i - x)

    p_i is the member's share of the data. The loop measures a_i on a part of the
    training split that is held out from all workers, and charges the time to the clock.
    Weights are equal while all accuracies are zero. Promises: worker order is
    irrelevant; consensus is an exact fixed point; a member without local steps is
    absent. Source: FedAcc (Bejenar et al. 2023), whose formula is not published: this
    is the interpretation in docs/algorithms I.2. The formula is `accuracy_weights`.
    """
    check_not_negative("fed_acc", power=power)

    def apply(
        state: FederatedState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[FederatedState, Group]:
        del op
        alpha = accuracy_weights(
            stats.accuracy,
            stats.share if weight_by_share else 1.0,
            power=power,
            present=stats.present,
        )
        return _moved(state, group, alpha, alpha)

    return _federated(_init, apply, required_metrics=("accuracy",))


def fed_adp(*, alpha: float = 5.0) -> Merge:
    """Weights local models by how well their direction agrees with the mean's.

        Delta = sum_i D_i Delta_i / sum_i D_i
        theta_i = arccos(<Delta, Delta_i> / (|Delta| |Delta_i|))       [radians]
        theta~_i = ((t - 1) theta~_i + theta_i) / t        over the member's t rounds
        f_i = a (1 - exp(-exp(-a (theta~_i - 1))))                     a is `alpha`
        psi_i = D_i e^f_i / sum_k D_k e^f_k;   x' = x + sum_i psi_i Delta_i

    D_i is the member's share of the data; angles are between parameters only. Requires
    the buffer "angle". Promises: worker order is irrelevant; consensus is a fixed
    point; a member without local steps is absent. Source: FedAdp (Wu & Wang 2021);
    docs/algorithms I.3. The formulas are `angles` and `angle_weights`.
    """
    check_not_negative("fed_adp", alpha=alpha)

    def apply(
        state: FederatedState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[FederatedState, Group]:
        del op
        share = proportional_weights(stats.share, stats.present)
        moves = group.each(lambda r: tree.difference(r.params, state.center))
        theta, group = _smoothed(angles(moves, share), group, stats.present)
        psi = angle_weights(theta, stats.share, alpha=alpha, present=stats.present)
        return _moved(state, group, psi, psi)

    return _federated(_init, apply, requires=("angle",))


def _smoothed(
    theta: jax.Array, group: Group, present: jax.Array
) -> tuple[jax.Array, Group]:
    """Each member's mean angle over its rounds, and the members that store it."""
    old = group.values(buffer_of("angle"))  # [n, 2]: mean, rounds
    rounds = old[:, 1] + 1
    smooth = old[:, 0] + (theta - old[:, 0]) / rounds
    new = jnp.where(present[:, None], jnp.stack([smooth, rounds], axis=1), old)
    return smooth, group.each(lambda r, n: with_buffer(r, "angle", n), new)


def _federated(
    init: Callable[..., FederatedState], apply: Callable[..., Any], **fields: Any
) -> Merge:
    return group_merge(
        init,
        apply,
        centered_model,
        properties=MergeProperty.BROADCASTS,
        as_member=centered_member,
        from_parent=moved_center,
        **fields,
    )
