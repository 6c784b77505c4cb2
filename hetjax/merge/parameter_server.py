"""Merges of one worker at a time: EASGD, Downpour, MagmaDNN.

(Gossip is in `hetjax.merge.gossip`. The parameter server and Hogwild! are
`gradient_aggregation` of a single member.)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hetjax import tree
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.formulas.moves import elastic_force, moved
from hetjax.merge.formulas.server_steps import magma_steps, optimizer_step
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import (
    buffer_of,
    centered_model,
    emptied,
    mean_learning_rate,
    mean_statistics,
    params_of,
    reset_to,
    with_buffer,
)
from hetjax.merge.merge_checks import check_fraction, check_not_negative
from hetjax.merge.types import Merge
from hetjax.merge.worker_stats import WorkerStats
from hetjax.optimizer_needs import check_center_optimizer
from hetjax.replica import Replica
from hetjax.tree import ModelState, Params, PyTree
from hetjax.unit_learning_rate import check_unit_rate


class ServerState(NamedTuple):
    """The center, in float32, and the memory of the server's own steps."""

    center: Params
    model_state: ModelState
    memory: Any = ()


def server_state(params: Params, model_state: ModelState = ()) -> ServerState:
    """A center without memory."""
    return ServerState(tree.widened(params), tree.widened(model_state))


