"""Aggregation rules of federated learning: FedNova, FedAcc, FedADP."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.merge.types import (
    Facts,
    Merge,
    centered_adopt,
    centered_member,
    centered_model,
    mean_rate,
    mean_statistics,
    normalized_weights,
    restart,
    without_momentum,
)
from hetjax.replica import Replica


class FederatedState(NamedTuple):
    """The server's model, in float32."""

    center: Any  # x
    model_state: Any
    buffer: Any = ()  # of the server's momentum


def _init(params: Any, model_state: Any) -> FederatedState:
    return FederatedState(tree.float32(params), tree.float32(model_state))


def _moved(
    state: FederatedState,
    replicas: tuple[Replica, ...],
    alpha: jax.Array,
    statistics: jax.Array,
) -> tuple[FederatedState, tuple[Replica, ...]]:
    """x' = x + sum_i alpha_i (x^i - x), from which all go on."""
    center = tree.moved(state.center, [r.params for r in replicas], alpha)
    return _finished(state._replace(center=center), replicas, statistics)


def _finished(
    state: FederatedState, replicas: tuple[Replica, ...], statistics: jax.Array
) -> tuple[FederatedState, tuple[Replica, ...]]:
    state = state._replace(model_state=mean_statistics(state, replicas, statistics))
    model = centered_model(state)
    return state, tuple(restart(r, *model) for r in replicas)


