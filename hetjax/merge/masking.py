"""A wrapper for merges that do not handle absent members themselves."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.group import unstacked
from hetjax.merge.members import reset_to
from hetjax.merge.merge_checks import check_count, check_op
from hetjax.merge.types import APPLY, Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.tree import MergeState, PyTree

MOST = 32  # members; a branch is compiled for each number of present members


def masked(merge: Merge) -> Merge:
    """The merge applied only to the members that have local steps.

    `merge.apply` is called with the replicas and statistics of the m members that are
    present, in their order. It is compiled once for each m from 1 to n, so n is at most
    32. An absent member is unchanged, or continues from the merged model if the merge
    BROADCASTS. With no member present, nothing changes. A coordinate-wise median
    written for tuples, for example, thus ignores members without updates.
    """

    def apply(state, replicas, stats, op=PUSH_FETCH):
        check_op("masked", op, merge.ops)
        replicas, n = tuple(replicas), len(replicas)
        check_count("masked", n, stats)
        if n > MOST:
            raise ValueError(
                f"masked: {n} members, but at most {MOST} are supported: write the "
                "merge with weights (hj.formulas.weighted_mean, Group.total), where an "
                "absent member has weight zero"
            )
        order = jnp.argsort(~stats.present, stable=True)  # present members first
        place = jnp.argsort(order)
        chosen, numbers = _picked(replicas, order), _picked_stats(stats, order)
        branches = [_unchanged, *(_of_first(merge, m, op) for m in range(1, n + 1))]
        state, chosen = lax.switch(
            jnp.sum(stats.present), branches, state, chosen, numbers
        )
        return state, _picked(chosen, place)

    apply.__doc__ = APPLY
    written_for_tuples = merge.properties & ~MergeProperty.TAKES_GROUPS
    properties, part = written_for_tuples | MergeProperty.MASKS, merge.part
    return merge._replace(
        apply=apply,
        properties=properties,
        part=part and (lambda name: masked(part(name))),
    )


def _unchanged(
    state: MergeState, replicas: tuple[Replica, ...], stats: WorkerStats
) -> Any:
    del stats
    return state, replicas


def _of_first(merge: Merge, m: int, op: MergeOp) -> Callable[..., Any]:
    """The merge of the first m members; results keep the dtypes of the inputs."""

    def apply(state, replicas, stats):
        here, absent = replicas[:m], replicas[m:]
        some = WorkerStats(*(x[:m] if x.ndim else x for x in stats))
        new, merged = merge.apply(state, here, some, op)
        new, merged = _as_before((new, tuple(merged)), (state, here))
        if MergeProperty.BROADCASTS in merge.properties:
            model = merge.model(new)
            absent = tuple(reset_to(r, *model) for r in absent)
        return new, (*merged, *absent)

    return apply


def _as_before(new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.asarray(x, jnp.result_type(y)), new, old)


def _picked(replicas: tuple[Replica, ...], order: jax.Array) -> tuple[Replica, ...]:
    """The replicas in another order, which is known only at run time."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves)[order], *replicas)
    return unstacked(stacked, len(replicas))


def _picked_stats(stats: WorkerStats, order: jax.Array) -> WorkerStats:
    return WorkerStats(*(x[order] if x.ndim else x for x in stats))
