"""Gradients that are corrected for their delay: DC-ASGD."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hetjax import tree
from hetjax.arguments import Fraction, NotNegative, checked
from hetjax.machine.types import MergeOp
from hetjax.merge import members
from hetjax.merge.formulas.gradients import compensated_gradient, running_mean_square
from hetjax.merge.formulas.server_steps import descent
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import CenterState
from hetjax.merge.types import Merge, MergeProperty
from hetjax.replica import Buffer, Replica
from hetjax.tree import PyTree

MEAN_SQUARE = "mean_square"


@checked
def delay_compensated(
    *,
    strength: NotNegative = 0.04,
    decay: Fraction | None = None,
    per_worker: bool = True,
) -> Merge:
    """A step on a late gradient g of the model s, corrected towards the model c.

        c <- c - eta (g + L g^2 (c - s));   w_i <- c            by coordinate

    s is the model that the member was given ("round_start"), eta the learning rate of
    its round. Without `decay`, L is `strength` (DC-ASGD-c). With `decay` u (DC-ASGD-a)

        q_i <- u q_i + (1 - u) g^2;   L = strength / sqrt(q_i + 1e-7)

    where the paper has u = .95 (or 0 for ImageNet) and strength 2. q_i belongs to the
    worker, or to the server unless `per_worker`. Several members make one step on the
    mean over their examples of the corrected gradients. Model state is as in
    `gradient_aggregation`. Needs the local update `gradient`. Promises: with strength
    0, or where c equals s, the step is that of `gradient_aggregation()`. Source:
    DC-ASGD (Zheng et al. 2017); docs/algorithms L.13. Formulas:
    `compensated_gradient` and `running_mean_square`.
    """
    adapts = decay is not None
    of_worker = adapts and per_worker
    u = 0.0 if decay is None else decay
    own = (Buffer(MEAN_SQUARE, members.wide_zeros_like),) if of_worker else ()

    def apply(state, group, stats, op):
        alpha = proportional_weights(stats.examples, stats.present)
        q = state.memory if adapts and not per_worker else None
        if of_worker:
            group = group.each(lambda r, here: _adapted(r, here, u), stats.present)
        elif q is not None:
            q = _servers(q, group, alpha, u)

        def corrected(r):
            g, start = r.carry["grad_sum"], r.carry["round_start"]
            square = r.carry[MEAN_SQUARE] if of_worker else q
            return compensated_gradient(
                g, state.center, start, strength=strength, mean_square=square
            )

        g = group.each(corrected).total(lambda g: g, alpha)
        center = descent(state.center, g, members.mean_learning_rate(stats, alpha))
        statistics = members.mean_statistics(state, group, alpha)
        new = CenterState(center, statistics, () if q is None else q)
        new = members.unless_empty(new, state, stats)
        if MergeOp.FETCH not in op:
            return new, group
        return new, group.each(
            lambda r: members.reset_to(r, new.center, new.model_state)
        )

    init = members.center_state
    if adapts and not per_worker:
        init = members.center_with(members.zeros_like)
    return group_merge(
        init,
        apply,
        requires=("grad_sum", "round_start", *own),
        properties=MergeProperty.BROADCASTS,
    )


def _adapted(replica: Replica, here: jax.Array, decay: ArrayLike) -> Replica:
    """The replica with its gradient in its own mean square."""
    old = replica.carry[MEAN_SQUARE]
    new = running_mean_square(old, replica.carry["grad_sum"], decay)
    new = jax.tree.map(lambda n, o: jnp.where(here, n, o), new, old)
    return members.with_buffer(replica, MEAN_SQUARE, new)


def _servers(q: PyTree, group: Group, alpha: jax.Array, decay: ArrayLike) -> PyTree:
    """The server's mean square, with the members' gradients in it."""

    def square(replica):
        return tree.map_floats(lambda g: tree.wide(g) ** 2, replica.carry["grad_sum"])

    squares = group.each(square).total(lambda x: x, alpha)
    return tree.map_floats(lambda q, s: decay * q + (1 - decay) * s, q, squares)
