"""Asynchronous SGD with guarantees: no gradient is too late, or none is lost."""

from typing import Literal

from hetjax import local, merge, schedule
from hetjax.arguments import Count, Fraction, NotNegative
from hetjax.schedule import LearningRateLike
from hetjax.schedule.policies.given_versions import Unfinished
from hetjax.strategies.step_rules import center_step
from hetjax.strategies.types import Strategy, factory


@factory
def ringmaster_asgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    max_delay: Count | Literal["adaptive"] = "adaptive",
    stop: Unfinished = "cancel",
    server_momentum: Fraction = 0.0,
) -> Strategy:
    """Asynchronous SGD that never applies a gradient of delay R or more.

        w <- w - eta g_i(w_old)        if fewer than R updates were made since w_old

    R is `max_delay`, or with "adaptive" max(1, floor(sqrt j)) after update j. With
    stop="cancel" (Algorithm 5) a worker whose delay becomes R is cancelled, and begins
    again at w; with "ignore" (Algorithm 4) its gradient is dropped when it arrives.
    With an R that no delay reaches this is `async_sgd`. Source: Maranjyan et al. 2025;
    docs/algorithms L.6.
    """
    merging, _ = center_step(
        None, learning_rate, server_momentum=server_momentum, weight_decay=0.0
    )
    policy = schedule.bounded_delay(
        batch_size=batch_size, max_delay=max_delay, stop=stop
    )
    return Strategy(policy, local.gradient(), merging, batch_size, learning_rate)


@factory
def rennala_sgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    batches: Count = 4,
    stop: Unfinished = "cancel",
) -> Strategy:
    """Synchronous SGD on the first B gradients at a model, from whichever workers.

        w <- w - eta / B sum_b g_b(w)

    B is `batches`; a fast worker contributes several. Unfinished gradients are
    cancelled, or dropped when they arrive (stop="ignore"). Source: Tyurin & Richtarik
    2023; docs/algorithms L.7.
    """
    policy = schedule.collected(batch_size=batch_size, gradients=batches, stop=stop)
    return Strategy(
        policy, local.gradient(), merge.gradient_sums(), batch_size, learning_rate
    )


@factory
def malenia_sgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    batches: Count = 4,
    stop: Unfinished = "cancel",
) -> Strategy:
    """`rennala_sgd` for unlike data: the mean of every worker's mean gradient.

        w <- w - eta mean_i (G_i / b_i)       as soon as (mean_i 1/b_i)^-1 >= S / k

    G_i is the sum of worker i's b_i gradients at w, k the number of workers, S is
    `batches`. Source: Tyurin & Richtarik 2023; docs/algorithms L.7.
    """
    policy = schedule.collected(
        batch_size=batch_size, gradients=batches, per_worker=True, stop=stop
    )
    return Strategy(
        policy, local.gradient(), merge.malenia(), batch_size, learning_rate
    )


@factory
def ringleader_asgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    refresh: bool = False,
) -> Strategy:
    """Asynchronous SGD for unlike data, in phases with one update for each worker.

        w <- w - eta mean_j (G_j / b_j)       k updates in each phase

    G_j is the sum of worker j's b_j gradients in a table; gradients of workers that had
    their update enter the next phase's table. No gradient is lost, and none is older
    than 2k - 2 updates. Between its updates a worker computes at the model that it was
    given then, or with `refresh` at the present one. Memory: two more model copies in
    each replica, its gradient and its row of the table, and two at the server. Source:
    Maranjyan & Richtarik 2025; docs/algorithms L.8.
    """
    policy = schedule.ringleader(batch_size=batch_size, refresh=refresh)
    return Strategy(
        policy, local.gradient(), merge.ringleader(), batch_size, learning_rate
    )


@factory
def dc_asgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    strength: NotNegative | None = None,
    decay: Fraction | None = None,
) -> Strategy:
    """Asynchronous SGD that corrects a late gradient for the way of the server since.

        w <- w - eta (g_i + l g_i^2 (w - s_i))                       elementwise

    s_i is the model that worker i was given, l is `strength` (0.04): DC-ASGD-c. With
    `decay` u, q_i <- u q_i + (1 - u) g_i^2 and l = strength / sqrt(q_i + 1e-7), with a
    `strength` of 2 by default: DC-ASGD-a. Source: Zheng et al. 2017; docs/algorithms
    L.13.
    """
    if strength is None:
        strength = 0.04 if decay is None else 2.0
    policy = schedule.asynchronous(batch_size=batch_size)
    merging = merge.delay_compensated(strength=strength, decay=decay)
    return Strategy(policy, local.gradient(), merging, batch_size, learning_rate)
