"""Merges by an outer optimizer: its gradient is how far the members have moved.

A member was given a model s_i, made some local steps, and has w_i now. D_i = s_i - w_i
is its pseudo-gradient, and any optax optimizer may step on the mean of them. DiLoCo,
FedOpt, SlowMo, asynchronous DiLoCo, FedAsync, FedBuff and HeLoCo are settings of the
two merges here; `outer_optimizers` has the optimizers that optax lacks.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from hetjax import tree
from hetjax.arguments import NotNegative, checked
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge import members
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.group_merges import group_merge
from hetjax.merge.members import CenterState
from hetjax.merge.outer_optimizers import nesterov
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.optimizers import Optimizer, built, check_center_optimizer
from hetjax.replica import Replica
from hetjax.tree import OptState, Params, PyTree

Since: TypeAlias = Literal["given", "center"]
OuterWeights: TypeAlias = (
    Literal["equal", "local_steps", "examples", "weight"]
    | Callable[[WorkerStats], jax.Array]
)
Scale: TypeAlias = NotNegative | Callable[[WorkerStats], jax.Array]


@checked
def outer(
    optimizer: Optimizer = nesterov(),
    *,
    weights: OuterWeights = "equal",
    scale: Scale = 1.0,
    since: Since = "center",
    per_learning_rate: bool = False,
    correct: Callable[[PyTree, OptState], PyTree] | None = None,
    give: Callable[[Params, OptState], Params] | None = None,
) -> Merge:
    """One step of an outer optimizer on the members' mean pseudo-gradient.

        D = sum_i p_i z_i D_i,    D_i = s_i - w_i;    c <- c + update(D);    w_i <- c

    The members' optimizer states stay with them. p_i are `weights`, a name or a
    function of the `WorkerStats`, normalized over the members with local steps. z_i is
    `scale`, a number or such a function, which is not normalized. s_i is the node's
    present model (`since="center"`), or with `since="given"` the model that the member
    was given, which an asynchronous server has changed since (buffer "round_start").
    With `per_learning_rate` the optimizer gets D / eta, and eta times its update is
    added, where eta is the learning rate of the members' round (SlowMo).

    `correct(D_i, state of the optimizer)` changes each D_i first. With
    `give(c, state of the optimizer)` members are given that model in place of c, and
    `since` must be "given". Model state moves by p_i z_i of the way. Promises: with
    SGD at rate 1 this is `average`. Source: docs/algorithms L.1 to L.5.
    """
    tx = _built(optimizer, "outer(optimizer)")
    if give is not None and since != "given":
        raise ValueError(
            "outer: with give= members start from another model than the center: pass "
            'since="given"'
        )

    def apply(state, group, stats, op):
        after = state
        if MergeOp.PUSH in op:
            share = _shares(weights, stats) * _scale_of(scale, stats)
            moves = group.each(lambda r: corrected(_move_of(state, r, since), state))
            after = stepped(state, moves.total(lambda x: x, share), stats)
            statistics = members.mean_statistics(state, group, share)
            after = after._replace(model_state=statistics)
            after = members.unless_empty(after, state, stats)
        if MergeOp.FETCH not in op:
            return after, group
        model = given(after)
        return after, group.each(
            lambda r: members.reset_to(r, model, after.model_state)
        )

    def corrected(move, state):
        return move if correct is None else correct(move, state.memory)

    def stepped(state, move, stats):
        eta = jnp.ones(())
        if per_learning_rate:
            eta = members.mean_learning_rate(stats, _shares("equal", stats))
            move = jax.tree.map(lambda d: d / jnp.where(eta > 0, eta, 1.0), move)
        center, memory = _step(tx, state, move, stats.num_workers, eta)
        return CenterState(center, state.model_state, memory)

    def given(state):
        return state.center if give is None else give(state.center, state.memory)

    def fetch(state, replica):
        return members.reset_to(replica, given(state), state.model_state)

    return group_merge(
        members.center_with(tx.init),
        apply,
        requires=("round_start",) if since == "given" else (),
        properties=MergeProperty.BROADCASTS if give is None else MergeProperty(0),
        as_member=None if give else members.centered_member,
        from_parent=None if give else members.moved_center,
        fetch=None if give is None else fetch,
    )


class ReportSums(NamedTuple):
    """What reports have added since the last step, and the optimizer's state."""

    opt_state: OptState
    moves: PyTree  # sum_i p_i z_i D_i
    directions: PyTree  # sum_i p_i D_i / |D_i| of each tensor; () unless "rda"
    lengths: PyTree  # sum_i p_i |D_i| of each tensor; () unless "rda"
    statistics: PyTree  # sum_i p_i z_i (model state i - the node's)
    weights: jax.Array  # [] sum_i p_i
    number: jax.Array  # [] of reports
    num_workers: jax.Array  # [] of the run: a merge without members does not know it


