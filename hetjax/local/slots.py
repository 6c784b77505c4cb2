"""Slots of a replica's carry: what a merge and a local rule tell each other.

before      params before the last step (kept here, at every step)
gradients   sum of the mean gradients since the merge that emptied it (kept here, unless
            the rule fills it itself)
pending     a displacement that is added after the next step (the merge's; added here)
start       params at the round's start (kept by merges that restart their members)
mailbox, pushed, angle     a merge's own; nobody else looks at them
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hetjax import sparse
from hetjax.local.rules import LocalRule
from hetjax.replica import Replica

KEPT = ("before", "gradients", "pending")  # by `with_slots`
OWN = ("start", "mailbox", "pushed", "angle")  # by the merge


def check_slots(rule: LocalRule, needs: tuple[str, ...], restarts: bool) -> None:
    """A ValueError if a merge and a rule do not fit each other.

    `needs` are the merge's; `restarts`: does it keep the slot "start"?
    """
    unknown = set(needs) - {*KEPT, *OWN}
    if unknown:
        raise ValueError(
            f"the merge needs {', '.join(sorted(unknown))} of a replica; known: "
            f"{', '.join((*KEPT, *OWN))}"
        )
    if rule.needs and not restarts:
        raise ValueError(
            f"the local rule needs {', '.join(rule.needs)} of a replica, which only "
            "merges keep that restart their members (average, fed_nova, fed_adp, ...)"
        )
    unused = set(rule.fills) - set(needs)
    if unused:
        raise ValueError(
            f"the local rule only fills {', '.join(sorted(unused))}, which the merge "
            "does not use: nothing would ever be learned; take local.sgd(), or "
            "merge.gradient_aggregation()"
        )


def kept_slots(rule: LocalRule, needs: tuple[str, ...]) -> tuple[str, ...]:
    """The slots that `with_slots` has to look after."""
    return tuple(s for s in KEPT if s in needs and s not in rule.fills)


def with_slots(rule: LocalRule, needs: tuple[str, ...]) -> LocalRule:
    """The rule that also keeps the slots that a merge needs; itself if there are none.

    "pending" is added after the step, whose gradient does not know of it.
    """
    kept = kept_slots(rule, needs)
    if not kept:
        return rule

    def step(
        replica: Replica, batch: Any, rate: jax.Array, grad_fn: Callable
    ) -> tuple[Replica, jax.Array]:
        seen = {}

        def watched(*inputs: Any) -> tuple:
            losses, state, seen["grads"] = grad_fn(*inputs)
            return losses, state, seen["grads"]

        before = replica.params
        replica, losses = rule.step(replica, batch, rate, watched)
        carry, params = dict(replica.carry), replica.params
        if "before" in kept:
            carry["before"] = before
        if "gradients" in kept:
            grads = sparse.dense(seen["grads"])
            carry["gradients"] = jax.tree.map(jnp.add, carry["gradients"], grads)
        if "pending" in kept:
            params = jax.tree.map(jnp.add, params, carry["pending"])
            carry["pending"] = jax.tree.map(jnp.zeros_like, carry["pending"])
        return replica._replace(params=params, carry=carry), losses

    return LocalRule(rule.init, step, rule.fills, rule.needs)


def empty_slots(params: Any, needs: tuple[str, ...]) -> dict[str, Any]:
    """The carry of a replica that begins with these params; own buffers."""

    def slot(name: str) -> Any:
        if name == "angle":
            return jnp.zeros(2)
        if name == "start":
            return jax.tree.map(lambda x: jnp.array(x, copy=True), params)
        return jax.tree.map(jnp.zeros_like, params)

    return {name: slot(name) for name in needs}
