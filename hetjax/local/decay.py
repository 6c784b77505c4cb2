"""A learning rate that falls with a worker's own steps, around any local update."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax.local.updates import LocalUpdate
from hetjax.replica import Replica
from hetjax.traced_settings import memoized
from hetjax.tree import OptState, Params


class DecayState(NamedTuple):
    """The steps of one worker, and the state of the local update that decays."""

    step: jax.Array  # int32 []
    inner: OptState


@memoized  # strategies with equal local updates share their compiled programs
def with_lr_decay(
    local_update: LocalUpdate, decay: float, power: float = 1.0
) -> LocalUpdate:
    """The local update with the learning rate eta_t = eta / (1 + t decay) ** power.

    t counts the steps of this worker only; a schedule counts those of all workers.
    """

    def init(params: Params) -> DecayState:
        return DecayState(jnp.zeros((), jnp.int32), local_update.init(params))

    def step(
        replica: Replica, batch: Any, learning_rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        t, inner = replica.opt_state
        eta_t = learning_rate / (1 + decay * t) ** power
        replica = replica._replace(opt_state=inner)
        replica, losses = local_update.step(replica, batch, eta_t, grad_fn)
        return replica._replace(opt_state=DecayState(t + 1, replica.opt_state)), losses

    return local_update._replace(init=init, step=step)
