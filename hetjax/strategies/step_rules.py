"""What steps are of: SGD, or an optax optimizer at workers or center, and its rate."""

from collections.abc import Callable
from typing import Any

import optax

from hetjax import local, merge
from hetjax.arguments import shown
from hetjax.local import LocalUpdate
from hetjax.merge import Merge, WorkerStats
from hetjax.optimizers import Optimizer
from hetjax.schedule import LearningRateLike
from hetjax.traced_settings import is_given


def learner(
    optimizer: Optimizer | None,
    learning_rate: LearningRateLike | None,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    heavy_ball: bool = False,
) -> tuple[LocalUpdate, LearningRateLike]:
    """A worker's SGD with these settings, or the optimizer; and the learning rate."""
    own: dict[str, Any] = {"momentum": momentum, "weight_decay": weight_decay}
    rate = rate_of(optimizer, learning_rate, **own)
    if optimizer is not None:
        return local.from_optax(optimizer), rate
    if heavy_ball and is_given(momentum):
        return local.heavy_ball(**own), rate
    return local.sgd(**own), rate


def center_step(
    optimizer: Optimizer | None,
    learning_rate: LearningRateLike | None,
    *,
    server_momentum: float,
    weight_decay: float,
    ema: bool = False,
    scale: Callable[[WorkerStats], Any] | None = None,
) -> tuple[Merge, LearningRateLike]:
    """The merge of gradients by SGD with these settings, or by the optimizer.

    Also returns the learning rate. With `ema`, the momentum is an average. `scale` is
    that of `merge.gradient_aggregation`.
    """
    own = {"server_momentum": server_momentum, "weight_decay": weight_decay}
    rate = rate_of(optimizer, learning_rate, ema=ema, **own)
    if optimizer is not None:
        return merge.gradient_aggregation(optimizer, scale=scale), rate
    given = is_given(server_momentum)
    step = optax.sgd(1.0, momentum=server_momentum if given else None)
    if ema and (given or is_given(weight_decay)):
        step = optax.chain(optax.ema(server_momentum, debias=False), optax.scale(-1.0))
    if is_given(weight_decay):
        step = optax.chain(optax.add_decayed_weights(weight_decay), step)
    return merge.gradient_aggregation(step, scale=scale), rate


def rate_of(
    optimizer: Optimizer | None, learning_rate: LearningRateLike | None, **of_sgd: Any
) -> LearningRateLike:
    """The strategy's learning rate: 1 with an optimizer that has its own.

    Whatever else scales learning rates, such as smaller batches, multiplies that of the
    optimizer. Errors: a ValueError if both learning rates or neither are passed, or a
    setting `of_sgd` with an optimizer.
    """
    if optimizer is None:
        if learning_rate is None:
            raise ValueError(
                "learning_rate is missing: pass one, or an optimizer= that has its own"
            )
        return learning_rate
    if given := [f"{k}={v!r}" for k, v in of_sgd.items() if is_given(v)]:
        raise ValueError(
            f"pass {', '.join(given)} or an optimizer, not both: the optimizer has its "
            "own"
        )
    if callable(optimizer):
        if learning_rate is None:
            name = getattr(optimizer, "__name__", shown(optimizer))
            raise ValueError(
                f"learning_rate is missing: optimizer={name} is a function of it; "
                "pass one, or an optimizer with its own, such as optax.adam(1e-3)"
            )
        return learning_rate
    if learning_rate is not None:
        raise ValueError(
            f"learning_rate={shown(learning_rate)}: the optimizer has a learning rate "
            "of its own; leave one out: pass optimizer= alone, or a function of the "
            "learning rate, such as optimizer=optax.adam"
        )
    return 1.0
