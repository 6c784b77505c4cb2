"""Gradients that wait in the node's sums until a policy applies them.

Rennala SGD, Malenia SGD and Ringleader ASGD. A report of a worker is ACCUMULATE: its
gradient enters, and the node's model stays. APPLY is a step on the sums.

The papers keep a table of each worker's sum G_i of b_i gradients. Here a worker's row
of it, the mean m_i = G_i / b_i, is a buffer of the worker's replica, and the node holds
sum_i m_i, to which a report adds the change of m_i:

    m_i' = m_i + (g - m_i) / b_i;   sum <- sum + m_i' - m_i         with b_i <- b_i + 1

This takes two model copies or fewer at the node however many workers there are, and it
needs no number of workers. A row names the table that it is of; rows of an older table
count as empty, so that nobody has to visit the workers when a table is emptied.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.machine.types import MergeOp
from hetjax.merge import members
from hetjax.merge.formulas.gradients import joined_mean
from hetjax.merge.formulas.server_steps import descent
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import CenterState
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Buffer, Replica
from hetjax.tree import ModelState, Params, PyTree

ROW = "table_row"
OPS = MergeOp.ACCUMULATE | MergeOp.APPLY | MergeOp.FETCH


class Row(NamedTuple):
    """A worker's row of a table, in the buffer "table_row" of its replica."""

    mean: PyTree  # m_i, float32
    number: jax.Array  # float32 [] b_i
    table: jax.Array  # int32 [] the number of the table that it is of


class Sums(NamedTuple):
    """A table as the node holds it."""

    total: PyTree  # float32: of gradients, or of the workers' means
    number: jax.Array  # float32 [] of gradients, or of workers with a row


class Held(NamedTuple):
    """What a node holds between steps."""

    first: Sums
    statistics: ModelState  # the sum of (s_i - s) over the reports since the last step
    reports: jax.Array  # float32 [] since the last step
    learning_rate: jax.Array  # float32 [] of the last report
    table: Any = ()  # int32 [] the number of the first table
    second: Any = ()  # Sums of Ringleader's second table
    steps: Any = ()  # bool [] whether there was a step on Ringleader's first table


def gradient_sums() -> Merge:
    """Sums gradients of one model, then makes one step on their mean: Rennala SGD.

        ACCUMULATE   G <- G + g_i;   B <- B + 1
        APPLY        c <- c - eta G / B;   G, B <- 0
        FETCH        w_i <- c

    A merge's operation is a combination of these, done in this order; APPLY may be
    alone, without members. eta is the learning rate of the members' rounds, or of the
    last report. B is what entered, so the policy counts. Model state moves to the mean
    of the reports. Needs the local update `gradient`. Promises: ACCUMULATE changes no
    model; APPLY with nothing held changes nothing; one report that is applied at once
    is asynchronous SGD. Source: Rennala SGD (Tyurin & Richtarik 2023); docs/algorithms
    L.7.
    """

    def apply(state, group, stats, op):
        held = state.memory
        if MergeOp.ACCUMULATE in op:
            held = _reported(state, group, stats)
            ones = jnp.where(stats.present, 1.0, 0.0)
            added = group.total(members.buffer_of("grad_sum"), ones)
            held = held._replace(first=_added(held.first, added, jnp.sum(ones)))
        state = state._replace(memory=held)
        if MergeOp.APPLY in op:
            has = held.first.number > 0
            state = _where(has, _emptied(_stepped(state)), state)
        return state, _fetched(state, group, op)

    return group_merge(
        _begin, apply, ops=OPS, requires=("grad_sum",), properties=_BROADCASTS
    )


