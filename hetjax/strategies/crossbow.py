"""CROSSBOW: synchronous model averaging (Koliousis et al., VLDB 2019)."""

from collections.abc import Callable

from hetjax import local, merge, schedule
from hetjax.strategies.types import Strategy, fraction, positive, settings


def sma(
    *,
    batch_size: int,
    rate: float | Callable,
    momentum: float = 0.9,
    alpha: float | None = None,
    tau: int = 1,
    local_momentum: float = 0.0,
    weight_decay: float = 0.0,
    overlap: bool = True,
) -> Strategy:
    """Synchronous model averaging: replicas train on, pulled towards their average z.

        c_j = alpha (w_j - z);   w_j <- w_j - eta g_j - c_j
        z <- z + sum_j c_j + mu (z - z_prev)

    every `tau` steps; `momentum` is mu, `alpha` is 1/k by default. z is evaluated.
    `overlap`: the sum over devices runs beside the next step, as CROSSBOW's does; it
    changes seconds, never numbers. Source: CROSSBOW 3.2; ALGORITHMS C.1, C.3, C.4.
    """
    given = settings(locals())
    positive(batch_size=batch_size, tau=tau)
    fraction(momentum=momentum, local_momentum=local_momentum)
    if alpha is not None and not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha}: give a number from 0 to 1, or None for 1/k")
    return Strategy(
        schedule.rounds(steps=tau, batch_size=batch_size, blocking=not overlap),
        local.sgd(momentum=local_momentum, weight_decay=weight_decay),
        merge.sma(momentum=momentum, alpha=alpha),
        batch_size,
        rate,
        settings=given,
        name="sma",
    )
