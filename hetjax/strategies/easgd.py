"""Asynchronous EASGD and EAMSGD (Zhang et al. 2015): an elastic force to a center."""

import optax

from hetjax import local, merge, schedule
from hetjax.merge.merge_checks import check_fraction, check_not_negative, check_positive
from hetjax.schedule import LearningRateLike
from hetjax.strategies.types import Strategy, factory, settings
from hetjax.strategies.worker_optimizers import sgd_or
from hetjax.traced_settings import is_given


@factory
def easgd(
    *,
    batch_size: int,
    learning_rate: LearningRateLike | None = None,
    local_steps: int = 1,
    beta: float = 0.9,
    alpha: float | None = None,
    max_staleness: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Asynchronous EASGD: an elastic move between a worker and the center.

        d = alpha (x - x~);   x~ <- x~ + d;   x <- x - eta g(x) - d

    every `local_steps` steps (tau in the paper), with g at x before the move. `alpha`
    is `beta` / p for p workers by default. A worker that is more than `max_staleness`
    local rounds ahead of the slowest one waits after its move. `optimizer` is an optax
    optimizer for every worker in place of SGD; its learning rate is built in, or is
    `learning_rate` (`hetjax.strategies.worker_optimizers`). Source: EASGD (Zhang et al.
    2015), Algorithm 1; docs/algorithms G.2.
    """
    given = settings(locals())
    rule, learning_rate = sgd_or(optimizer, learning_rate)
    return _elastic(
        rule, batch_size, learning_rate, local_steps, beta, alpha, max_staleness
    )._replace(settings=given, name="easgd")


@factory
def eamsgd(
    *,
    batch_size: int,
    learning_rate: LearningRateLike,
    local_steps: int = 1,
    beta: float = 0.9,
    alpha: float | None = None,
    momentum: float = 0.99,
    weight_decay: float = 0.0,
    lr_decay: float = 0.0,
    lr_decay_power: float = 1.0,
    max_staleness: int | None = None,
) -> Strategy:
    """EASGD with Nesterov momentum at every worker: EAMSGD.

        v <- delta v - eta_t g(x + delta v);   x <- x + v     (`local.eamsgd_nesterov`)
        eta_t = eta / (1 + t lr_decay) ** lr_decay_power

    where t counts the steps of this worker only (`lr_decay` and `lr_decay_power` are
    lrd and lrp in the authors' code). delta is `momentum`; the center has none. The
    other settings are those of `easgd`. Source: EASGD (Zhang et al. 2015), Algorithm 2;
    docs/algorithms G.3.
    """
    given = settings(locals())
    check_fraction(momentum=momentum)
    check_not_negative(weight_decay=weight_decay, lr_decay=lr_decay)
    check_not_negative(lr_decay_power=lr_decay_power)
    rule = local.eamsgd_nesterov(momentum=momentum, weight_decay=weight_decay)
    if is_given(lr_decay):
        rule = local.with_lr_decay(rule, lr_decay, lr_decay_power)
    return _elastic(
        rule, batch_size, learning_rate, local_steps, beta, alpha, max_staleness
    )._replace(settings=given, name="eamsgd")


def _elastic(
    rule: local.LocalUpdate,
    batch_size: int,
    learning_rate: LearningRateLike,
    local_steps: int,
    beta: float,
    alpha: float | None,
    max_staleness: int | None,
) -> Strategy:
    check_positive(
        batch_size=batch_size, local_steps=local_steps, beta=beta, alpha=alpha
    )
    return Strategy(
        schedule.asynchronous(
            batch_size=batch_size,
            local_steps=local_steps,
            max_staleness=max_staleness,
            refetch=False,
        ),
        rule,
        merge.easgd(alpha=alpha, beta=beta),
        batch_size,
        learning_rate,
    )
