"""CROSSBOW: synchronous model averaging (Koliousis et al., VLDB 2019), and EA-SGD."""

from typing import Annotated, Literal

from hetjax import merge, schedule
from hetjax.arguments import Bounds, Count, Fraction, NotNegative, Positive, Share
from hetjax.merge.sma import Correction, Statistics
from hetjax.optimizers import Optimizer
from hetjax.schedule import LearningRateLike, Policy
from hetjax.schedule.policies.tuned_workers import Tuner
from hetjax.strategies.step_rules import learner
from hetjax.strategies.types import Strategy, factory
from hetjax.traced_settings import is_given

Restart = Literal["never", "on_lr_drop", "on_plateau"]


@factory
def sma(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    merge_momentum: Fraction = 0.9,
    alpha: Share | None = None,
    local_steps: Count = 1,
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    blocking: bool = False,
    restart: Restart | None = None,
    reset_momentum: bool = True,
    statistics: Statistics = "mean",
    center: Literal["own", "mean"] = "own",
    patience: Count = 5,
    two_level: Annotated[int, Bounds(low=2)] | None = None,
    between: Positive = 0.5,
    tuner: Tuner | None = None,
    tuner_window: Count = 10,
    tuner_threshold: NotNegative = 0.1,
    tuner_absolute: bool = False,
    optimizer: Optimizer | None = None,
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
    `weight_decay` are local to each learner (the paper's word for a worker), or there
    is an `optimizer` in their place (`hetjax.strategies`).

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

    `tuner` chooses the number of learners per device, beginning with one, as in
    `schedule.tuned_workers`; `tuner_threshold` is a fraction of the throughput or, with
    `tuner_absolute`, examples/s. The machine must have the largest number of learners
    to try (`Machine.with_workers_per_device`). Source: CROSSBOW 3.2 to 3.4;
    docs/algorithms C.
    """
    _check_parts_fit(restart, center, merge_momentum, two_level, tuner)
    update, learning_rate = learner(
        optimizer,
        learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        heavy_ball=True,
    )
    policy = schedule.rounds(
        local_steps=local_steps,
        batch_size=batch_size,
        blocking=blocking,
        first=schedule.one_per_device if tuner else None,
    )
    if center == "mean":
        merges = merge.replica_mean(alpha=0.1 if alpha is None else alpha)
    else:
        merges = merge.sma(
            momentum=merge_momentum,
            alpha=None if two_level else alpha,
            beta=between if two_level else 1.0,
            statistics=statistics,
            reset_momentum=reset_momentum,
        )
    if two_level:
        policy = schedule.hierarchical(policy, sizes=two_level, broadcast=False)
        merges = (merge.sma(momentum=0.0, alpha=alpha), merges)
    if tuner:
        policy = schedule.tuned_workers(
            policy,
            rule=tuner,
            window=tuner_window,
            threshold=tuner_threshold,
            absolute=tuner_absolute,
        )
    if not two_level and center == "own":
        resets = reset_momentum and optimizer is not None
        policy = _with_restarts(policy, restart, learning_rate, patience, resets)
    return Strategy(policy, update, merges, batch_size, learning_rate)


def _check_parts_fit(
    restart: str | None,
    center: str,
    momentum: float,
    two_level: int | None,
    tuner: str | None,
) -> None:
    """Raises a ValueError for options that exclude each other."""
    restarts = restart not in (None, "never")
    if two_level and restarts:
        raise ValueError(
            f"restart={restart!r}: two levels have no restarts: pass 'never'"
        )
    if center == "mean" and (is_given(momentum) or two_level or restarts):
        raise ValueError(
            "center='mean' has no momentum, no restarts and no levels: pass "
            "merge_momentum=0"
        )
    if tuner and two_level:
        raise ValueError(
            "pass tuner or two_level, not both: a tuned group has no fixed size"
        )


def _with_restarts(
    policy: Policy,
    restart: Restart | None,
    learning_rate: LearningRateLike,
    patience: int,
    resets_optimizer: bool,
) -> Policy:
    if restart == "on_plateau":
        condition = schedule.on_plateau(patience=patience)
    elif restart == "never" or isinstance(learning_rate, int | float):
        return policy  # a constant learning rate never drops
    else:
        condition = schedule.on_rate_drop(learning_rate)
    if resets_optimizer:
        raise ValueError(
            "a restart resets the momentum of SGD, not an optimizer's state: pass "
            "reset_momentum=False, or restart='never'"
        )
    return schedule.sma_restarts(policy, condition)


@factory
def easgd_sync(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    beta: Positive = 0.9,
    alpha: Positive | None = None,
    local_steps: Count = 1,
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    correction: Correction = "before",
    blocking: bool = False,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Synchronous EASGD: an elastic force between every replica and the center.

        x_i <- x_i - eta g_i(x_i) - alpha (x_i - x~)
        x~ <- x~ + alpha sum_i (x_i - x~)

    every `local_steps` steps (tau in the paper). All right-hand sides are taken before
    the last of these steps (`correction="after"`: after it, as in torch-distlearn).
    `alpha` is `beta` / k by default. The center has no momentum, as in CROSSBOW's
    EA-SGD; the other settings are those of `sma`. Source: EASGD (Zhang et al. 2015);
    docs/algorithms G.1, G.4.
    """
    update, learning_rate = learner(
        optimizer,
        learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        heavy_ball=True,
    )
    policy = schedule.rounds(
        local_steps=local_steps, batch_size=batch_size, blocking=blocking
    )
    merging = merge.sma(momentum=0.0, alpha=alpha, beta=beta, correction=correction)
    return Strategy(policy, update, merging, batch_size, learning_rate)
