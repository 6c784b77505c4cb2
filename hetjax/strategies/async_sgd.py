"""Asynchronous SGD: parameter server, Hogwild!, MagmaDNN, Downpour, gossip."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from hetjax import local, merge, schedule
from hetjax.arguments import Count, Fraction, HostSeed, NotNegative, Positive, Whole
from hetjax.optimizers import Optimizer
from hetjax.schedule import LearningRateLike
from hetjax.schedule.policies.magma_async import Subtract
from hetjax.strategies.step_rules import center_step
from hetjax.strategies.types import Strategy, factory


@factory
def async_sgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    server_momentum: Fraction = 0.0,
    ema: bool = False,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
    max_staleness: Whole | None = None,
    delay_adaptive: bool = False,
) -> Strategy:
    """The standard parameter server: each worker pushes a gradient and fetches w.

        w <- w - eta g_i(w_old);   w_i <- w            w_old: the model that i fetched

    Pushes and fetches queue for the link, and the worker waits for them. The server's
    steps are those of `sync_sgd`. A worker that is more than `max_staleness` steps
    ahead of the slowest one pushes, waits, and fetches before it continues (stale
    synchronous parallel). With `delay_adaptive`, the learning rate of a gradient is
    eta k / max(k, tau), for k workers and tau updates since w_old. Sources:
    docs/algorithms F.3, K.2, L.6.
    """
    merging, learning_rate = center_step(
        optimizer,
        learning_rate,
        server_momentum=server_momentum,
        weight_decay=weight_decay,
        ema=ema,
        scale=_less_if_late if delay_adaptive else None,
    )
    policy = schedule.asynchronous(batch_size=batch_size, max_staleness=max_staleness)
    return Strategy(policy, local.gradient(), merging, batch_size, learning_rate)


def _less_if_late(stats: merge.WorkerStats) -> jax.Array:
    """k / max(k, tau)."""
    return stats.num_workers / jnp.maximum(stats.num_workers, stats.staleness)


@factory
def hogwild(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    server_momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    max_staleness: Whole | None = None,
) -> Strategy:
    """Hogwild!: a shared model that all workers read and update without any lock.

        w <- w - eta g_i(w_old)                        at the end of each step

    There is no link, no queue and no waiting; each update is atomic as a whole (races
    between components are not simulated). The authors use no `server_momentum`, and
    multiply the learning rate by 0.9 after each epoch: pass a `LearningRate` for that.
    The other settings are those of `async_sgd`. Source: Hogwild! (Niu et al. 2011),
    CROSSBOW 5.5; docs/algorithms F.5.
    """
    merging, _ = center_step(
        None, learning_rate, server_momentum=server_momentum, weight_decay=weight_decay
    )
    policy = schedule.asynchronous(
        batch_size=batch_size, transfers=0, max_staleness=max_staleness
    )
    return Strategy(policy, local.gradient(), merging, batch_size, learning_rate)


@factory
def magma_async_sgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    server_momentum: Fraction = 0.99,
    subtract: Subtract = "before",
    server_step_seconds: Positive | None = None,
    copy_seconds: Positive | None = None,
) -> Strategy:
    """MagmaDNN's asynchronous SGD: a master that steps continually and never waits.

        master   z <- beta z + (1 - beta) g / (N - 1);   w <- w - alpha z
        slaves   w_i <- w;   g <- g - g_i;   g_i <- gradient at w_i;   g <- g + g_i

    With `subtract="swap"` the old g_i stays in g until the new one replaces it. beta is
    `server_momentum`, alpha the learning rate. The slowest worker is the master and
    steps every `server_step_seconds`; see `schedule.magma_async` for the default
    durations. Source: MagmaDNN, Algorithms 2 and 3; docs/algorithms F.3.
    """
    policy = schedule.magma_async(
        batch_size=batch_size,
        server_step_seconds=server_step_seconds,
        copy_seconds=copy_seconds,
        subtract=subtract,
    )
    merging = merge.magma_async(momentum=server_momentum)
    return Strategy(policy, local.gradient(), merging, batch_size, learning_rate)


@factory
def downpour(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    push_every: Count = 1,
    fetch_every: Count = 1,
    server: Literal["adagrad", "sgd"] = "adagrad",
    server_learning_rate: Positive | None = None,
    blocking: bool = False,
) -> Strategy:
    """Downpour SGD: workers push gradients and fetch the model while they compute.

        x <- x - eta g;   accrued <- accrued + g       at every worker, every step
        p <- p - gamma accrued / sqrt(sum of squares)  at the server, per parameter

    A worker pushes its accrued gradients every `push_every` steps (n_push in the
    paper), requests p every `fetch_every` steps (n_fetch), and continues to compute
    until p arrives. With `blocking` it waits for each push and each fetch, as mpiT's
    workers do. See `schedule.downpour` for the exact steps.

    `server` is "adagrad", or "sgd" without the root. gamma is `server_learning_rate`
    times eta, by default 0.1 eta for Adagrad, whose first step is gamma in every
    parameter, and eta for SGD. optax's Adagrad adds 1e-7 under the root. Source:
    DistBelief (Dean et al. 2012); docs/algorithms G.5.
    """
    policy = schedule.downpour(
        batch_size=batch_size,
        push_every=push_every,
        fetch_every=fetch_every,
        blocking=blocking,
    )
    optimizer, relative = optax.sgd(1.0), 1.0
    if server == "adagrad":
        optimizer, relative = optax.adagrad(1.0, initial_accumulator_value=0.0), 0.1
    if server_learning_rate is not None:
        relative = server_learning_rate
    merging = merge.downpour(optimizer, server_learning_rate=relative)
    return Strategy(policy, local.sgd(), merging, batch_size, learning_rate)


@factory
def ad_psgd(
    *, batch_size: Count, learning_rate: LearningRateLike, partner_seed: HostSeed = 0
) -> Strategy:
    """Gossip: each worker averages with a random partner, then takes its own step.

        x_i, x_j <- (x_i + x_j) / 2;   x_i <- x_i - gamma g_i

    with g_i at the model that i started from; j continues to compute meanwhile. gamma
    is the learning rate. The mean of all models is evaluated. Source: AD-PSGD (Lian et
    al. 2018); docs/algorithms G.6.
    """
    partners = schedule.random_partner(partner_seed)
    policy = schedule.asynchronous(batch_size=batch_size, partners=partners)
    return Strategy(policy, local.gradient(), merge.gossip(), batch_size, learning_rate)