def malenia() -> Merge:
    """Makes one step on the mean over workers of their mean gradients: Malenia SGD.

        ACCUMULATE   G_i <- G_i + g_i;   b_i <- b_i + 1
        APPLY        c <- c - eta mean_i (G_i / b_i);   all G_i, b_i <- 0
        FETCH        w_i <- c

    The mean is over the workers with b_i > 0. Operations, eta and model state are as in
    `gradient_sums`; the policy counts the reports b_i, and drops those at an older c.
    Needs the local update `gradient`. Memory: two more model copies in each replica,
    its gradient and its row of the table, and one at the node. Promises: one report of
    each worker is a step on the mean gradient. Source: Malenia SGD (Tyurin & Richtarik
    2023); docs/algorithms L.7.
    """

    def init(params, model_state=()):
        return _with(_begin(params, model_state), table=jnp.int32(0))

    def apply(state, group, stats, op):
        if MergeOp.ACCUMULATE in op:
            held = _reported(state, group, stats)
            tables = jnp.broadcast_to(held.table, stats.present.shape)
            entered = group.each(_entered, stats.present, tables)
            held = held._replace(first=_joined(held.first, entered, stats.present))
            state, group = state._replace(memory=held), entered.each(lambda e: e[0])
        if MergeOp.APPLY in op:
            has = state.memory.first.number > 0
            new = _emptied(_stepped(state))
            state = _where(has, _with(new, table=new.memory.table + 1), state)
        return state, _fetched(state, group, op)

    return group_merge(init, apply, ops=OPS, requires=_WITH_ROW, properties=_BROADCASTS)


def ringleader() -> Merge:
    """A step for each worker in turn, on the means of all workers: Ringleader ASGD.

        ACCUMULATE   G_i <- G_i + g_i;   b_i <- b_i + 1      in one of two tables
        APPLY        c <- c - eta mean_j (G_j / b_j)         over the first table
        CLEAR        the second table becomes the first, and the second is empty
        FETCH        w_i <- c

    A merge's operation is a combination of these, done in this order. A gradient enters
    the first table until there is a step on it, and with APPLY; otherwise the second.
    The policy decides: a report is

        ACCUMULATE                    while any worker has no row, and of updated ones
        ACCUMULATE | APPLY | FETCH    of the worker whose row was the last that lacked,
                                      then the first report of each other worker
        ... | CLEAR                   of the last of these

    APPLY and CLEAR need no members: the step of a worker that has left has none.

    The mean is over the workers with b_j > 0; eta and model state are as in
    `gradient_sums`. Needs the local update `gradient`. Memory: two more model copies in
    each replica, its gradient and its row of the table, and two at the node. Promises:
    no report is lost; one worker is SGD. Source: Ringleader ASGD (Maranjyan & Richtarik
    2025); docs/algorithms L.8.
    """

    def init(params, model_state=()):
        state = _begin(params, model_state)
        second = _empty(state.center)
        return _with(state, table=jnp.int32(0), second=second, steps=jnp.bool_(False))

    def apply(state, group, stats, op):
        if MergeOp.ACCUMULATE in op:
            state, group = _in_its_table(state, group, stats, op)
        # a step of nobody: of a worker that has left, but not of absent members
        here = jnp.any(stats.present) if group.size else jnp.bool_(True)
        if MergeOp.APPLY in op:
            after = _with(_stepped(state), steps=jnp.bool_(True))
            has = here & (state.memory.first.number > 0)
            state = _where(has, after, state)
        if MergeOp.CLEAR in op:
            state = _where(here, _turned(state), state)
        return state, _fetched(state, group, op)

    return group_merge(
        init,
        apply,
        ops=OPS | MergeOp.CLEAR,
        requires=_WITH_ROW,
        properties=_BROADCASTS,
    )


_BROADCASTS = MergeProperty.BROADCASTS


def _begin(params: Params, model_state: ModelState = ()) -> CenterState:
    """A node with an empty table."""
    state = members.center_state(params, model_state)
    statistics = members.zeros_like(state.model_state)
    zero = jnp.zeros(())
    held = Held(_empty(state.center), statistics, zero, jnp.zeros(()))
    return state._replace(memory=held)


def _empty(center: Params) -> Sums:
    return Sums(members.zeros_like(center), jnp.zeros(()))


def _no_row(params: Params) -> Row:
    """The first value of the buffer "table_row"."""
    mean = members.wide_zeros_like(params)
    return Row(mean, jnp.zeros(()), jnp.int32(-1))


_WITH_ROW = ("grad_sum", Buffer(ROW, _no_row))


