"""Local training without a machine: a replica, and one jitted step on it."""

from collections.abc import Callable

import jax

from hetjax import tree
from hetjax.local.buffers import empty_buffers, with_buffers
from hetjax.local.updates import LocalUpdate
from hetjax.replica import Replica, Requires
from hetjax.tasks.types import Task, make_grad_fn
from hetjax.tree import ModelState, Params


def new_replica(
    local_update: LocalUpdate,
    params: Params,
    model_state: ModelState = (),
    *,
    requires: Requires = (),
) -> Replica:
    """A replica that starts at these params, in newly allocated memory.

    `requires` are the buffers of the merge (`merge.requires`). Complex parameters raise
    a TypeError.
    """
    jax.tree.map(tree.is_float, params)  # raises for complex numbers
    params, model_state = tree.copies((params, model_state))
    buffers = empty_buffers(params, (*requires, *local_update.requires))
    return Replica(params, model_state, local_update.init(params), buffers)


def step_fn(
    local_update: LocalUpdate, task: Task, *, requires: Requires = ()
) -> Callable:
    """(replica, batch, learning_rate, key) -> (replica, losses [B]): one jitted step.

    `batch` is made by `make_batch`, `key` is a random key that the loss may use, and
    `requires` are the merge's buffers, which the step updates (`merge.requires`).
    """
    update = with_buffers(local_update, requires)

    @jax.jit
    def step(replica, batch, learning_rate, key):
        return update.step(replica, batch, learning_rate, make_grad_fn(task, key))

    return step
