"""Synchronous model averaging with momentum: Algorithm 1 of CROSSBOW."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.merge.averaging import averaged_model
from hetjax.merge.types import Facts, Merge, normalized_weights
from hetjax.replica import Replica


class SmaState(NamedTuple):
    """The central average model and its last displacement, in float32."""

    center: Any  # z
    velocity: Any  # z - z_prev
    model_state: Any


def sma(*, momentum: float = 0.9, alpha: float | None = None) -> Merge:
    """Replicas and their average pull each other, the average with momentum.

        c_j = alpha (w_j - z)                w_j before its last step
        w_j <- w_j - gamma g_j - c_j         the step was done by the local rule
        z <- z + sum_j c_j + mu (z - z_prev)

    `momentum` is mu; `alpha` defaults to 1/k for the k members that did something.
    z - z_prev is zero at the first merge. Model state is averaged, as a model of its
    own, and not sent back: replicas keep theirs. Needs the slot "before". Promises:
    worker order is irrelevant; consensus at z without velocity is an exact fixed
    point; a member without updates neither moves nor is heard; without momentum
    z + sum_j w_j is conserved. Source: CROSSBOW 3.2; ALGORITHMS C.1.
    """

    def init(params: Any, model_state: Any) -> SmaState:
        center = tree.float32(params)
        velocity = tree.map_floats(jnp.zeros_like, center)
        return SmaState(center, velocity, tree.float32(model_state))

    def apply(
        state: SmaState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[SmaState, tuple[Replica, ...]]:
        del op
        mean = normalized_weights(jnp.ones_like(facts.updates), facts.present)
        pull = mean if alpha is None else jnp.where(facts.present, alpha, 0.0)
        z, before = state.center, [r.carry["before"] for r in replicas]
        total = tree.weighted_move(z, before, pull)
        anybody = jnp.any(facts.present)  # a merge of nobody is no step of the momentum
        velocity = tree.map_floats(
            lambda c, v: jnp.where(anybody, c + momentum * v, v), total, state.velocity
        )
        corrected = tuple(
            _corrected(r, z, a) for r, a in zip(replicas, pull, strict=True)
        )
        moved = tree.weighted_move(
            state.model_state, [r.model_state for r in replicas], mean
        )
        statistics = tree.map_floats(jnp.add, state.model_state, moved)
        center = tree.map_floats(lambda z, v: jnp.where(anybody, z + v, z), z, velocity)
        return SmaState(center, velocity, statistics), corrected

    return Merge(init, apply, averaged_model, needs=("before",))


def _corrected(replica: Replica, z: Any, alpha: jax.Array) -> Replica:
    """w_j - alpha (w_j^before - z), in the replica's own dtypes."""

    def move(w: jax.Array, before: jax.Array, z: jax.Array) -> jax.Array:
        c = alpha * (before.astype(jnp.float32) - z)
        moved = (w.astype(jnp.float32) - c).astype(w.dtype)
        return jnp.where(alpha > 0, moved, w)

    params = tree.map_floats(move, replica.params, replica.carry["before"], z)
    return replica._replace(params=params)
