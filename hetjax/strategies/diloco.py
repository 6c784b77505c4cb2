"""The DiLoCo family: many local steps, then an outer optimizer; in step or not."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from hetjax import merge
from hetjax.arguments import Count, Fraction, NotNegative, Share
from hetjax.merge import WorkerStats, outer_optimizers
from hetjax.merge.formulas.alignment import aligned
from hetjax.merge.outer_optimizers import LookAheadState
from hetjax.optimizers import Optimizer
from hetjax.schedule import LearningRateLike
from hetjax.strategies.local_steps import Steps, in_rounds, on_arrival
from hetjax.strategies.step_rules import learner
from hetjax.strategies.types import Strategy, factory


@factory
def diloco(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = 32,
    outer_learning_rate: NotNegative = 0.7,
    outer_momentum: Fraction = 0.9,
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
    outer_optimizer: Optimizer | None = None,
) -> Strategy:
    """DiLoCo: local steps, then a step of Nesterov's on the mean of what they changed.

        D = mean_i (c - w_i);   v <- b v + D;   c <- c - g (D + b v);   w_i <- c

    g is `outer_learning_rate`, b `outer_momentum`; `outer_optimizer` is any optax
    optimizer in their place. `local_steps` are as in `local_sgd` (the paper has 500),
    and so are `weight_decay` and `optimizer` of the local steps (the paper's is AdamW,
    `optimizer=optax.adamw`), whose state stays with its worker; their `momentum` is 0
    by default. With SGD of rate 1 as the outer optimizer this is
    `local_sgd(momentum=0.0)`. Source: Douillard et al. 2023; docs/algorithms L.1.
    """
    outer = outer_optimizer
    if outer is None:
        outer = outer_optimizers.nesterov(outer_learning_rate, outer_momentum)
    elif (outer_learning_rate, outer_momentum) != (0.7, 0.9):
        raise ValueError(
            "pass outer_learning_rate and outer_momentum, or an outer_optimizer, not "
            "both: the optimizer has its own"
        )
    update, rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    policy = in_rounds(local_steps, batch_size)
    return Strategy(policy, update, merge.outer(outer), batch_size, rate)


@factory
def slow_mo(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    local_steps: Steps = 32,
    outer_learning_rate: NotNegative = 1.0,
    slow_momentum: Fraction = 0.5,
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
) -> Strategy:
    """SlowMo: local SGD whose average moves on with a slow momentum.

        u <- b u + mean_i (c - w_i) / eta;   c <- c - g eta u;   w_i <- c

    eta is the learning rate of the round, g `outer_learning_rate`, b `slow_momentum`.
    As long as eta does not change, this is FedAvgM (`fed_opt(server="avgm")`). The
    local `momentum` is kept. Source: Wang et al. 2020; docs/algorithms L.1.
    """
    tx = optax.sgd(outer_learning_rate, momentum=slow_momentum)
    update, rate = learner(
        None, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    policy = in_rounds(local_steps, batch_size)
    return Strategy(
        policy, update, merge.outer(tx, per_learning_rate=True), batch_size, rate
    )


@factory
def async_diloco(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = 32,
    outer_learning_rate: NotNegative = 0.1,
    outer_momentum: Fraction = 0.9,
    staleness: Literal["none", "sqrt"] = "none",
    grace: NotNegative | None = None,
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """DiLoCo without waiting: the outer optimizer steps on each worker's report.

        v <- b v + z D_i;   c <- c - g (z D_i + b v);   w_i <- c,   D_i = s_i - w_i

    s_i is the model that worker i was given, z = 1 / sqrt(k) for k workers, and with
    staleness="sqrt" also divided by sqrt(1 + tau), tau being the number of outer steps
    since. With `grace` [s], a worker waits for others that report in the meantime, and
    all of them continue from the same model (see `schedule.asynchronous`).
    `local_steps` are one number, one for each worker, or "measured:32": 32 for the
    fastest worker, and as many as fit into the same time for others. Source: Liu et al.
    2024; docs/algorithms L.2.
    """

    def scale(stats: WorkerStats):
        late = jnp.sqrt(1 + stats.staleness) if staleness == "sqrt" else 1.0
        return 1 / (jnp.sqrt(stats.num_workers) * late)

    nesterov = outer_optimizers.nesterov(outer_learning_rate, outer_momentum)
    update, rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    return on_arrival(
        merge.outer(nesterov, scale=scale, since="given"),
        update,
        rate,
        batch_size,
        local_steps,
        grace=grace,
    )


@factory
def delayed_nesterov(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = "measured:32",
    outer_learning_rate: NotNegative = 0.7,
    outer_momentum: Fraction = 0.9,
    every: Count | None = None,
    spread: Share = 0.0,
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Asynchronous DiLoCo whose momentum moves once in N reports; steps by speed.

    See `outer_optimizers.delayed_nesterov`: N is `every`, by default the number of
    workers, and q is `spread`, of which at most 1 / N counts. The default `local_steps`
    are dynamic local updates (DyLU): 32 for the fastest worker, and as many as fit into
    the same time for others. Source: Liu et al. 2024; docs/algorithms L.3.
    """
    tx = outer_optimizers.delayed_nesterov(
        outer_learning_rate, outer_momentum, every=every, spread=spread
    )
    update, rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    return on_arrival(
        merge.outer(tx, since="given"), update, rate, batch_size, local_steps
    )


@factory
def mla(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = 32,
    outer_learning_rate: NotNegative = 0.7,
    outer_momentum: Fraction = 0.9,
    send: Literal["center", "lookahead"] = "center",
    scale: Literal["one", "sqrt"] = "one",
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Momentum look-ahead: asynchronous DiLoCo with a momentum that averages.

        G = r D_i;   m <- u m + (1 - u) G;   c <- c - g (G + u m)

    Workers are given c, or with send="lookahead" c - g u m, which is where the momentum
    alone would lead; the paper's abstract allows both. g is `outer_learning_rate`, u
    `outer_momentum`; r is 1, or 1 / sqrt(k) with scale="sqrt". Source: docs/algorithms
    L.4.
    """
    merging = _look_ahead(
        outer_learning_rate, outer_momentum, scale, sends=send == "lookahead"
    )
    update, rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    return on_arrival(merging, update, rate, batch_size, local_steps)


@factory
def heloco(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = 32,
    outer_learning_rate: NotNegative = 0.7,
    outer_momentum: Fraction = 0.9,
    scale: Literal["one", "sqrt"] = "sqrt",
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """HeLoCo: `mla` that sends the look-ahead, and turns late reports towards m.

    Each tensor of D_i is first corrected by `formulas.aligned`, so that a report which
    opposes the momentum does less harm. c is evaluated. Source: docs/algorithms L.4.
    """
    merging = _look_ahead(
        outer_learning_rate,
        outer_momentum,
        scale,
        sends=True,
        correct=lambda move, state: aligned(move, state.m),
    )
    update, rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    return on_arrival(merging, update, rate, batch_size, local_steps)


def _look_ahead(
    rate: float,
    momentum: float,
    scale: str,
    *,
    sends: bool,
    correct: Callable[..., Any] | None = None,
) -> merge.Merge:
    def give(center: Any, state: LookAheadState) -> Any:
        return jax.tree.map(lambda c, m: c - rate * momentum * m, center, state.m)

    def root_scale(stats: WorkerStats) -> Any:
        return 1 / jnp.sqrt(stats.num_workers)

    return merge.outer(
        outer_optimizers.look_ahead(rate, momentum),
        scale=root_scale if scale == "sqrt" else 1.0,
        since="given",
        correct=correct,
        give=give if sends else None,
    )