@checked
def buffered(
    optimizer: Optimizer = optax.sgd,
    *,
    weights: OuterWeights = "equal",
    scale: Scale = 1.0,
    since: Since = "given",
    average: Literal["count", "mean", "rda"] = "count",
) -> Merge:
    """As `outer`, for members whose reports enter sums before one step on all of them.

        ACCUMULATE    S <- S + p_i z_i D_i;    n <- n + 1
        APPLY         c <- c + update(D);      S, n <- 0
        FETCH         w_i <- c

    D is S / n for `average="count"` (FedBuff), and S / sum_i p_i for "mean". "rda"
    averages lengths and directions of each tensor separately, with q_i = p_i / sum p:

        D = (sum_i q_i |D_i|) y / |y|,    y = sum_i q_i D_i / |D_i|     (z_i = 1)

    where 0 / 0 = 0, and the mean where y = 0. Here p_i need not be normalized;
    "weight" is the policy's (`MergeAction.weight`). The operation PUSH is ACCUMULATE
    and APPLY at once. APPLY without a report changes nothing. Sources: FedBuff (Nguyen
    et al. 2022), Decoupled DiLoCo; docs/algorithms L.5, L.9.
    """
    tx = _built(optimizer, "buffered(optimizer)")
    directed = average == "rda"

    def init(params, model_state=()):
        state = members.center_state(params, model_state)
        zeros, zero = members.zeros_like(state.center), jnp.zeros(())
        lengths = jax.tree.map(lambda x: jnp.zeros(()), zeros)
        sums = ReportSums(
            tx.init(state.center),
            zeros,
            tree.copies(zeros) if directed else (),
            lengths if directed else (),
            members.zeros_like(state.model_state),
            zero,
            zero,
            zero,
        )
        return state._replace(memory=sums)

    def apply(state, group, stats, op):
        if op & (MergeOp.PUSH | MergeOp.ACCUMULATE):
            state = state._replace(memory=added(state, group, stats))
        if op & (MergeOp.PUSH | MergeOp.APPLY):
            state = stepped(state)
        if MergeOp.FETCH not in op:
            return state, group
        return state, group.each(
            lambda r: members.reset_to(r, state.center, state.model_state)
        )

    def added(state, group, stats):
        raw = jnp.where(stats.present, members.raw_weights(weights, stats), 0.0)
        share, sums = raw * _scale_of(scale, stats), state.memory
        moves = group.each(lambda r: _move_of(state, r, since))
        units, sizes = sums.directions, sums.lengths
        if directed:
            both = moves.each(lambda d: (_units(d), _sizes(d)))
            units, sizes = _plus((units, sizes), both.total(lambda x: x, raw))
        own = group.each(lambda r: tree.difference(r.model_state, state.model_state))
        return ReportSums(
            sums.opt_state,
            _plus(sums.moves, moves.total(lambda x: x, share)),
            units,
            sizes,
            _plus(sums.statistics, own.total(lambda x: x, share)),
            sums.weights + jnp.sum(raw),
            sums.number + jnp.sum(stats.present),
            jnp.where(jnp.any(stats.present), stats.num_workers, sums.num_workers),
        )

    def stepped(state):
        sums = state.memory
        total = sums.number if average == "count" else sums.weights
        total = jnp.where(total > 0, total, 1.0)
        move = jax.tree.map(lambda s: s / total, sums.moves)
        if directed:
            sizes = jax.tree.map(lambda s: s / total, sums.lengths)
            move = jax.tree.map(_directed, move, sums.directions, sizes)
        old = state._replace(memory=sums.opt_state)
        center, opt_state = _step(tx, old, move, sums.num_workers)
        statistics = tree.map_floats(
            lambda s, d: s + d / total, state.model_state, sums.statistics
        )
        zeros = jax.tree.map(jnp.zeros_like, sums._replace(opt_state=()))
        new = CenterState(center, statistics, zeros._replace(opt_state=opt_state))
        here = sums.number > 0
        return jax.tree.map(lambda n, o: jnp.where(here, n, o), new, state)

    return group_merge(
        init,
        apply,
        ops=PUSH_FETCH | MergeOp.ACCUMULATE | MergeOp.APPLY,
        requires=("round_start",) if since == "given" else (),
        properties=MergeProperty.BROADCASTS,
    )


def _built(optimizer: Optimizer, where: str) -> optax.GradientTransformation:
    tx = built(optimizer, where)
    check_center_optimizer(tx, where)
    return tx


def _shares(weights: OuterWeights, stats: WorkerStats) -> jax.Array:
    return proportional_weights(members.raw_weights(weights, stats), stats.present)


def _scale_of(scale: Scale, stats: WorkerStats) -> jax.Array:
    return scale(stats) if callable(scale) else jnp.asarray(scale, jnp.float32)


def _move_of(state: CenterState, replica: Replica, since: Since) -> PyTree:
    """D_i in float32: since the member was given the model, in the member's dtypes."""
    if since == "center":
        start = tree.cast_like(state.center, replica.params)
    else:
        start = replica.carry["round_start"]
    return tree.difference(start, replica.params)


def _step(
    tx: optax.GradientTransformation,
    state: CenterState,
    move: PyTree,
    num_workers: jax.Array,
    eta: Any = 1.0,
) -> tuple[Params, OptState]:
    """(c, optimizer state) after c <- c + eta update(D)."""
    extra = {}
    if isinstance(tx, optax.GradientTransformationExtraArgs):
        extra = {"num_workers": num_workers}
    updates, opt_state = tx.update(move, state.memory, state.center, **extra)
    center = jax.tree.map(lambda c, u: c + eta * u, state.center, updates)
    return center, opt_state


def _plus(sums: PyTree, more: PyTree) -> PyTree:
    return tree.map_floats(jnp.add, sums, more)


def _size(d: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(d)))


def _sizes(move: PyTree) -> PyTree:
    return jax.tree.map(_size, move)


def _units(move: PyTree) -> PyTree:
    """Each tensor over its length; zeros stay."""

    def unit(d: jax.Array) -> jax.Array:
        size = _size(d)
        return d / jnp.where(size > 0, size, 1.0)

    return jax.tree.map(unit, move)


def _directed(mean: jax.Array, direction: jax.Array, size: jax.Array) -> jax.Array:
    """A tensor of this length along a direction; the mean without a direction."""
    length = _size(direction)
    along = size * direction / jnp.where(length > 0, length, 1.0)
    return jnp.where(length > 0, along, mean)
