"""An optax optimizer in place of SGD at every worker, for the argument `optimizer`.

Either its learning rate is built in, a number or an optax schedule over the worker's
own steps, and the strategy gets none; or it is built with learning rate 1, and the
strategy's `learning_rate` (a number, or a schedule over the whole run) multiplies it.
"""

from typing import Any

import optax

from hetjax import local
from hetjax.local import LocalUpdate
from hetjax.merge.merge_checks import check_not_negative
from hetjax.optimizer_needs import check_worker_optimizer
from hetjax.schedule import LearningRateLike
from hetjax.unit_learning_rate import check_unit_rate


def local_rule(
    optimizer: optax.GradientTransformation | optax.MultiSteps | None,
    learning_rate: LearningRateLike | None,
    usual: LocalUpdate,
    **others: Any,
) -> tuple[LocalUpdate, LearningRateLike]:
    """Return the local update, `usual` without an optimizer, and the learning rate.

    If the optimizer has its own learning rate, the strategy's is 1; a strategy's
    changes of learning rates, such as scaling them with batch sizes, multiply the
    optimizer's. `others` are settings of SGD that an optimizer has itself. Errors: a
    ValueError if both learning rates or neither are passed, or one of `others` with an
    optimizer.
    """
    check_not_negative(**others)
    if optimizer is None:
        if learning_rate is None:
            raise ValueError(
                "learning_rate is missing: pass one, or an optimizer= that has its own"
            )
        return usual, learning_rate
    if isinstance(optimizer, optax.MultiSteps):
        optimizer = optimizer.gradient_transformation()
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(
            f"optimizer={optimizer!r}: pass an optax optimizer, such as "
            "optax.adam(1e-3)"
        )
    check_worker_optimizer(optimizer, "optimizer=", sparse_updates=False)
    given = [f"{name}={value!r}" for name, value in others.items() if value]
    if given:
        raise ValueError(
            f"pass {', '.join(given)} or an optimizer, not both: the optimizer has its "
            "own"
        )
    if learning_rate is None:
        return local.from_optax(optimizer, own_rate=True), 1.0
    check_unit_rate(optimizer, "optimizer= with learning_rate=")
    return local.from_optax(optimizer), learning_rate


def sgd_or(
    optimizer: optax.GradientTransformation | optax.MultiSteps | None,
    learning_rate: LearningRateLike | None,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> tuple[LocalUpdate, LearningRateLike]:
    """`local_rule` where SGD with these settings is usual."""
    usual = local.sgd(momentum=momentum, weight_decay=weight_decay)
    return local_rule(
        optimizer, learning_rate, usual, momentum=momentum, weight_decay=weight_decay
    )
