"""Merges of one worker at a time: EASGD, Downpour, MagmaDNN, gossip.

(The parameter server and Hogwild! are `gradient_aggregation` of a single member.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from hetjax import tree
from hetjax.arguments import Fraction, NotNegative, checked
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge import members
from hetjax.merge.formulas.moves import elastic_force, moved, plain_mean
from hetjax.merge.formulas.server_steps import descent, magma_steps, optimizer_step
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import CenterState
from hetjax.merge.merge_checks import check_buffers, check_count, check_op
from hetjax.merge.types import APPLY, Merge, MergeProperty
from hetjax.optimizers import Optimizer, built, check_center_optimizer
from hetjax.replica import Replica
from hetjax.tree import Params, PyTree


@checked
def easgd(*, alpha: NotNegative | None = None, beta: NotNegative = 0.9) -> Merge:
    """The elastic move of asynchronous EASGD; the worker moves after its next step.

        d = alpha (x - x~);   x~ <- x~ + d;   x <- x - eta g(x) - d

    with g at x before the move: -d goes to the buffer "delayed_update", which is added
    after the next step. `alpha` defaults to beta / p for p workers in the run. The
    center's model state moves by alpha, too; workers keep theirs. Promises:
    x~ + sum_i (x_i + delayed_update_i) is conserved. Source: EASGD (Zhang et al. 2015),
    Algorithm 1; docs/algorithms G.2. Formula: `elastic_move`.
    """

    def apply(state, group, stats, op):
        pull = beta / stats.num_workers if alpha is None else jnp.float32(alpha)
        pulls = jnp.where(stats.present, pull, 0.0)
        z = state.center
        center = moved(z, members.params_of(group), pulls)
        statistics = members.mean_statistics(state, group, pulls)
        group = group.each(lambda r, a: _with_delayed_move(r, z, a), pulls)
        return CenterState(center, statistics), group

    return group_merge(members.center_state, apply, requires=("delayed_update",))


def _with_delayed_move(replica: Replica, center: Params, pull: jax.Array) -> Replica:
    def back(delayed, d):
        return jnp.where(pull > 0, delayed - d.astype(delayed.dtype), delayed)

    force = elastic_force(center, replica.params, pull)
    delayed = tree.map_floats(back, replica.carry["delayed_update"], force)
    return members.with_buffer(replica, "delayed_update", delayed)


@checked
def downpour(
    server: Optimizer = optax.sgd, *, server_learning_rate: NotNegative = 1.0
) -> Merge:
    """A server that steps on the accumulated gradients that its workers push.

        PUSH       p <- p + gamma update(sum of accrued g);   accrued <- 0
        REQUEST    mailbox <- p
        DELIVER    x <- mailbox
        FETCH      x <- p

    A merge's operation is any combination of these, done in the order DELIVER, PUSH,
    FETCH, REQUEST. `server` is an optimizer as in `local.from_optax`, gamma is
    `server_learning_rate` times the learning rate of the worker's last step. Each push
    moves the server's model state towards the worker's by 1 / (number of workers) of
    the way. Requires the buffers "grad_sum" and "mailbox". Source: Downpour SGD (Dean
    et al. 2012); docs/algorithms G.5. Formula: `optimizer_step`.
    """
    tx = built(server, "downpour(server)")
    check_center_optimizer(tx, "downpour(server)")

    def apply(state, group, stats, op):
        if MergeOp.DELIVER in op:
            group = group.each(
                lambda r: r._replace(params=tree.copies(r.carry["mailbox"]))
            )
        if MergeOp.PUSH in op:
            state = pushed(state, group, stats)
            group = members.emptied(group, "grad_sum")
        if MergeOp.FETCH in op:
            model = members.centered_model(state)
            group = group.each(lambda r: members.reset_to(r, *model))
        if MergeOp.REQUEST in op:
            group = group.each(
                lambda r: members.with_buffer(
                    r, "mailbox", tree.cast_like(state.center, r.params)
                )
            )
        return state, group

    def pushed(state, group, stats):
        ones = jnp.where(stats.present, 1.0, 0.0)
        g = group.total(members.buffer_of("grad_sum"), ones)
        mean = proportional_weights(ones, stats.present)
        gamma = server_learning_rate * members.mean_learning_rate(stats, mean)
        center, memory = optimizer_step(tx, state.center, state.memory, g, gamma)
        statistics = members.mean_statistics(state, group, ones / stats.num_workers)
        new = CenterState(center, statistics, memory)
        return members.unless_empty(new, state, stats)

    return group_merge(
        members.center_with(tx.init),
        apply,
        ops=PUSH_FETCH | MergeOp.REQUEST | MergeOp.DELIVER,
        requires=("grad_sum", "mailbox"),
    )


class MasterMemory(NamedTuple):
    """MagmaDNN's shared gradient and the master's momentum."""

    g: PyTree  # sum of the slaves' gradients
    z: PyTree


@checked
def magma_async(*, momentum: Fraction = 0.99) -> Merge:
    """A master that steps continually on the shared gradient g.

    Its n steps since the last merge (`server_steps`) are done at once:

        z <- beta z + (1 - beta) g^;   w <- w - alpha z      g^ = g / (N - 1), N workers

    Then the operations follow, in this order:

        CLEAR      g <- 0
        FORGET     the slave's last gradient counts as zero: nothing is left to subtract
        SUBTRACT   the slave's last gradient is subtracted from g
        PUSH       the slave's new gradient is added to g, and replaces the last one if
                   that is still in g ("swap")
        FETCH      w_local <- w

    Each push moves the master's model state towards the slave's by 1 / (N - 1) of the
    way. Requires the buffers "grad_sum" (of the local update `gradient`) and
    "last_pushed_grad". Source: MagmaDNN, Algorithms 2 and 3; docs/algorithms F.3.
    Formula: `magma_steps`.
    """

    def apply(state, group, stats, op):
        state = stepped(state, stats)
        if MergeOp.CLEAR in op:
            g = jax.tree.map(jnp.zeros_like, state.memory.g)
            state = state._replace(memory=state.memory._replace(g=g))
        if MergeOp.FORGET in op:
            group = members.emptied(group, "last_pushed_grad")
        if MergeOp.SUBTRACT in op:
            state = _added(state, group, "last_pushed_grad", -1.0)
            group = members.emptied(group, "last_pushed_grad")
        if MergeOp.PUSH in op:
            state = _added(state, group, "last_pushed_grad", -1.0)
            state = _added(state, group, "grad_sum", 1.0)
            group = group.each(
                lambda r: members.with_buffer(
                    r, "last_pushed_grad", tree.copies(r.carry["grad_sum"])
                )
            )
            slaves = jnp.ones_like(stats.local_steps) / (stats.num_workers - 1)
            statistics = members.mean_statistics(state, group, slaves)
            state = state._replace(model_state=statistics)
        if MergeOp.FETCH in op:
            group = group.each(
                lambda r: members.reset_to(r, state.center, r.model_state)
            )
        return state, group

    def stepped(state, stats):
        center, z = magma_steps(
            state.center,
            state.memory.z,
            state.memory.g,
            num_steps=stats.server_steps,
            num_slaves=stats.num_workers - 1,
            learning_rate=jnp.mean(stats.learning_rate),  # of one member
            momentum=momentum,
        )
        return state._replace(center=center, memory=state.memory._replace(z=z))

    def memory(center):
        return MasterMemory(members.zeros_like(center), members.zeros_like(center))

    ops = MergeOp.STEP | MergeOp.SUBTRACT | MergeOp.CLEAR | MergeOp.FORGET
    return group_merge(
        members.center_with(memory),
        apply,
        ops=PUSH_FETCH | ops,
        requires=("grad_sum", "last_pushed_grad"),
    )


def _added(state: CenterState, group: Group, buffer: str, sign: float) -> CenterState:
    """g <- g + sign * (the sum of the members' buffers of this name)."""
    of, g = members.buffer_of(buffer), state.memory.g
    if group.axis is None and not group.stacked:  # added to g one after the other
        added = map(of, group.members)
    else:
        added = [group.total(of, jnp.ones(group.size))]
    for x in added:
        g = jax.tree.map(lambda g, x: g + sign * x, g, x)
    return state._replace(memory=state.memory._replace(g=g))


def gossip() -> Merge:
    """Averages a worker with its partner, then applies the worker's gradient: AD-PSGD.

        x_i, x_j <- (x_i + x_j) / 2;   x_i <- x_i - gamma g_i

    The first member is the worker that arrived, the others are its partners; g_i is the
    gradient at the copy that i started from. The node keeps the mean of all models,
    which only gradients change: x <- x - gamma g_i / p, for p workers in the run. Model
    state is averaged between partners, too, and the node's moves towards that of i by
    1/p of the way. Needs the local update `gradient`. This is the only merge that
    addresses a member by its position, so along a mesh axis it runs on gathered
    replicas. Promises: the sum of all models moves by -gamma g_i. Source: AD-PSGD (Lian
    et al. 2018); docs/algorithms G.6. Formula: `pair_average`.
    """
    requires = ("grad_sum",)

    def apply(state, replicas, stats, op=PUSH_FETCH):
        check_op("gossip", op, PUSH_FETCH)
        check_buffers("gossip", replicas[:1], requires)
        check_buffers("gossip", replicas[1:], ())
        check_count("gossip", len(replicas), stats)
        first, here = replicas[0], stats.present[:1]
        gamma = jnp.where(here[0], stats.learning_rate[0], 0.0)
        g = tree.weighted_sum([first.carry["grad_sum"]], jnp.where(here, 1.0, 0.0))
        mean = plain_mean([r.params for r in replicas])
        statistics = plain_mean([r.model_state for r in replicas])
        others = (members.reset_to(r, mean, statistics) for r in replicas[1:])
        stepped = members.reset_to(first, descent(mean, g, gamma), statistics)
        center = descent(state.center, g, gamma / stats.num_workers)
        share = jnp.where(here, 1.0 / stats.num_workers, 0.0)
        own = members.mean_statistics(state, Group((first,)), share)
        return CenterState(center, own), (stepped, *others)

    apply.__doc__ = APPLY
    return Merge(
        members.center_state,
        apply,
        members.centered_model,
        requires,
        properties=MergeProperty.BROADCASTS | MergeProperty.UPDATES_BUSY_WORKERS,
    )
