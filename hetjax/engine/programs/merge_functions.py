"""Merges as functions on replicas, for use inside a program."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from hetjax import tree
from hetjax.machine.types import MergeOp
from hetjax.merge.counters import counters_of, with_counters
from hetjax.merge.members import at_round_start, reset_to
from hetjax.merge.merge_checks import check_op
from hetjax.merge.types import Merge
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.tree import MergeState


def merge_fn(merge: Merge) -> Callable:
    """As `Programs.merge`, not jitted."""

    def apply(
        state: MergeState, replicas: tuple[Replica, ...], packed: Any, op: MergeOp
    ):
        check_op("this strategy", op, merge.ops)
        return applied(merge, state, replicas, WorkerStats.unpacked(packed), op)

    return apply


def applied(
    merge: Merge,
    state: MergeState,
    replicas: tuple[Replica, ...],
    stats: WorkerStats,
    op: MergeOp,
) -> tuple[MergeState, tuple[Replica, ...]]:
    """Apply a merge; a worker that receives a model starts its round there.

    This does not rely on the merge: a custom one may only replace parameters. One with
    a `fetch` of its own does it itself, as what it gives may not be the model.
    """
    state, replicas = merge.apply(state, replicas, stats, op)
    if merge.fetch is None and op & (MergeOp.FETCH | MergeOp.DELIVER):
        replicas = tuple(at_round_start(r) for r in replicas)
    return state, tuple(replicas)


def fetch_fn(merge: Merge) -> Callable:
    """As `Programs.fetch`, not jitted."""

    def fetch(state: MergeState, replicas: tuple[Replica, ...]) -> tuple[Replica, ...]:
        if merge.fetch is not None:
            return tuple(merge.fetch(state, r) for r in replicas)
        params, model_state = merge.model(state)
        counters = counters_of(model_state)
        after = [reset_to(r, params, model_state) for r in replicas]
        return tuple(
            r._replace(model_state=with_counters(r.model_state, counters))
            for r in after
        )

    return fetch


def check_in(now: Replica, before: Replica, after: Replica) -> Replica:
    """Add the change by a worker's steps to a replica that merges have changed.

    The steps led from `before` to `after`, while merges led from `before` to `now`.
    """
    params, model_state = (
        tree.map_floats(lambda now, before, after: now + (after - before), *trees)
        for trees in zip(now[:2], before[:2], after[:2], strict=True)
    )
    counters = map(
        jnp.maximum, counters_of(now.model_state), counters_of(after.model_state)
    )
    carry = after.carry
    if "round_start" in now.carry:
        carry = {**carry, "round_start": now.carry["round_start"]}
    return after._replace(
        params=params,
        model_state=with_counters(model_state, tuple(counters)),
        carry=carry,
    )
