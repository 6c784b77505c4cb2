"""The baselines that every paper compares with: sequential, synchronous, K-step SGD."""

from typing import Any

import optax

from hetjax import local, merge, schedule
from hetjax.schedule import RateLike
from hetjax.strategies.types import (
    Strategy,
    fraction,
    not_negative,
    positive,
    settings,
)


def sequential_sgd(
    *,
    batch_size: int,
    rate: RateLike,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> Strategy:
    """Mini-batch SGD on the machine's fastest worker, the others stay idle.

    w <- w - eta g          (or `local.sgd` with momentum and decay)
    """
    given = settings(locals())
    positive(batch_size=batch_size)
    fraction(momentum=momentum)
    return Strategy(
        schedule.rounds(batch_size=batch_size, workers=schedule.fastest(batch_size)),
        local.sgd(momentum=momentum, weight_decay=weight_decay),
        merge.average(),
        batch_size,
        rate,
        settings=given,
        name="sequential_sgd",
    )


def sync_sgd(
    *,
    batch_size: int,
    rate: RateLike,
    momentum: float = 0.0,
    ema: bool = False,
    weight_decay: float = 0.0,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Synchronous SGD: one central step on the mean gradient of all workers.

        g = sum_i n_i g_i / sum_i n_i;   z <- mu z + g + wd w;   w <- w - eta z

    `batch_size` is each worker's, `momentum` is mu, `weight_decay` wd. With `ema`
    z <- mu z + (1 - mu) (g + wd w): MagmaDNN's Algorithm 1. Or any `optimizer` built
    with rate 1. Source: gradient aggregation, Adaptive SGD paper II; ALGORITHMS F.1,
    F.2.
    """
    given = settings(locals())
    positive(batch_size=batch_size)
    return Strategy(
        schedule.rounds(batch_size=batch_size),
        local.gradient(),
        merge.gradient_aggregation(central(momentum, ema, optimizer, weight_decay)),
        batch_size,
        rate,
        settings=given,
        name="sync_sgd",
    )


def central(
    momentum: float,
    ema: bool,
    optimizer: optax.GradientTransformation | None,
    weight_decay: float = 0.0,
) -> optax.GradientTransformation | None:
    """The optimizer of a centre: the one given, or SGD with either momentum."""
    fraction(momentum=momentum)
    not_negative(weight_decay=weight_decay)
    if optimizer is not None:
        if momentum or ema or weight_decay:
            raise ValueError(
                "give momentum (ema, weight_decay), or an optimizer, not both"
            )
        return optimizer
    if not momentum and not weight_decay:
        return None
    step = optax.sgd(1.0, momentum=momentum or None)
    if ema:
        step = optax.chain(optax.ema(momentum, debias=False), optax.scale(-1.0))
    if not weight_decay:
        return step
    return optax.chain(optax.add_decayed_weights(weight_decay), step)


def elastic_sgd(
    *,
    batch_size: int,
    rate: RateLike,
    steps: int | None = None,
    mega_batch: int | None = None,
    momentum: float = 0.9,
) -> Strategy:
    """K-step averaging: K local steps each, then the mean of the replicas.

        w_i <- w_i - eta g_i,  K times
        w' = mean_i w_i + gamma (w - w_p);   w_p <- w;   w, w_i <- w'

    K is `steps`, or as many as share `mega_batch` examples (default 100 batches) among
    the workers. `momentum` is gamma: 0.9 in HeteroGPU's Elastic SGD (the default), 0 in
    K-AVG. Source: Adaptive SGD paper II, V; ALGORITHMS B. (No elastic force: that is
    EASGD.)
    """
    given = settings(locals())
    positive(batch_size=batch_size, steps=steps, mega_batch=mega_batch)
    fraction(momentum=momentum)
    total = mega_batch or 100 * batch_size

    def share(workers: tuple[Any, ...]) -> int:
        return steps or max(1, round(total / (len(workers) * batch_size)))

    return Strategy(
        schedule.rounds(steps=share, batch_size=batch_size),
        local.sgd(),
        merge.average(momentum=momentum),
        batch_size,
        rate,
        settings=given,
        name="elastic_sgd",
    )
