"""CROSSBOW: synchronous model averaging (Koliousis et al., VLDB 2019), and EA-SGD."""

import optax

from hetjax import local, merge, schedule
from hetjax.merge.merge_checks import (
    check_fraction,
    check_not_negative,
    check_positive,
    concrete,
)
from hetjax.schedule import LearningRateLike, Policy
from hetjax.strategies.types import Strategy, factory, settings
from hetjax.strategies.worker_optimizers import local_rule
from hetjax.traced_settings import is_given

CENTERS = ("own", "mean")
RESTARTS = ("never", "on_lr_drop", "on_plateau")


@factory
def sma(
    *,
    batch_size: int,
    learning_rate: LearningRateLike | None = None,
    merge_momentum: float = 0.9,
    alpha: float | None = None,
    local_steps: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    blocking: bool = False,
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
    tuner_absolute: bool = False,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Synchronous model averaging: replicas train, pulled towards their average z.

        c_j = alpha (w_j - z);   w_j <- w_j - eta g_j - c_j
        z <- z + sum_j c_j + mu (z - z_prev)

    every `local_steps` steps (tau in the paper). mu is `merge_momentum`, `alpha` is 1/k
    by default, and z is the model that is evaluated. With `center="mean"` (KungFu's
    simplification) z is the mean of the replicas, which has neither momentum nor
    restarts; the default alpha is 0.1 then. Unless `blocking`, the sum over the devices
    runs in parallel with the next step, as in CROSSBOW; that changes times, never
    results. `momentum` (0.9 in CROSSBOW's benchmarks; `local.heavy_ball`) and
    `weight_decay` are local to each learner (the paper's word for a worker).

    `restart` says when all replicas are reset to z (with `reset_momentum`, all momentum
    is reset, too): "on_lr_drop" (the default), when the learning rate falls by more
    than a quarter; "on_plateau", after `patience` evaluations without a lower training
    loss; or "never" (two levels never restart). Evaluations use the mean of the
    learners' batch statistics, or those of the first learner (`statistics="first"`, as
    in the public code); learners keep their own.

    With `two_level` each group of that many workers has a reference model r_g, and z is
    the average of these (the paper's Section 3.3; the default is the flat form of its
    Sections 4.2 and 5.1):

        r_g <- r_g + sum_j (w_j - r_g) / m - a_g (r_g - z)
        z <- z + sum_g a_g (r_g - z) + mu (z - z_prev)         m per group, G groups

    with a_g = `between` / G. `between=1` would match the flat algorithm, but the two
    levels see each other with a delay of one merge and, with two groups, oscillate with
    growing amplitude (without momentum by 1.21 per merge for m = G = 2); with 0.5 they
    do not.

    `tuner` ("stop_at_first_drop", the rule of the public code, or "paper") begins with
    one learner per device and adds more as long as the throughput grows by more than
    `tuner_threshold`: a fraction or, with `tuner_absolute`, examples/s as in the paper.
    The machine must have the largest number of learners to try
    (`Machine.with_workers_per_device`). `optimizer` is an optax optimizer for every
    learner in place of SGD; its learning rate is built in, or is `learning_rate`
    (`hetjax.strategies.worker_optimizers`). Source: CROSSBOW 3.2 to 3.4;
    docs/algorithms C.
    """
    given = settings(locals())
    check_positive(
        batch_size=batch_size,
        local_steps=local_steps,
        two_level=two_level,
        between=between,
        patience=patience,
        tuner_window=tuner_window,
    )
    check_not_negative(tuner_threshold=tuner_threshold)
    check_fraction(merge_momentum=merge_momentum, momentum=momentum)
    if not _is_share(alpha):
        raise ValueError(f"alpha={alpha}: pass a number from 0 to 1, or None for 1/k")
    _check_parts_fit(restart, center, merge_momentum, two_level, tuner)
    plain = two_level or center == "mean"
    when = "never" if plain else restart or "on_lr_drop"
    rule, learning_rate = _learner(optimizer, learning_rate, momentum, weight_decay)
    restarts = when == "on_plateau" or callable(learning_rate)
    if optimizer is not None and reset_momentum and when != "never" and restarts:
        raise ValueError(
            "a restart resets the momentum of SGD, not an optimizer's state: pass "
            "reset_momentum=False, or restart='never'"
        )
    policy = schedule.rounds(
        local_steps=local_steps,
        batch_size=batch_size,
        blocking=blocking,
        first=schedule.one_per_device if tuner else None,
    )
    if center == "mean":
        root = merge.replica_mean(alpha=0.1 if alpha is None else alpha)
    else:
        root = merge.sma(
            momentum=merge_momentum,
            alpha=None if two_level else alpha,
            beta=between if two_level else 1.0,
            statistics=statistics,
            reset_momentum=reset_momentum,
        )
    merges = root
    if two_level:
        policy = schedule.hierarchical(policy, sizes=two_level, broadcast=False)
        merges = (merge.sma(momentum=0.0, alpha=alpha), root)
    if tuner:
        policy = schedule.tuned_workers(
            policy,
            rule=tuner,
            window=tuner_window,
            threshold=tuner_threshold,
            absolute=tuner_absolute,
        )
    return Strategy(
        _add_restarts(policy, when, learning_rate, patience),
        rule,
        merges,
        batch_size,
        learning_rate,
        settings=given,
        name="sma",
    )


def _is_share(alpha: float | None) -> bool:
    """Whether alpha is None, from 0 to 1, or traced."""
    value = None if alpha is None else concrete(alpha)
    return value is None or bool(0 <= value <= 1)


def _check_parts_fit(
    restart: str | None,
    center: str,
    momentum: float,
    two_level: int | None,
    tuner: str | None,
) -> None:
    """Raises a ValueError for unknown options, or options that exclude each other."""
    if restart is not None and restart not in RESTARTS:
        raise ValueError(f"restart={restart!r}: choose one of {RESTARTS}")
    if two_level and restart not in (None, "never"):
        raise ValueError(
            f"restart={restart!r}: two levels have no restarts: pass 'never'"
        )
    if center not in CENTERS:
        raise ValueError(f"center={center!r}: choose one of {CENTERS}")
    if center == "mean" and (
        is_given(momentum) or two_level or restart not in (None, "never")
    ):
        raise ValueError(
            "center='mean' has no momentum, no restarts and no levels: pass "
            "merge_momentum=0"
        )
    if two_level == 1:
        raise ValueError(
            "two_level=1: a group of one diverges: pass at least 2, or None"
        )
    if tuner and two_level:
        raise ValueError(
            "pass tuner or two_level, not both: a tuned group has no fixed size"
        )


def _learner(
    optimizer: optax.GradientTransformation | None,
    learning_rate: LearningRateLike | None,
    momentum: float,
    weight_decay: float,
) -> tuple[local.LocalUpdate, LearningRateLike]:
    """v <- mu v - eta (g + wd w);   w <- w + v, or an optimizer; and its rate."""
    if is_given(momentum):
        usual = local.heavy_ball(momentum=momentum, weight_decay=weight_decay)
    else:
        usual = local.sgd(weight_decay=weight_decay)
    return local_rule(
        optimizer, learning_rate, usual, momentum=momentum, weight_decay=weight_decay
    )


def _add_restarts(
    policy: Policy, when: str, learning_rate: LearningRateLike, patience: int
) -> Policy:
    if when == "on_plateau":
        return schedule.sma_restarts(policy, schedule.on_plateau(patience=patience))
    if when == "on_lr_drop" and not isinstance(learning_rate, int | float):
        return schedule.sma_restarts(policy, schedule.on_rate_drop(learning_rate))
    return policy  # a constant learning rate never drops


@factory
def easgd_sync(
    *,
    batch_size: int,
    learning_rate: LearningRateLike | None = None,
    beta: float = 0.9,
    alpha: float | None = None,
    local_steps: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    correction: str = "before",
    blocking: bool = False,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Synchronous EASGD: an elastic force between every replica and the center.

        x_i <- x_i - eta g_i(x_i) - alpha (x_i - x~)
        x~ <- x~ + alpha sum_i (x_i - x~)

    every `local_steps` steps (tau in the paper). All right-hand sides are taken before
    the last of these steps (`correction="after"`: after it, as in torch-distlearn).
    `alpha` is `beta` / k by default. `momentum` is local to each replica, as in `sma`;
    the center has none, as in CROSSBOW's EA-SGD. `optimizer` is as in `sma`. Source:
    EASGD (Zhang et al. 2015); docs/algorithms G.1, G.4.
    """
    given = settings(locals())
    check_positive(
        batch_size=batch_size, local_steps=local_steps, beta=beta, alpha=alpha
    )
    check_fraction(momentum=momentum)
    rule, learning_rate = _learner(optimizer, learning_rate, momentum, weight_decay)
    return Strategy(
        schedule.rounds(
            local_steps=local_steps, batch_size=batch_size, blocking=blocking
        ),
        rule,
        merge.sma(momentum=0.0, alpha=alpha, beta=beta, correction=correction),
        batch_size,
        learning_rate,
        settings=given,
        name="easgd_sync",
    )
