"""The baselines of every paper: sequential, synchronous and K-step averaging SGD."""

from typing import Any

import optax

from hetjax import local, merge, schedule
from hetjax.merge.merge_checks import check_fraction, check_not_negative, check_positive
from hetjax.schedule import LearningRateLike
from hetjax.strategies.types import Strategy, factory, settings
from hetjax.strategies.worker_optimizers import sgd_or
from hetjax.traced_settings import is_given


@factory
def sequential_sgd(
    *,
    batch_size: int,
    learning_rate: LearningRateLike | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Mini-batch SGD on the machine's fastest worker; the others stay idle.

        w <- w - eta g      (`local.sgd` with `momentum` and `weight_decay`)

    `optimizer` is an optax optimizer in place of SGD; its learning rate is built in, or
    is `learning_rate` (`hetjax.strategies.worker_optimizers`).
    """
    given = settings(locals())
    check_positive(batch_size=batch_size)
    check_fraction(momentum=momentum)
    rule, learning_rate = sgd_or(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    return Strategy(
        schedule.rounds(batch_size=batch_size, workers=schedule.fastest(batch_size)),
        rule,
        merge.average(),
        batch_size,
        learning_rate,
        settings=given,
        name="sequential_sgd",
    )


@factory
def slide(*, batch_size: int = 256, learning_rate: LearningRateLike = 1e-4) -> Strategy:
    """SLIDE's training: Adam on the machine's fastest worker, and hashed labels.

    The task must have SLIDE's output layer: classification(..., output="slide"). In the
    paper the one worker is a CPU, such as that of the machine "slide-amazon670k". Adam
    updates all rows, as in the public code. A baseline of Adaptive SGD. Source:
    docs/algorithms H.
    """
    given = settings(locals())
    check_positive(batch_size=batch_size)
    return Strategy(
        schedule.rounds(batch_size=batch_size, workers=schedule.fastest(batch_size)),
        local.from_optax(optax.adam(1.0)),
        merge.average(),
        batch_size,
        learning_rate,
        settings=given,
        name="slide",
        output="slide",
    )


@factory
def sync_sgd(
    *,
    batch_size: int,
    learning_rate: LearningRateLike,
    server_momentum: float = 0.0,
    ema: bool = False,
    weight_decay: float = 0.0,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Synchronous SGD: one central step on the mean gradient of all workers.

        g = sum_i n_i g_i / sum_i n_i;   z <- mu z + g + wd w;   w <- w - eta z

    `batch_size` is that of each worker, mu is `server_momentum` and wd `weight_decay`.
    With `ema` the momentum is z <- mu z + (1 - mu) (g + wd w): MagmaDNN's Algorithm 1.
    `optimizer` is an optax optimizer in place of these settings, built with learning
    rate 1. Source: gradient aggregation in the Adaptive SGD paper, II; docs/algorithms
    F.1, F.2.
    """
    given = settings(locals())
    check_positive(batch_size=batch_size)
    return Strategy(
        schedule.rounds(batch_size=batch_size),
        local.gradient(),
        merge.gradient_aggregation(
            central(server_momentum, ema, optimizer, weight_decay)
        ),
        batch_size,
        learning_rate,
        settings=given,
        name="sync_sgd",
    )


def central(
    momentum: float,
    ema: bool,
    optimizer: optax.GradientTransformation | None,
    weight_decay: float = 0.0,
) -> optax.GradientTransformation | None:
    """The center's optimizer: `optimizer`, or SGD with one kind of momentum."""
    check_fraction(server_momentum=momentum)
    check_not_negative(weight_decay=weight_decay)
    if optimizer is not None:
        if ema or is_given(momentum) or is_given(weight_decay):
            raise ValueError(
                "pass server_momentum (ema, weight_decay), or an optimizer, not both"
            )
        return optimizer
    if not is_given(momentum) and not is_given(weight_decay):
        return None
    step = optax.sgd(1.0, momentum=momentum if is_given(momentum) else None)
    if ema:
        step = optax.chain(optax.ema(momentum, debias=False), optax.scale(-1.0))
    if not is_given(weight_decay):
        return step
    return optax.chain(optax.add_decayed_weights(weight_decay), step)


@factory
def elastic_sgd(
    *,
    batch_size: int,
    learning_rate: LearningRateLike | None = None,
    local_steps: int | None = None,
    mega_batch: int | None = None,
    merge_momentum: float = 0.9,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Elastic SGD in HeteroGPU's sense: K-step averaging, not EASGD's elastic force.

        w_i <- w_i - eta g_i,  K times
        w' = mean_i w_i + gamma (w - w_p);   w_p <- w;   w, w_i <- w'

    K is `local_steps`, or the number of steps that divides `mega_batch` examples
    (default: 100 batches) among the workers. gamma is `merge_momentum`: 0.9 in
    HeteroGPU's Elastic SGD (the default), 0 in K-AVG. For the elastic force see `easgd`
    and `easgd_sync`. `optimizer` is an optax optimizer for every worker in place of
    SGD; its learning rate is built in, or is `learning_rate`
    (`hetjax.strategies.worker_optimizers`). Source: Adaptive SGD paper II, V;
    docs/algorithms B.
    """
    given = settings(locals())
    check_positive(
        batch_size=batch_size, local_steps=local_steps, mega_batch=mega_batch
    )
    check_fraction(merge_momentum=merge_momentum)
    rule, learning_rate = sgd_or(optimizer, learning_rate)
    total = mega_batch or 100 * batch_size

    def share(workers: tuple[Any, ...]) -> int:
        return local_steps or max(1, round(total / (len(workers) * batch_size)))

    return Strategy(
        schedule.rounds(local_steps=share, batch_size=batch_size),
        rule,
        merge.average(momentum=merge_momentum),
        batch_size,
        learning_rate,
        settings=given,
        name="elastic_sgd",
    )
