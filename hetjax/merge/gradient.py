"""Gradient aggregation: the merge of synchronous SGD."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

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
)
from hetjax.replica import Replica


class AggregationState(NamedTuple):
    """The model, in float32, and its optimizer."""

    center: Any
    model_state: Any
    opt_state: Any


def gradient_aggregation(
    optimizer: optax.GradientTransformation | None = None,
) -> Merge:
    """One central optimizer step on the example-weighted mean gradient.

        g = sum_i n_i g_i / sum_i n_i        g_i: mean gradient over n_i examples
        w <- w + eta update(g);   w_i <- w

    `optimizer` is built with rate 1 (default `optax.sgd(1.0)`): eta is the rate of the
    members' work (their mean by examples), so that it is data. Model state is averaged
    by examples. With one member at a time, whose gradient is stale, this is the
    standard parameter server; after the operation "push" the member keeps its model.
    Needs the local rule `gradient`. Promises: worker order is irrelevant; equal to one
    worker with all the examples; a member without examples is absent.
    Source: synchronous SGD, Adaptive SGD paper II; ALGORITHMS F.2, K.2.
    """
    tx = optax.sgd(1.0) if optimizer is None else optimizer

    def init(params: Any, model_state: Any) -> AggregationState:
        center = tree.float32(params)
        return AggregationState(center, tree.float32(model_state), tx.init(center))

    def apply(
        state: AggregationState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[AggregationState, tuple[Replica, ...]]:
        alpha = normalized_weights(facts.examples, facts.present)
        g = tree.weighted_sum([r.carry["gradients"] for r in replicas], alpha)
        rate = mean_rate(facts, alpha)
        updates, opt_state = tx.update(g, state.opt_state, state.center)
        center = jax.tree.map(lambda w, d: w + rate * d, state.center, updates)
        statistics = mean_statistics(state, replicas, alpha)
        new = AggregationState(center, statistics, opt_state)
        # a merge of nobody is no step of the optimizer
        anybody = jnp.any(facts.present)
        new = jax.tree.map(lambda n, o: jnp.where(anybody, n, o), new, state)
        if op == "push":
            return new, replicas
        return new, tuple(restart(r, new.center, new.model_state) for r in replicas)

    return Merge(
        init,
        apply,
        centered_model,
        needs=("gradients",),
        restarts=True,
        member=centered_member,
        adopt=centered_adopt,
    )
