"""Asynchronous EASGD and EAMSGD (Zhang et al. 2015): an elastic force to a center."""

from hetjax import local, merge, schedule
from hetjax.arguments import Count, Fraction, NotNegative, Positive, Whole
from hetjax.optimizers import Optimizer
from hetjax.schedule import LearningRateLike
from hetjax.strategies.step_rules import learner
from hetjax.strategies.types import Strategy, factory
from hetjax.traced_settings import is_given


@factory
def easgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Count = 1,
    beta: Positive = 0.9,
    alpha: Positive | None = None,
    max_staleness: Whole | None = None,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Asynchronous EASGD: an elastic move between a worker and the center.

        d = alpha (x - x~);   x~ <- x~ + d;   x <- x - eta g(x) - d

    every `local_steps` steps (tau in the paper), with g at x before the move. `alpha`
    is `beta` / p for p workers by default. A worker that is more than `max_staleness`
    local rounds ahead of the slowest one waits after its move. `optimizer` is in place
    of SGD (`hetjax.strategies`). Source: EASGD (Zhang et al. 2015), Algorithm 1;
    docs/algorithms G.2.
    """
    update, learning_rate = learner(optimizer, learning_rate)
    policy = _alone(batch_size, local_steps, max_staleness)
    merging = merge.easgd(alpha=alpha, beta=beta)
    return Strategy(policy, update, merging, batch_size, learning_rate)


@factory
def eamsgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    local_steps: Count = 1,
    beta: Positive = 0.9,
    alpha: Positive | None = None,
    momentum: Fraction = 0.99,
    weight_decay: NotNegative = 0.0,
    lr_decay: NotNegative = 0.0,
    lr_decay_power: NotNegative = 1.0,
    max_staleness: Whole | None = None,
) -> Strategy:
    """EASGD with Nesterov momentum at every worker: EAMSGD.

        v <- delta v - eta_t g(x + delta v);   x <- x + v     (`local.eamsgd_nesterov`)
        eta_t = eta / (1 + t lr_decay) ** lr_decay_power

    where t counts the steps of this worker only (`lr_decay` and `lr_decay_power` are
    lrd and lrp in the authors' code). delta is `momentum`; the center has none. The
    other settings are those of `easgd`. Source: EASGD (Zhang et al. 2015), Algorithm 2;
    docs/algorithms G.3.
    """
    update = local.eamsgd_nesterov(momentum=momentum, weight_decay=weight_decay)
    if is_given(lr_decay):
        update = local.with_lr_decay(update, lr_decay, lr_decay_power)
    policy = _alone(batch_size, local_steps, max_staleness)
    merging = merge.easgd(alpha=alpha, beta=beta)
    return Strategy(policy, update, merging, batch_size, learning_rate)


def _alone(
    batch_size: int, local_steps: int, max_staleness: int | None
) -> schedule.Policy:
    return schedule.asynchronous(
        batch_size=batch_size,
        local_steps=local_steps,
        max_staleness=max_staleness,
        refetch=False,
    )
