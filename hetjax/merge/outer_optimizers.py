"""Outer optimizers: what a server does with pseudo-gradients, as optax transformations.

A pseudo-gradient D is the model that a worker was given, minus its replica. Any optax
optimizer can be an outer one (`merge.outer`); here are those of papers that optax does
not have. g is the outer learning rate, and c the model: c <- c + update(D).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from hetjax import tree
from hetjax.arguments import Count, Fraction, NotNegative, Positive, Share, checked
from hetjax.tree import PyTree

__all__ = [
    "delayed_nesterov",
    "fed_adagrad",
    "fed_adam",
    "fed_yogi",
    "look_ahead",
    "nesterov",
]


@checked
def nesterov(
    learning_rate: NotNegative = 0.7, momentum: Fraction = 0.9
) -> optax.GradientTransformation:
    """DiLoCo's: v <- b v + D;   c <- c - g (D + b v).

    Source: Douillard et al. 2023; docs/algorithms L.1.
    """
    return optax.sgd(learning_rate, momentum=momentum, nesterov=True)


class FedOptState(NamedTuple):
    """The two moments of FedOpt."""

    m: PyTree
    v: PyTree


@checked
def fed_adagrad(
    learning_rate: NotNegative, *, beta1: Fraction = 0.0, tau: Positive = 1e-3
) -> optax.GradientTransformation:
    """FedAdagrad: v <- v + D^2, and the rest as in `fed_adam`."""
    return _fed_opt(learning_rate, beta1, tau, lambda v, d: v + d * d)


@checked
def fed_adam(
    learning_rate: NotNegative,
    *,
    beta1: Fraction = 0.9,
    beta2: Share = 0.99,
    tau: Positive = 1e-3,
) -> optax.GradientTransformation:
    """FedAdam, whose moments have no bias correction; v begins at tau^2.

        m <- b1 m + (1 - b1) D;   v <- b2 v + (1 - b2) D^2
        c <- c - g m / (sqrt(v) + tau)

    Source: Reddi et al. 2021; docs/algorithms L.1.
    """
    return _fed_opt(
        learning_rate, beta1, tau, lambda v, d: beta2 * v + (1 - beta2) * d * d
    )


@checked
def fed_yogi(
    learning_rate: NotNegative,
    *,
    beta1: Fraction = 0.9,
    beta2: Share = 0.99,
    tau: Positive = 1e-3,
) -> optax.GradientTransformation:
    """FedYogi: v <- v - (1 - b2) D^2 sign(v - D^2), and the rest as in `fed_adam`."""
    return _fed_opt(
        learning_rate,
        beta1,
        tau,
        lambda v, d: v - (1 - beta2) * d * d * jnp.sign(v - d * d),
    )


def _fed_opt(learning_rate, beta1, tau, second) -> optax.GradientTransformation:
    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return FedOptState(zeros, jax.tree.map(lambda x: x + tau**2, zeros))

    def update(updates, state, params=None):
        del params
        m = jax.tree.map(lambda m, d: beta1 * m + (1 - beta1) * d, state.m, updates)
        v = jax.tree.map(second, state.v, updates)
        moves = jax.tree.map(
            lambda m, v: -learning_rate * m / (jnp.sqrt(v) + tau), m, v
        )
        return moves, FedOptState(m, v)

    return optax.GradientTransformation(init, update)


class DelayedNesterovState(NamedTuple):
    """A momentum, the pseudo-gradients that it does not have yet, and their number."""

    m: PyTree
    sums: PyTree
    number: jax.Array  # int32, of all updates


@checked
def delayed_nesterov(
    learning_rate: NotNegative = 0.7,
    momentum: Fraction = 0.9,
    *,
    every: Count | None = None,
    spread: Share = 0.0,
) -> optax.GradientTransformationExtraArgs:
    """Nesterov's step for one worker's D at a time; its momentum moves every N reports.

        B <- B + D;   n <- n + 1
        else                  c <- c - g (q b m + D / N)
        if N divides n        m <- b m + B / N;   B <- 0
                              c <- c - g ((1 - q N + q) b m + D / N)

    N is `every`, by default the number of workers; q is `spread`, of which at most
    1 / N counts. N reports move c by -g (mean D + b m'), as one Nesterov step does.
    With N = 1 it is `nesterov`. Source: asynchronous DiLoCo (Liu et al. 2024);
    docs/algorithms L.3.
    """
    if every is not None and spread * every > 1:
        raise ValueError(
            f"delayed_nesterov: spread={spread} is above 1 / every = {1 / every:.3g}"
        )

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return DelayedNesterovState(zeros, tree.copies(zeros), jnp.int32(0))

    def update(updates, state, params=None, *, num_workers=1.0, **extra_args):
        del params, extra_args
        n = jnp.asarray(num_workers if every is None else every, jnp.float32)
        number = state.number + 1
        ends = number % jnp.int32(n) == 0
        sums = jax.tree.map(jnp.add, state.sums, updates)
        m = jax.tree.map(
            lambda m, b: jnp.where(ends, momentum * m + b / n, m), state.m, sums
        )
        q = jnp.minimum(spread, 1 / n)
        share = jnp.where(ends, 1 - q * n + q, q)
        moves = jax.tree.map(
            lambda m, d: -learning_rate * (share * momentum * m + d / n), m, updates
        )
        sums = jax.tree.map(lambda b: jnp.where(ends, 0.0, b), sums)
        return moves, DelayedNesterovState(m, sums, number)

    return optax.GradientTransformationExtraArgs(init, update)


class LookAheadState(NamedTuple):
    """The momentum of `look_ahead`."""

    m: PyTree


@checked
def look_ahead(
    learning_rate: NotNegative = 0.7, momentum: Fraction = 0.9
) -> optax.GradientTransformation:
    """The server of Momentum Look-Ahead and HeLoCo, on the pseudo-gradient G.

        m <- u m + (1 - u) G;   c <- c - g (G + u m)

    Source: docs/algorithms L.4.
    """

    def init(params):
        return LookAheadState(jax.tree.map(jnp.zeros_like, params))

    def update(updates, state, params=None):
        del params
        u = momentum
        m = jax.tree.map(lambda m, d: u * m + (1 - u) * d, state.m, updates)
        moves = jax.tree.map(lambda m, d: -learning_rate * (d + u * m), m, updates)
        return moves, LookAheadState(m)

    return optax.GradientTransformation(init, update)
