"""Adaptive SGD (HeteroGPU): dynamic dispatch, batch scaling, normalised merging."""

from collections.abc import Callable
from functools import partial

from hetjax import local, merge, schedule
from hetjax.strategies.types import (
    Strategy,
    fraction,
    not_negative,
    positive,
    settings,
)


def adaptive_sgd(
    *,
    b_max: int,
    rate: float | Callable,
    b_min: float | None = None,
    beta: float | None = None,
    mega_batch: int | None = None,
    delta: float = 0.1,
    pert_thr: float = 0.1,
    momentum: float = 0.9,
    weights: str = "paper",
    reg_measure: str = "l2_over_dim",
    scaling: bool = True,
    bound: str = "skip",
    scale_every: int = 1,
) -> Strategy:
    """Fast workers get more and larger batches until all do equally many updates.

    Within a mega-batch of `mega_batch` examples (default 100 b_max) whoever is idle
    gets a batch of its size b_i, at rate eta b_i / b_max. Then

        w' = sum_i alpha_i w_i + gamma (w - w_p)                    (`merge.normalized`)
        b_i <- b_i + beta (u_i - mean u), within [b_min, b_max]   (`linear_scaling`)

    Defaults: b_min = b_max / 8, beta = b_min / 2, gamma = `momentum` = 0.9. With
    `scaling=False` sizes stay at b_max. Source: Adaptive SGD, Algorithms 1 and 2;
    ALGORITHMS A.
    """
    given = settings(locals())
    b_min = b_max / 8 if b_min is None else b_min
    positive(b_max=b_max, b_min=b_min, mega_batch=mega_batch, scale_every=scale_every)
    not_negative(beta=beta, pert_thr=pert_thr)
    fraction(momentum=momentum, delta=delta)
    if b_min > b_max:
        raise ValueError(f"b_min={b_min} is above b_max={b_max}: give a smaller b_min")
    if bound not in schedule.BOUNDS:
        raise ValueError(f"bound={bound!r}: choose one of {schedule.BOUNDS}")
    rule = partial(
        schedule.linear_scaling,
        b_min=b_min,
        b_max=b_max,
        beta=b_min / 2 if beta is None else beta,
        bound=bound,
    )
    policy = schedule.mega_batch(
        examples=mega_batch or 100 * b_max,
        b_max=b_max,
        scaling=rule if scaling else None,
        scale_every=scale_every,
    )
    merging = merge.normalized(
        delta=delta,
        pert_thr=pert_thr,
        momentum=momentum,
        weights=weights,
        reg_measure=reg_measure,
    )
    return Strategy(
        policy, local.sgd(), merging, b_max, rate, settings=given, name="adaptive_sgd"
    )
