"""Synchronous model averaging with momentum (CROSSBOW) and without (EASGD)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.merge.types import (
    Facts,
    Merge,
    centered_adopt,
    centered_model,
    mean_statistics,
    normalized_weights,
    restart,
    without_momentum,
)
from hetjax.replica import Replica

CORRECTIONS = ("before", "after")
STATISTICS = ("mean", "first")


class SmaState(NamedTuple):
    """The central average model and its last displacement, in float32."""

    center: Any  # z
    velocity: Any  # z - z_prev
    model_state: Any


def sma(
    *,
    momentum: float = 0.9,
    alpha: float | None = None,
    beta: float = 1.0,
    correction: str = "before",
    statistics: str = "mean",
    reset_momentum: bool = True,
) -> Merge:
    """Replicas and their average pull each other, the average with momentum.

        c_j = alpha (w_j - z)                w_j before its last step
        w_j <- w_j - gamma g_j - c_j         the step was done by the local rule
        z <- z + sum_j c_j + mu (z - z_prev)

    `momentum` is mu; `alpha` defaults to beta / k for the k members that did something
    (beta = 1: CROSSBOW's; EASGD's is 0.9). With `correction="after"` w_j is taken after
    its last step, as torch-distlearn does. z - z_prev is zero at the first merge. Model
    state is averaged, as a model of its own (`statistics="first"`: the first member's
    is taken, as CROSSBOW evaluates), and not sent back: replicas keep theirs.
    The operation "restart" then sets w_j <- z and, with `reset_momentum`, z_prev <- z
    and the members' optimizer states to zero. To a node above, z is a replica. Needs
    the slot "before". Promises: worker order is irrelevant; consensus at z without
    velocity is an exact fixed point; a member without updates neither moves nor is
    heard; without momentum z + sum_j w_j is conserved. Source: CROSSBOW 3.2;
    ALGORITHMS C.1, C.2, C.4; EASGD G.1.
    """
    if correction not in CORRECTIONS:
        raise ValueError(f"correction={correction!r}: choose one of {CORRECTIONS}")
    if statistics not in STATISTICS:
        raise ValueError(f"statistics={statistics!r}: choose one of {STATISTICS}")

    def init(params: Any, model_state: Any) -> SmaState:
        center = tree.float32(params)
        velocity = tree.map_floats(jnp.zeros_like, center)
        return SmaState(center, velocity, tree.float32(model_state))

    def old(replica: Replica) -> Any:
        return replica.carry["before"] if correction == "before" else replica.params

    def apply(
        state: SmaState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[SmaState, tuple[Replica, ...]]:
        mean = normalized_weights(jnp.ones_like(facts.updates), facts.present)
        pull = beta * mean if alpha is None else jnp.where(facts.present, alpha, 0.0)
        z = state.center
        total = tree.weighted_move(z, [old(r) for r in replicas], pull)
        anybody = jnp.any(facts.present)  # a merge of nobody is no step of the momentum
        velocity = tree.map_floats(
            lambda c, v: jnp.where(anybody, c + momentum * v, v), total, state.velocity
        )
        corrected = tuple(
            _corrected(r, old(r), z, a) for r, a in zip(replicas, pull, strict=True)
        )
        shares = mean if statistics == "mean" else _first(facts)
        model_state = mean_statistics(state, replicas, shares)
        center = tree.map_floats(lambda z, v: jnp.where(anybody, z + v, z), z, velocity)
        state = SmaState(center, velocity, model_state)
        return _restarted(state, corrected) if op == "restart" else (state, corrected)

    def _restarted(
        state: SmaState, replicas: tuple[Replica, ...]
    ) -> tuple[SmaState, tuple[Replica, ...]]:
        replicas = tuple(restart(r, state.center, r.model_state) for r in replicas)
        if not reset_momentum:
            return state, replicas
        zero = tree.map_floats(jnp.zeros_like, state.velocity)
        return state._replace(velocity=zero), tuple(map(without_momentum, replicas))

    def member(state: SmaState) -> Replica:
        # r_g before its own last merge: all right-hand sides of C.4 a are old values
        before = tree.map_floats(jnp.subtract, state.center, state.velocity)
        return Replica(state.center, state.model_state, (), {"before": before})

    needs = ("before",) if correction == "before" else ()
    return Merge(
        init, apply, centered_model, needs, member=member, adopt=centered_adopt
    )


def replica_mean(*, alpha: float = 0.1) -> Merge:
    """Replicas and their mean pull each other; there is no other centre.

        w_j <- (1 - alpha) w_j + alpha mean_k w_k - gamma g_j         w before the steps

    What is evaluated is the mean of the replicas. Model state is averaged likewise and
    not sent back. Needs the slot "before". Promises: worker order is irrelevant;
    consensus is an exact fixed point; a member without updates neither moves nor is
    heard. Source: KungFu's SMA; ALGORITHMS C.1.
    """

    def init(params: Any, model_state: Any) -> SmaState:
        return SmaState(tree.float32(params), (), tree.float32(model_state))

    def apply(
        state: SmaState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[SmaState, tuple[Replica, ...]]:
        del op
        share = normalized_weights(jnp.ones_like(facts.updates), facts.present)
        olds = [r.carry["before"] for r in replicas]
        mean = tree.moved(state.center, olds, share)
        pull = jnp.where(facts.present, alpha, 0.0)
        pulled = tuple(
            _corrected(r, old, mean, a)
            for r, old, a in zip(replicas, olds, pull, strict=True)
        )
        center = tree.moved(mean, [r.params for r in pulled], share)
        return SmaState(center, (), mean_statistics(state, replicas, share)), pulled

    return Merge(init, apply, centered_model, ("before",))


def _first(facts: Facts) -> jax.Array:
    """[n] one for the present member with the lowest index, zero for the others."""
    lowest = jnp.min(jnp.where(facts.present, facts.worker, jnp.iinfo(jnp.int32).max))
    return jnp.where(facts.present & (facts.worker == lowest), 1.0, 0.0)


def _corrected(replica: Replica, old: Any, z: Any, alpha: jax.Array) -> Replica:
    """w_j - alpha (w_j^old - z), in the replica's own dtypes."""

    def move(w: jax.Array, old: jax.Array, z: jax.Array) -> jax.Array:
        c = alpha * (old.astype(jnp.float32) - z)
        moved = (w.astype(jnp.float32) - c).astype(w.dtype)
        return jnp.where(alpha > 0, moved, w)

    return replica._replace(params=tree.map_floats(move, replica.params, old, z))
