"""Federated learning: FedOpt, FedProx, SCAFFOLD, and asynchronous servers."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from hetjax import local, merge
from hetjax.arguments import Count, Fraction, NotNegative, Positive, Share
from hetjax.merge import WorkerStats, outer_optimizers
from hetjax.optimizers import Optimizer
from hetjax.schedule import LearningRateLike
from hetjax.strategies.local_steps import Steps, in_rounds, on_arrival
from hetjax.strategies.step_rules import learner
from hetjax.strategies.types import Strategy, factory
from hetjax.traced_settings import is_given


@factory
def fed_opt(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = 32,
    server: Literal["avgm", "adagrad", "adam", "yogi"] = "adam",
    server_learning_rate: NotNegative = 0.1,
    beta1: Fraction | None = None,
    beta2: Share = 0.99,
    tau: Positive = 1e-3,
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Local SGD with an adaptive server: FedAvgM, FedAdagrad, FedAdam, FedYogi.

        D = mean_i (c - w_i);   m <- b1 m + (1 - b1) D
        v <- v + D^2 | b2 v + (1 - b2) D^2 | v - (1 - b2) D^2 sign(v - D^2)
        c <- c - g m / (sqrt(v) + tau);   w_i <- c
        avgm:   m <- b1 m + D;   c <- c - g m;   w_i <- c

    The forms of v are those of "adagrad", "adam" and "yogi" (`outer_optimizers`); g is
    `server_learning_rate`. b1 is `beta1`, by default 0.9, and 0 for "adagrad". `beta2`
    and `tau` do not concern "avgm", which is a heavy ball. `local_steps` and the
    settings of the local steps are those of `local_sgd`, but `momentum` is 0 by
    default. Sources: Hsu et al. 2019, Reddi et al. 2021; docs/algorithms L.1.
    """
    if beta1 is None:
        beta1 = 0.0 if server == "adagrad" else 0.9
    match server:
        case "avgm":
            tx = optax.sgd(server_learning_rate, momentum=beta1)
        case "adagrad":
            tx = outer_optimizers.fed_adagrad(
                server_learning_rate, beta1=beta1, tau=tau
            )
        case _:
            adaptive = {
                "adam": outer_optimizers.fed_adam,
                "yogi": outer_optimizers.fed_yogi,
            }[server]
            tx = adaptive(server_learning_rate, beta1=beta1, beta2=beta2, tau=tau)
    update, rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    policy = in_rounds(local_steps, batch_size)
    return Strategy(policy, update, merge.outer(tx), batch_size, rate)


@factory
def fed_prox(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    local_steps: Steps = "measured:32",
    proximal: NotNegative = 0.01,
) -> Strategy:
    """Local SGD whose workers are pulled back to the model that they were given.

        w_i <- w_i - eta (g + mu (w_i - s_i));   c <- mean_i w_i

    mu is `proximal`; with 0 this is `local_sgd(momentum=0.0)`. Source: Li et al. 2020;
    docs/algorithms L.12.
    """
    policy = in_rounds(local_steps, batch_size)
    update = local.proximal(proximal=proximal)
    return Strategy(policy, update, merge.average(), batch_size, learning_rate)


@factory
def scaffold(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    local_steps: Steps = 32,
    server_learning_rate: NotNegative = 1.0,
) -> Strategy:
    """Local SGD with control variates against the drift of unlike data: SCAFFOLD.

        y_i <- y_i - eta (g - c_i + c)                                     H_i times
        c_i' = c_i - c + (x - y_i) / (H_i eta)
        x <- x + g mean_i (y_i - x);   c <- c + sum_i (c_i' - c_i) / N

    x is the model, c_i a worker's variate and c the server's, N the number of workers,
    g `server_learning_rate`. Models and variates move: twice the bytes. Source:
    Karimireddy et al. 2020, option II; docs/algorithms L.12.
    """
    policy = in_rounds(local_steps, batch_size)
    merging = merge.scaffold(server_learning_rate=server_learning_rate)
    return Strategy(policy, local.scaffold(), merging, batch_size, learning_rate)


@factory
def fed_async(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    local_steps: Steps = 32,
    mixing: Share = 0.6,
    staleness: Literal["polynomial", "hinge", "constant"] = "polynomial",
    power: NotNegative = 0.5,
    slope: NotNegative = 10.0,
    hinge: NotNegative = 4.0,
    proximal: NotNegative = 0.0,
) -> Strategy:
    """Each report moves the server's model towards the worker's, less if it is late.

        c <- (1 - A s(tau)) c + A s(tau) w_i;   w_i <- c
        s = (1 + tau)^-a | 1 if tau <= h, else 1 / (b (tau - h) + 1) | 1

    The forms of s are "polynomial", "hinge" and "constant"; A is `mixing`, a `power`,
    b `slope`, h `hinge`, and tau the number of updates since the worker was given its
    model. `proximal` is that of `fed_prox` (0.005 in the paper). Source: Xie et al.
    2019; docs/algorithms L.5.
    """

    def scale(stats: WorkerStats) -> jax.Array:
        tau = stats.staleness
        if staleness == "polynomial":
            return mixing * (1 + tau) ** -power
        if staleness == "hinge":
            late = jnp.maximum(tau - hinge, 0.0)
            return mixing / (slope * late + 1)
        return mixing * jnp.ones_like(tau)

    given = is_given(proximal)
    update = local.proximal(proximal=proximal) if given else local.sgd()
    merging = merge.outer(optax.sgd(1.0), scale=scale, since="center")
    return on_arrival(merging, update, learning_rate, batch_size, local_steps)


@factory
def fed_buff(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = 32,
    buffer_size: Count = 10,
    server_learning_rate: NotNegative = 1.0,
    server_momentum: Fraction = 0.0,
    staleness: Literal["sqrt", "none"] = "sqrt",
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """An asynchronous server that steps once a buffer of K reports is full.

        S <- S + s(tau) D_i;   at the K-th:  c <- c - g S / K;   S <- 0;   w_i <- c

    D_i = s_i - w_i, s_i being the model that worker i was given; K is `buffer_size`, g
    `server_learning_rate`, `server_momentum` that of a heavy ball; s is 1 / sqrt(1 +
    tau) or 1. A worker may be in a buffer several times, and takes c at every report.
    Source: Nguyen et al. 2022; docs/algorithms L.5.
    """

    def scale(stats: WorkerStats) -> jax.Array:
        return 1 / jnp.sqrt(1 + stats.staleness)

    heavy_ball = server_momentum if is_given(server_momentum) else None
    tx = optax.sgd(server_learning_rate, momentum=heavy_ball)
    merging = merge.buffered(tx, scale=scale if staleness == "sqrt" else 1.0)
    update, rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    return on_arrival(
        merging, update, rate, batch_size, local_steps, buffer=buffer_size
    )
