"""The baselines of every paper: sequential, synchronous and K-step averaging SGD."""

import optax

from hetjax import local, merge, schedule
from hetjax.arguments import Count, Fraction, NotNegative
from hetjax.optimizers import Optimizer
from hetjax.schedule import LearningRateLike
from hetjax.strategies.step_rules import center_step, learner
from hetjax.strategies.types import Strategy, factory


@factory
def sequential_sgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Mini-batch SGD on the machine's fastest worker; the others stay idle.

        w <- w - eta g      (`local.sgd` with `momentum` and `weight_decay`)

    `optimizer` is in place of SGD (`hetjax.strategies`).
    """
    update, learning_rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    policy = schedule.rounds(
        batch_size=batch_size, workers=schedule.fastest(batch_size)
    )
    return Strategy(policy, update, merge.average(), batch_size, learning_rate)


@factory
def slide(
    *, batch_size: Count = 256, learning_rate: LearningRateLike = 1e-4
) -> Strategy:
    """SLIDE's training: Adam on the machine's fastest worker, and hashed labels.

    The task must have SLIDE's output layer: classification(..., output="slide"). In the
    paper the one worker is a CPU, such as that of the machine "slide-amazon670k". Adam
    updates all rows, as in the public code. A baseline of Adaptive SGD. Source:
    docs/algorithms H.
    """
    update = local.from_optax(optax.adam)
    policy = schedule.rounds(
        batch_size=batch_size, workers=schedule.fastest(batch_size)
    )
    strategy = Strategy(policy, update, merge.average(), batch_size, learning_rate)
    return strategy._replace(output="slide")


@factory
def sync_sgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    server_momentum: Fraction = 0.0,
    ema: bool = False,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Synchronous SGD: one central step on the mean gradient of all workers.

        g = sum_i n_i g_i / sum_i n_i;   z <- mu z + g + wd w;   w <- w - eta z

    `batch_size` is that of each worker, mu is `server_momentum` and wd `weight_decay`.
    With `ema` the momentum is z <- mu z + (1 - mu) (g + wd w): MagmaDNN's Algorithm 1.
    `optimizer` is in place of this step (`hetjax.strategies`). Source: gradient
    aggregation in the Adaptive SGD paper, II; docs/algorithms F.1, F.2.
    """
    merging, learning_rate = center_step(
        optimizer,
        learning_rate,
        server_momentum=server_momentum,
        weight_decay=weight_decay,
        ema=ema,
    )
    policy = schedule.rounds(batch_size=batch_size)
    return Strategy(policy, local.gradient(), merging, batch_size, learning_rate)


@factory
def elastic_sgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Count | None = None,
    mega_batch: Count | None = None,
    merge_momentum: Fraction = 0.9,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Elastic SGD in HeteroGPU's sense: K-step averaging, not EASGD's elastic force.

        w_i <- w_i - eta g_i,  K times
        w' = mean_i w_i + gamma (w - w_p);   w_p <- w;   w, w_i <- w'

    K is `local_steps`, or the number of steps that divides `mega_batch` examples
    (default: 100 batches) among the workers. gamma is `merge_momentum`: 0.9 in
    HeteroGPU's Elastic SGD (the default), 0 in K-AVG. For the elastic force see `easgd`
    and `easgd_sync`. `optimizer` is in place of SGD (`hetjax.strategies`). Source:
    Adaptive SGD paper II, V; docs/algorithms B.
    """
    update, learning_rate = learner(optimizer, learning_rate)
    total = mega_batch or 100 * batch_size

    def share(workers):
        return local_steps or max(1, round(total / (len(workers) * batch_size)))

    policy = schedule.rounds(local_steps=share, batch_size=batch_size)
    merging = merge.average(momentum=merge_momentum)
    return Strategy(policy, update, merging, batch_size, learning_rate)