def fed_nova(
    *, momentum: float = 0.0, mu: float = 0.0, server_momentum: float = 0.0
) -> Merge:
    """Averages progress per step, so that more steps do not mean more weight.

        x' = x + tau_eff sum_i p_i Delta_i / ||a_i||_1,    Delta_i = x^i - x
        tau_eff = sum_i p_i ||a_i||_1

    p_i is the member's share of the data (1/m where all draw from all). For tau_i steps
    of plain SGD ||a_i||_1 = tau_i; with local `momentum` rho it is the sum over
    s = 1..tau_i of (1 - rho^s) / (1 - rho); in the proximal form (`local.proximal(mu)`)
    that of (1 - eta mu)^(s-1), and tau_eff = sum_i p_i tau_i. Members' optimizer states
    go back to zero. With `server_momentum` gmf

        buf <- gmf buf + (x - x') / eta;   x <- x - eta buf

    Promises: worker order is irrelevant; consensus is an exact fixed point (without
    server momentum); a member without updates is absent; equal steps make it an
    average. Source: FedNova (Wang et al. 2020); ALGORITHMS I.
    """
    if momentum and mu:
        raise ValueError("fed_nova: give momentum or mu; both have no published form")

    def init(params: Any, model_state: Any) -> FederatedState:
        state = _init(params, model_state)
        if not server_momentum:
            return state
        return state._replace(buffer=tree.map_floats(jnp.zeros_like, state.center))

    def apply(
        state: FederatedState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[FederatedState, tuple[Replica, ...]]:
        del op
        p = normalized_weights(facts.share, facts.present)
        alpha = nova_weights(p, facts, momentum, mu)
        fresh = tuple(map(without_momentum, replicas))
        if not server_momentum:
            return _moved(state, fresh, alpha, p)
        move = tree.weighted_move(state.center, [r.params for r in replicas], alpha)
        eta = mean_rate(facts, p)
        anybody = jnp.any(facts.present)
        buffer = tree.map_floats(
            lambda b, m: jnp.where(
                anybody, server_momentum * b - m / jnp.where(anybody, eta, 1.0), b
            ),
            state.buffer,
            move,
        )
        center = tree.map_floats(lambda x, b: x - eta * b, state.center, buffer)
        return _finished(state._replace(center=center, buffer=buffer), fresh, p)

    return _federated(init, apply)


def nova_weights(p: jax.Array, facts: Facts, momentum: float, mu: float) -> jax.Array:
    """[n] tau_eff p_i / ||a_i||_1, zero for who is absent."""
    tau = jnp.where(facts.present, facts.updates, 1.0)
    a = tau
    if momentum:
        rho = momentum
        a = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    if mu:
        a = _geometric(jnp.where(facts.present, facts.rate * mu, 0.0), tau)
    steps = tau if mu else a
    # p_i (tau_eff / a_i), in this order: exactly p_i where all a_i are equal
    total = jnp.sum(p * steps)
    equal = jnp.all((a == jnp.max(jnp.where(p > 0, a, 0.0))) | (p == 0))
    ratio = total / a
    return p * jnp.where(equal & (not mu), 1.0, ratio)


def _geometric(s: jax.Array, tau: jax.Array) -> jax.Array:
    """The sum of (1 - s)^k over k = 0..tau-1; a small s must not be lost beside 1."""
    small = s < 0.5
    exact = -jnp.expm1(tau * jnp.log1p(-jnp.where(small, s, 0.0)))
    total = jnp.where(small, exact, 1 - (1 - s) ** tau)
    return jnp.where(s > 0, total / jnp.where(s > 0, s, 1.0), tau)


def fed_acc(*, power: float = 1.0, by_size: bool = False) -> Merge:
    """Weights local models by their accuracy on held-out data.

        alpha_i = a_i^power / sum_k a_k^power      times the data's share if `by_size`
        x' = x + sum_i alpha_i (x^i - x)

    a_i is measured by the loop on a hold-out of the training split, which nobody trains
    on, and is charged to the clock. Equal weights while all are zero. Promises: worker
    order is irrelevant; consensus is an exact fixed point; a member without updates is
    absent. Source: FedAcc (Bejenar et al. 2023), whose formula is not published: this
    is the reading of ALGORITHMS I.
    """
    if not power >= 0:
        raise ValueError(f"power={power}: give a number of at least 0")

    def apply(
        state: FederatedState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[FederatedState, tuple[Replica, ...]]:
        del op
        raw = facts.accuracy**power * (facts.share if by_size else 1.0)
        raw = jnp.where(facts.present, raw, 0.0)
        raw = jnp.where(jnp.sum(raw) > 0, raw, 1.0)
        alpha = normalized_weights(raw, facts.present)
        return _moved(state, replicas, alpha, alpha)

    return _federated(_init, apply)._replace(measures=("accuracy",))


def fed_adp(*, alpha: float = 5.0) -> Merge:
    """Weights local models by how well their direction agrees with the mean's.

        Delta = sum_i D_i Delta_i / sum_i D_i
        theta_i = arccos(<Delta, Delta_i> / (|Delta| |Delta_i|))       [radians]
        theta~_i = ((t - 1) theta~_i + theta_i) / t        over the member's t rounds
        f_i = a (1 - exp(-exp(-a (theta~_i - 1))))                     a is `alpha`
        psi_i = D_i e^f_i / sum_k D_k e^f_k;   x' = x + sum_i psi_i Delta_i

    D_i is the member's share of the data; angles are of parameters alone. Needs the
    slot "angle". Promises: worker order is irrelevant; consensus is an exact fixed
    point; a member without updates is absent. Source: FedAdp (Wu & Wang 2021);
    ALGORITHMS I.
    """

    def apply(
        state: FederatedState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[FederatedState, tuple[Replica, ...]]:
        del op
        share = normalized_weights(facts.share, facts.present)
        theta = _angles(state.center, replicas, share)
        theta, replicas = _smoothed(theta, replicas, facts.present)
        psi = normalized_weights(
            share * jnp.exp(_gompertz(theta, alpha)), facts.present
        )
        return _moved(state, replicas, psi, psi)

    return _federated(_init, apply)._replace(needs=("angle",))


def _gompertz(theta: jax.Array, a: float) -> jax.Array:
    return a * (1 - jnp.exp(-jnp.exp(-a * (theta - 1))))


def _angles(center: Any, replicas: tuple[Replica, ...], share: jax.Array) -> jax.Array:
    """[n] angles between each member's move and the mean move; 0 where one is zero."""
    moves = [
        tree.map_floats(lambda x, r: r.astype(jnp.float32) - x, center, r.params)
        for r in replicas
    ]
    mean = tree.weighted_sum(moves, share)
    dots = jnp.stack([tree.dot(mean, m) for m in moves])
    norms = jnp.stack([tree.dot(m, m) for m in moves]) * tree.dot(mean, mean)
    cosine = jnp.where(norms > 0, dots / jnp.sqrt(jnp.where(norms > 0, norms, 1)), 1.0)
    return jnp.arccos(jnp.clip(cosine, -1.0, 1.0))


def _smoothed(
    theta: jax.Array, replicas: tuple[Replica, ...], present: jax.Array
) -> tuple[jax.Array, tuple[Replica, ...]]:
    """Each member's mean angle over its rounds, and members that remember it."""
    old = jnp.stack([r.carry["angle"] for r in replicas])  # [n, 2]: mean, rounds
    rounds = old[:, 1] + 1
    smooth = old[:, 0] + (theta - old[:, 0]) / rounds
    new = jnp.where(present[:, None], jnp.stack([smooth, rounds], axis=1), old)
    remembering = tuple(
        r._replace(carry={**r.carry, "angle": n})
        for r, n in zip(replicas, new, strict=True)
    )
    return smooth, remembering


def _federated(init: Any, apply: Any) -> Merge:
    return Merge(
        init,
        apply,
        centered_model,
        restarts=True,
        member=centered_member,
        adopt=centered_adopt,
    )
