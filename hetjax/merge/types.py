"""What a merge is: pure functions from the replicas of a group to a common model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax.replica import Replica


class Facts(NamedTuple):
    """What each member did since it last took part in a merge: arrays [n].

    A member without updates is absent: merges neither hear nor need it.
    """

    worker: jax.Array  # int32, index of the worker
    updates: jax.Array  # local steps
    batch_size: jax.Array  # [examples] of its last work, real-valued
    examples: jax.Array  # [examples]
    rate: jax.Array  # learning rate of its last work
    staleness: jax.Array  # versions of the node's model since it was fetched
    ticks: jax.Array  # works: reports to the loop

    @property
    def present(self) -> jax.Array:
        """[n] bool: did the member do anything?"""
        return self.updates > 0


class Merge(NamedTuple):
    """Pure functions that every merging algorithm consists of.

    init(params, model_state) -> state             one state per node of the tree
    apply(state, replicas, facts, op) -> (state, replicas)
    model(state) -> (params, model_state)          what is evaluated, in float32
    needs: slots of `Replica.carry` that the loop or the local rule must fill:
        "before" (params before the last local step), "gradients" (of the last step)
    report(state) -> {name: scalar}                counters for the history's points
    """

    init: Callable[[Any, Any], Any]
    apply: Callable[[Any, tuple[Replica, ...], Facts, str], tuple[Any, tuple]]
    model: Callable[[Any], tuple[Any, Any]]
    needs: tuple[str, ...] = ()
    report: Callable[[Any], dict[str, jax.Array]] | None = None


def normalized_weights(raw: jax.Array, present: jax.Array) -> jax.Array:
    """[n] weights proportional to `raw` over those present, summing to one.

    If nobody is present all are zero and a centre stays as it is.
    """
    raw = jnp.where(present, raw, 0.0)
    total = raw.sum()
    return raw / jnp.where(total > 0, total, 1.0)
