"""Buffers in a replica's carry, through which merges and local updates communicate.

prev_params     params before the last step (updated here, at every step)
grad_sum        sum of the mean gradients since a merge last emptied it (updated here,
                unless the local update provides it)
delayed_update  a move to add after the next step (set by a merge, added here)
round_start     params at the start of the round (set when a worker takes a model)
shift           added to every gradient by `local.scaffold` (set by a merge)
mailbox, last_pushed_grad, angle     used only by the merges that require them

A merge may declare further buffers with `Buffer(name, init)` in its `requires`.
"""

import jax
import jax.numpy as jnp

from hetjax import sparse, tree
from hetjax.local.updates import LocalUpdate
from hetjax.replica import Buffer, Replica, Requires
from hetjax.tree import Params, PyTree

UPDATED_BY_STEPS = ("prev_params", "grad_sum", "delayed_update")  # in `with_buffers`
UPDATED_BY_MERGES = ("round_start", "shift", "mailbox", "last_pushed_grad", "angle")


def check_buffers(local_update: LocalUpdate, requires: Requires) -> None:
    """Raises a ValueError if a merge and a local update do not fit together.

    `requires` are the buffers of the merge.
    """
    known = (*UPDATED_BY_STEPS, *UPDATED_BY_MERGES)
    unknown = [b for b in requires if not isinstance(b, Buffer) and b not in known]
    if unknown:
        raise ValueError(
            f"the merge requires the unknown buffer {', '.join(sorted(unknown))}; "
            f"known: {', '.join(known)}; declare a custom one as hetjax.merge.Buffer("
            f'"{unknown[0]}", init=lambda params: ...)'
        )
    names = [_name(b) for b in requires]
    taken = [b.name for b in requires if isinstance(b, Buffer) and b.name in known]
    twice = taken or [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(
            f"the merge declares the buffer {twice[0]!r}, which already exists: "
            "use another name"
        )
    if ("shift" in requires) != ("shift" in local_update.requires):
        raise ValueError(
            'one of merge and local update uses the buffer "shift", the other does '
            "not: use merge.scaffold() and local.scaffold() together"
        )
    if unused := set(local_update.provides) - set(requires):
        raise ValueError(
            f"the local update only provides {', '.join(sorted(unused))}, which the "
            "merge does not use, so nothing would be learned: use local.sgd(), or "
            "merge.gradient_aggregation()"
        )


def step_buffers(local_update: LocalUpdate, requires: Requires) -> tuple[str, ...]:
    """The required buffers that `with_buffers` has to update."""
    return tuple(
        s for s in UPDATED_BY_STEPS if s in requires and s not in local_update.provides
    )


def merge_buffers(requires: Requires) -> tuple[str, ...]:
    """The required buffers that only the merge changes."""
    return tuple(
        _name(b) for b in requires if isinstance(b, Buffer) or b in UPDATED_BY_MERGES
    )


def with_merge_buffers(new: Replica, old: Replica, requires: Requires) -> Replica:
    """A replica that was reset, with the old buffers that only the merge changes.

    Among these are the model in the worker's mailbox and its last gradient, which the
    server's sum still contains. "round_start" is not: the round starts again.
    """
    names = merge_buffers(requires)
    own = {k: v for k, v in old.carry.items() if k in names and k != "round_start"}
    return new._replace(carry={**new.carry, **own})


def with_buffers(local_update: LocalUpdate, requires: Requires) -> LocalUpdate:
    """The local update, extended to update the buffers that a merge requires.

    It is returned unchanged if there are none. "delayed_update" is added after the
    step, so that it does not affect the step's gradient.
    """
    updated = step_buffers(local_update, requires)
    if not updated:
        return local_update

    def step(replica, batch, learning_rate, grad_fn):
        seen = {}

        def watched(*inputs):
            losses, state, seen["grads"] = grad_fn(*inputs)
            return losses, state, seen["grads"]

        watched.unwatched = grad_fn  # for line searches, whose gradients do not count
        before = replica.params
        replica, losses = local_update.step(replica, batch, learning_rate, watched)
        carry, params = dict(replica.carry), replica.params
        if "prev_params" in updated:
            carry["prev_params"] = before
        if "grad_sum" in updated:
            grads = sparse.dense(seen["grads"])
            carry["grad_sum"] = jax.tree.map(jnp.add, carry["grad_sum"], grads)
        if "delayed_update" in updated:
            params = jax.tree.map(jnp.add, params, carry["delayed_update"])
            carry["delayed_update"] = jax.tree.map(
                jnp.zeros_like, carry["delayed_update"]
            )
        return replica._replace(params=params, carry=carry), losses

    return LocalUpdate(
        local_update.init, step, local_update.provides, local_update.requires
    )


def empty_buffers(params: Params, requires: Requires) -> dict[str, PyTree]:
    """The carry of a replica that starts at these params, in newly allocated memory."""
    return {_name(buffer): _empty(buffer, params) for buffer in requires}


def _empty(buffer: str | Buffer, params: Params) -> PyTree:
    if isinstance(buffer, Buffer):
        return tree.copies(buffer.init(params))
    if buffer == "angle":
        return jnp.zeros(2)
    if buffer in ("round_start", "prev_params"):
        return tree.copies(params)
    return jax.tree.map(jnp.zeros_like, params)


def _name(buffer: str | Buffer) -> str:
    return buffer.name if isinstance(buffer, Buffer) else buffer
