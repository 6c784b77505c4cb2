"""SCAFFOLD: local steps that are corrected by control variates."""

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.arguments import NotNegative, checked
from hetjax.machine.merge_times import Traffic
from hetjax.machine.types import MergeOp
from hetjax.merge import members
from hetjax.merge.formulas.gradients import scaffold_control
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import CenterState
from hetjax.merge.merge_bytes import dense, directed
from hetjax.merge.types import Merge, MergeProperty
from hetjax.replica import Buffer, Replica
from hetjax.tree import ModelState, Params, PyTree

CONTROL = "control_variate"


@checked
def scaffold(*, server_learning_rate: NotNegative = 1.0) -> Merge:
    """Averages moves, and keeps a control variate of each worker: SCAFFOLD, option II.

        steps    y <- y - eta (grad - c_i + c)                   `local.scaffold`
        c_i' = c_i - c + (x - y_i) / (H_i eta)
        x <- x + g mean over members (y_i - x)
        c <- c + (1 / N) sum over members (c_i' - c_i);   c_i <- c_i'

    x is the model that the member was given ("round_start"), c - c_i the buffer
    "shift" with which it did its H_i local steps, g is `server_learning_rate`, N the
    number of all workers. An absent member's c_i stays. H_i eta assumes SGD with one
    learning rate during a round, the one in the statistics: with `with_lr_decay`, or a
    learning rate that changes within the round, c_i' is only approximate. Model state
    is averaged. A worker sends and receives twice the model: `FETCH` also gives it its
    shift. Memory: two model copies in each replica, two at the node. Promises: the
    first round is local SGD; one worker is SGD. Source: SCAFFOLD (Karimireddy et al.
    2020); docs/algorithms L.12. Formula: `scaffold_control`.
    """

    def apply(state, group, stats, op):
        if MergeOp.PUSH in op:
            state, group = pushed(state, group, stats)
        if MergeOp.FETCH in op:
            new = state
            group = group.each(lambda r: _fetched(new, r))
        return state, group

    def pushed(state, group, stats):
        here = stats.present
        alpha = proportional_weights(jnp.ones_like(stats.local_steps), here)
        rates = stats.local_steps * stats.learning_rate
        rates = jnp.where(here & (rates != 0), rates, 1.0)
        move = group.total(
            lambda r: tree.difference(r.params, r.carry["round_start"]), alpha
        )
        found = group.each(_new_control, rates, here)
        weights = jnp.where(here, 1 / stats.num_workers, 0.0)
        change = found.total(lambda f: f[1], weights)
        new = CenterState(
            tree.map_floats(
                lambda x, m: x + server_learning_rate * m, state.center, move
            ),
            members.mean_statistics(state, group, alpha),
            tree.map_floats(jnp.add, state.memory, change),
        )
        return members.unless_empty(new, state, stats), found.each(lambda f: f[0])

    return group_merge(
        members.center_with(members.zeros_like),
        apply,
        requires=("round_start", "shift", Buffer(CONTROL, members.wide_zeros_like)),
        properties=MergeProperty.BROADCASTS,
        traffic=_traffic,
        fetch=_fetched,
    )


def _new_control(
    replica: Replica, rate: jax.Array, here: jax.Array
) -> tuple[Replica, PyTree]:
    """The replica with c_i', and c_i' - c_i."""
    shift, start = replica.carry["shift"], replica.carry["round_start"]
    new = scaffold_control(shift, start, replica.params, rate)
    old = _control(replica)
    change = tree.difference(new, old)
    kept = tree.map_floats(
        lambda n, o: jnp.where(here, n, o), new, replica.carry[CONTROL]
    )
    return members.with_buffer(replica, CONTROL, kept), change


def _control(replica: Replica) -> PyTree:
    """c_i, which counts as zero where it is not finite: of a worker that diverged."""
    return tree.map_floats(
        lambda c: jnp.where(jnp.isfinite(c), c, 0.0), replica.carry[CONTROL]
    )


def _fetched(state: CenterState, replica: Replica) -> Replica:
    """The replica with the node's model, and with its shift c - c_i."""
    replica = members.reset_to(replica, state.center, state.model_state)
    shift = tree.difference(state.memory, _control(replica))
    shift = tree.cast_like(shift, replica.params)
    return members.with_buffer(replica, "shift", shift)


def _traffic(params: Params, model_state: ModelState, op: MergeOp) -> Traffic:
    both = dense(params, model_state, copies=2)
    return directed(op, both, both)
