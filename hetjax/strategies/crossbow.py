"""CROSSBOW: synchronous model averaging (Koliousis et al., VLDB 2019), and EA-SGD."""

from hetjax import local, merge, schedule
from hetjax.schedule import Policy, RateLike
from hetjax.strategies.types import Strategy, fraction, positive, settings

CENTERS = ("own", "mean")
RESTARTS = ("never", "on_lr_drop", "on_plateau")


def sma(
    *,
    batch_size: int,
    rate: RateLike,
    momentum: float = 0.9,
    alpha: float | None = None,
    tau: int = 1,
    local_momentum: float = 0.0,
    weight_decay: float = 0.0,
    overlap: bool = True,
    restart: str | None = None,
    reset_momentum: bool = True,
    statistics: str = "mean",
    center: str = "own",
    patience: int = 5,
    two_level: int | None = None,
    between: float = 0.5,
    tuner: str | None = None,
    tuner_window: int = 10,
    tuner_threshold: float = 0.1,
) -> Strategy:
    """Synchronous model averaging: replicas train on, pulled towards their average z.

        c_j = alpha (w_j - z);   w_j <- w_j - eta g_j - c_j
        z <- z + sum_j c_j + mu (z - z_prev)

    every `tau` steps; `momentum` is mu, `alpha` is 1/k by default. z is evaluated. With
    `center="mean"` (KungFu's simplification) z is the replicas' mean, which has neither
    momentum nor restarts; alpha is 0.1 then.
    `overlap`: the sum over devices runs beside the next step, as CROSSBOW's does; it
    changes seconds, never numbers. `local_momentum` is each learner's own
    (`local.polyak`; 0.9 in CROSSBOW's benchmarks), as `weight_decay` is.

    `restart` begins the averaging anew from z (with `reset_momentum`, without any
    momentum): "on_lr_drop" (the default), when the rate falls by a quarter or more,
    "on_plateau", after `patience` evaluations whose training loss is no better, or
    "never" (two levels never restart). Batch statistics are evaluated as their mean
    over learners, or the first one's (`statistics="first"`, the public code); learners
    keep their own.

    `two_level` groups of so many workers have a reference model r_g each, whose average
    z is (the paper's Section 3.3; the default is its Sections 4.2 and 5.1, flat):

        r_g <- r_g + sum_j (w_j - r_g) / m - a_g (r_g - z)
        z <- z + sum_g a_g (r_g - z) + mu (z - z_prev)         m per group, G groups

    with a_g = `between` / G. 1 would be the flat algorithm's pull, but the two levels
    see each other one merge late, and then swing apart where there are two groups
    (without momentum by 1.21 a merge for m = G = 2); with 0.5 none does.

    `tuner` ("stop_at_first_drop", the code's rule, or "paper") begins with one learner
    per device and adds others while throughput grows; give the machine as many as may
    be (`Machine.with_learners`). Source: CROSSBOW 3.2 to 3.4; ALGORITHMS C.
    """
    given = settings(locals())
    positive(batch_size=batch_size, tau=tau, two_level=two_level, between=between)
    fraction(momentum=momentum, local_momentum=local_momentum)
    if alpha is not None and not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha}: give a number from 0 to 1, or None for 1/k")
    _check_parts_fit(restart, center, momentum, two_level, tuner)
    plain = two_level or center == "mean"
    when = "never" if plain else restart or "on_lr_drop"
    policy = schedule.rounds(
        steps=tau,
        batch_size=batch_size,
        blocking=not overlap,
        first=schedule.one_per_device if tuner else None,
    )
    if center == "mean":
        root = merge.replica_mean(alpha=0.1 if alpha is None else alpha)
    else:
        root = merge.sma(
            momentum=momentum,
            alpha=None if two_level else alpha,
            beta=between if two_level else 1.0,
            statistics=statistics,
            reset_momentum=reset_momentum,
        )
    merges = root
    if two_level:
        policy = schedule.groups(policy, sizes=two_level, restart=False)
        merges = (merge.sma(momentum=0.0, alpha=alpha), root)
    if tuner:
        policy = schedule.tuned_learners(
            policy, rule=tuner, window=tuner_window, threshold=tuner_threshold
        )
    return Strategy(
        _restarting(policy, when, rate, patience),
        _learner(local_momentum, weight_decay),
        merges,
        batch_size,
        rate,
        settings=given,
        name="sma",
    )


def _check_parts_fit(
    restart: str | None,
    center: str,
    momentum: float,
    two_level: int | None,
    tuner: str | None,
) -> None:
    """A ValueError for an unknown word, and for options that exclude each other."""
    if restart is not None and restart not in RESTARTS:
        raise ValueError(f"restart={restart!r}: choose one of {RESTARTS}")
    if two_level and restart not in (None, "never"):
        raise ValueError(f"restart={restart!r}: two levels have none; give 'never'")
    if center not in CENTERS:
        raise ValueError(f"center={center!r}: choose one of {CENTERS}")
    if center == "mean" and (momentum or two_level or restart not in (None, "never")):
        raise ValueError(
            "center='mean' has no momentum, no restarts and no levels: give momentum=0"
        )
    if two_level == 1:
        raise ValueError(
            "two_level=1: a group of one swings apart; give at least 2, or None"
        )
    if tuner and two_level:
        raise ValueError("give tuner or two_level: a tuned group has no fixed size")


def _learner(momentum: float, weight_decay: float) -> local.LocalRule:
    """v <- mu v - eta (g + wd w);   w <- w + v"""
    if not momentum:
        return local.sgd(weight_decay=weight_decay)
    return local.polyak(momentum=momentum, weight_decay=weight_decay)


def _restarting(policy: Policy, when: str, rate: RateLike, patience: int) -> Policy:
    if when == "on_plateau":
        return schedule.restarting(policy, schedule.on_plateau(patience=patience))
    if when == "on_lr_drop" and not isinstance(rate, int | float):
        return schedule.restarting(policy, schedule.on_rate_drop(rate))
    return policy  # a rate that stays never drops


def easgd_sync(
    *,
    batch_size: int,
    rate: RateLike,
    beta: float = 0.9,
    alpha: float | None = None,
    tau: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    correction: str = "before",
    overlap: bool = True,
) -> Strategy:
    """Synchronous EASGD: an elastic force between every replica and the centre.

        x_i <- x_i - eta g_i(x_i) - alpha (x_i - x~)
        x~ <- x~ + alpha sum_i (x_i - x~)

    every `tau` steps, all right-hand sides before the last one (`correction="after"`:
    after it, torch-distlearn's order). alpha = `beta` / k unless given. `momentum` is
    each replica's, as in `sma` (CROSSBOW's EA-SGD keeps it; there is none on the
    centre). Source: EASGD (Zhang et al. 2015); ALGORITHMS G.1, G.4.
    """
    given = settings(locals())
    positive(batch_size=batch_size, tau=tau, beta=beta, alpha=alpha)
    fraction(momentum=momentum)
    return Strategy(
        schedule.rounds(steps=tau, batch_size=batch_size, blocking=not overlap),
        _learner(momentum, weight_decay),
        merge.sma(momentum=0.0, alpha=alpha, beta=beta, correction=correction),
        batch_size,
        rate,
        settings=given,
        name="easgd_sync",
    )