def _with(state: CenterState, **held: Any) -> CenterState:
    return state._replace(memory=state.memory._replace(**held))


def _where(condition: jax.Array, new: CenterState, old: CenterState) -> CenterState:
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new, old)


def _reported(state: CenterState, group: Group, stats: WorkerStats) -> Held:
    """What the node holds, with the members' statistics and learning rate."""
    held, here = state.memory, stats.present
    ones = jnp.where(here, 1.0, 0.0)
    eta = members.mean_learning_rate(stats, proportional_weights(ones, here))
    statistics = group.total(
        lambda r: tree.difference(r.model_state, state.model_state), ones
    )
    return held._replace(
        statistics=tree.map_floats(jnp.add, held.statistics, statistics),
        reports=held.reports + jnp.sum(ones),
        learning_rate=jnp.where(jnp.any(here), eta, held.learning_rate),
    )


def _added(sums: Sums, total: PyTree, number: jax.Array) -> Sums:
    return Sums(tree.map_floats(jnp.add, sums.total, total), sums.number + number)


def _entered(
    replica: Replica, here: jax.Array, table: jax.Array
) -> tuple[Replica, PyTree, jax.Array]:
    """The replica with its gradient in its row, the change of m_i, and whether new."""
    row: Row = replica.carry[ROW]
    is_new = row.table != table
    number = jnp.where(is_new, 0.0, row.number)
    mean = tree.map_floats(lambda m: jnp.where(is_new, 0.0, m), row.mean)
    change = joined_mean(mean, number, replica.carry["grad_sum"])
    new = row._replace(
        mean=tree.map_floats(jnp.add, mean, change), number=number + 1, table=table
    )
    new = jax.tree.map(lambda n, o: jnp.where(here, n, o), new, row)
    return members.with_buffer(replica, ROW, new), change, is_new


def _joined(sums: Sums, entered: Group, which: jax.Array) -> Sums:
    """The table, with the changes of `which` [n] members."""
    change = entered.total(lambda e: e[1], jnp.where(which, 1.0, 0.0))
    new = entered.values(lambda e: e[2])
    return _added(sums, change, jnp.sum(jnp.where(which & new, 1.0, 0.0)))


def _in_its_table(
    state: CenterState, group: Group, stats: WorkerStats, op: MergeOp
) -> tuple[CenterState, Group]:
    """Ringleader's tables, with the members' gradients in one of them."""
    held, here = _reported(state, group, stats), stats.present
    later = jnp.bool_(False) if MergeOp.APPLY in op else held.steps
    tables = jnp.broadcast_to(held.table + jnp.where(later, 1, 0), here.shape)
    entered = group.each(_entered, here, tables)
    held = held._replace(
        first=_joined(held.first, entered, here & ~later),
        second=_joined(held.second, entered, here & later),
    )
    return state._replace(memory=held), entered.each(lambda e: e[0])


def _stepped(state: CenterState) -> CenterState:
    """The node after a step on its first table, which stays; of use if that has any."""
    held = state.memory
    eta = held.learning_rate / jnp.maximum(held.first.number, 1)
    center = descent(state.center, held.first.total, eta)
    reports = jnp.maximum(held.reports, 1)
    model_state = tree.map_floats(
        lambda s, d: s + d / reports, state.model_state, held.statistics
    )
    held = held._replace(
        statistics=members.zeros_like(held.statistics), reports=jnp.zeros(())
    )
    return CenterState(center, model_state, held)


def _emptied(state: CenterState) -> CenterState:
    """The node with an empty first table."""
    return _with(state, first=_empty(state.center))


def _turned(state: CenterState) -> CenterState:
    """The node with its second table in place of the first."""
    held = state.memory
    return _with(
        state,
        first=held.second,
        second=_empty(state.center),
        table=held.table + 1,
        steps=jnp.bool_(False),
    )


def _fetched(state: CenterState, group: Group, op: MergeOp) -> Group:
    """The members, with the node's model if they fetch it."""
    if MergeOp.FETCH not in op:
        return group
    return group.each(lambda r: members.reset_to(r, state.center, state.model_state))