def easgd(*, alpha: float | None = None, beta: float = 0.9) -> Merge:
    """The elastic move of asynchronous EASGD; the worker moves after its next step.

        d = alpha (x - x~);   x~ <- x~ + d;   x <- x - eta g(x) - d

    with g at x before the move: -d goes to the buffer "delayed_update", which is added
    after the next step. `alpha` defaults to beta / p for p workers in the run. The
    center's model state moves by alpha, too; workers keep theirs. Requires the buffer
    "delayed_update". Promises: x~ + sum_i (x_i + delayed_update_i) is conserved;
    consensus is an exact fixed point. Source: EASGD (Zhang et al. 2015), Algorithm 1;
    docs/algorithms G.2. The formula is `elastic_move`.
    """
    check_not_negative("easgd", alpha=alpha, beta=beta)

    def apply(
        state: ServerState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[ServerState, Group]:
        del op
        pull = beta / stats.num_workers if alpha is None else jnp.float32(alpha)
        pulls = jnp.where(stats.present, pull, 0.0)
        z = state.center
        center = moved(z, params_of(group), pulls)
        statistics = mean_statistics(state, group, pulls)
        group = group.each(lambda r, a: _with_delayed_move(r, z, a), pulls)
        return ServerState(center, statistics), group

    return group_merge(
        server_state, apply, centered_model, requires=("delayed_update",)
    )


def _with_delayed_move(replica: Replica, center: Params, pull: jax.Array) -> Replica:
    def back(delayed: jax.Array, d: jax.Array) -> jax.Array:
        return jnp.where(pull > 0, delayed - d.astype(delayed.dtype), delayed)

    force = elastic_force(center, replica.params, pull)
    delayed = tree.map_floats(back, replica.carry["delayed_update"], force)
    return with_buffer(replica, "delayed_update", delayed)


def downpour(
    server: optax.GradientTransformation | None = None,
    *,
    server_learning_rate: float = 1.0,
) -> Merge:
    """A server that steps on the accumulated gradients that its workers push.

        PUSH       p <- p + gamma update(sum of accrued g);   accrued <- 0
        REQUEST    mailbox <- p
        DELIVER    x <- mailbox
        FETCH      x <- p

    A merge's operation is any combination of these, done in the order DELIVER, PUSH,
    FETCH, REQUEST. `server` is an optax optimizer built with learning rate 1 (default
    `optax.sgd(1.0)`; any other learning rate is an error), gamma is
    `server_learning_rate` times the learning rate of the worker's last step. Each push
    moves the server's model state towards the worker's by 1 / (number of workers) of
    the way. Requires the buffers "grad_sum" and "mailbox". Source: Downpour SGD (Dean
    et al. 2012); docs/algorithms G.5. The formula is `optimizer_step`.
    """
    tx = optax.sgd(1.0) if server is None else server
    check_center_optimizer(tx, "downpour(server)")
    check_unit_rate(tx, "downpour(server)")
    check_not_negative("downpour", server_learning_rate=server_learning_rate)

    def init(params: Params, model_state: ModelState = ()) -> ServerState:
        center = tree.widened(params)
        return ServerState(center, tree.widened(model_state), tx.init(center))

    def apply(
        state: ServerState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[ServerState, Group]:
        if MergeOp.DELIVER in op:
            group = group.each(
                lambda r: r._replace(params=tree.copies(r.carry["mailbox"]))
            )
        if MergeOp.PUSH in op:
            state = pushed(state, group, stats)
            group = group.each(lambda r: emptied(r, "grad_sum"))
        if MergeOp.FETCH in op:
            group = group.each(lambda r: reset_to(r, *centered_model(state)))
        if MergeOp.REQUEST in op:
            group = group.each(
                lambda r: with_buffer(
                    r, "mailbox", tree.cast_like(state.center, r.params)
                )
            )
        return state, group

    def pushed(state: ServerState, group: Group, stats: WorkerStats) -> ServerState:
        ones = jnp.where(stats.present, 1.0, 0.0)
        g = group.total(buffer_of("grad_sum"), ones)
        mean = proportional_weights(ones, stats.present)
        gamma = server_learning_rate * mean_learning_rate(stats, mean)
        center, memory = optimizer_step(tx, state.center, state.memory, g, gamma)
        statistics = mean_statistics(state, group, ones / stats.num_workers)
        new = ServerState(center, statistics, memory)
        pushes = jnp.any(stats.present)  # without members there is no server step
        return jax.tree.map(lambda n, o: jnp.where(pushes, n, o), new, state)

    return group_merge(
        init,
        apply,
        centered_model,
        ops=PUSH_FETCH | MergeOp.REQUEST | MergeOp.DELIVER,
        requires=("grad_sum", "mailbox"),
    )


class MasterMemory(NamedTuple):
    """MagmaDNN's shared gradient and the master's momentum."""

    g: PyTree  # sum of the slaves' gradients
    z: PyTree


def magma_async(*, momentum: float = 0.99) -> Merge:
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
    "last_pushed_grad". Source: MagmaDNN, Algorithms 2 and 3; docs/algorithms F.3. The
    formula is `magma_steps`.
    """
    check_fraction("magma_async", momentum=momentum)

    def init(params: Params, model_state: ModelState = ()) -> ServerState:
        center = tree.widened(params)
        zeros = tree.map_floats(jnp.zeros_like, center)
        memory = MasterMemory(zeros, tree.copies(zeros))
        return ServerState(center, tree.widened(model_state), memory)

    def apply(
        state: ServerState, group: Group, stats: WorkerStats, op: MergeOp
    ) -> tuple[ServerState, Group]:
        state = stepped(state, stats)
        if MergeOp.CLEAR in op:
            g = jax.tree.map(jnp.zeros_like, state.memory.g)
            state = state._replace(memory=state.memory._replace(g=g))
        if MergeOp.FORGET in op:
            group = group.each(lambda r: emptied(r, "last_pushed_grad"))
        if MergeOp.SUBTRACT in op:
            state = _added(state, group, "last_pushed_grad", -1.0)
            group = group.each(lambda r: emptied(r, "last_pushed_grad"))
        if MergeOp.PUSH in op:
            state = _added(state, group, "last_pushed_grad", -1.0)
            state = _added(state, group, "grad_sum", 1.0)
            group = group.each(
                lambda r: with_buffer(
                    r, "last_pushed_grad", tree.copies(r.carry["grad_sum"])
                )
            )
            slaves = jnp.ones_like(stats.local_steps) / (stats.num_workers - 1)
            statistics = mean_statistics(state, group, slaves)
            state = state._replace(model_state=statistics)
        if MergeOp.FETCH in op:
            group = group.each(lambda r: reset_to(r, state.center, r.model_state))
        return state, group

    def stepped(state: ServerState, stats: WorkerStats) -> ServerState:
        center, z = magma_steps(
            state.center,
            state.memory.z,
            state.memory.g,
            num_steps=stats.server_steps,
            num_slaves=stats.num_workers - 1,
            learning_rate=jnp.mean(stats.learning_rate),  # of one member
            momentum=momentum,
        )
        memory = state.memory._replace(z=z)
        return state._replace(center=center, memory=memory)

    ops = MergeOp.STEP | MergeOp.SUBTRACT | MergeOp.CLEAR | MergeOp.FORGET
    return group_merge(
        init,
        apply,
        centered_model,
        ops=PUSH_FETCH | ops,
        requires=("grad_sum", "last_pushed_grad"),
    )


def _added(state: ServerState, group: Group, buffer: str, sign: float) -> ServerState:
    """g <- g + sign * (the sum of the members' buffers of this name)."""
    of, g = buffer_of(buffer), state.memory.g
    if group.axis is None and not group.stacked:  # added to g one after the other
        for r in group.members:
            g = jax.tree.map(lambda g, x: g + sign * x, g, of(r))
    else:
        total = group.total(of, jnp.ones(group.size))
        g = jax.tree.map(lambda g, x: g + sign * x, g, total)
    return state._replace(memory=state.memory._replace(g=g))
