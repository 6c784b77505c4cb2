"""Gossip: a worker and its partners average their models, without a server."""

from collections.abc import Sequence

import jax.numpy as jnp

from hetjax import tree
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.formulas.moves import plain_mean
from hetjax.merge.formulas.server_steps import descent
from hetjax.merge.group import Group
from hetjax.merge.members import centered_model, mean_statistics, reset_to
from hetjax.merge.merge_checks import check_buffers, check_count, check_op
from hetjax.merge.parameter_server import ServerState, server_state
from hetjax.merge.types import APPLY, Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica


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
    et al. 2018); docs/algorithms G.6. The formula is `pair_average`.
    """
    requires = ("grad_sum",)

    def apply(
        state: ServerState,
        replicas: Sequence[Replica],
        stats: WorkerStats,
        op: MergeOp = PUSH_FETCH,
    ) -> tuple[ServerState, tuple[Replica, ...]]:
        check_op("gossip", op, PUSH_FETCH)
        check_buffers("gossip", replicas[:1], requires)
        check_buffers("gossip", replicas[1:], ())
        check_count("gossip", len(replicas), stats)
        first = replicas[0]
        here = stats.present[:1]
        gamma = jnp.where(here[0], stats.learning_rate[0], 0.0)
        g = tree.weighted_sum([first.carry["grad_sum"]], jnp.where(here, 1.0, 0.0))
        mean = plain_mean([r.params for r in replicas])
        statistics = plain_mean([r.model_state for r in replicas])
        others = tuple(reset_to(r, mean, statistics) for r in replicas[1:])
        stepped = reset_to(first, descent(mean, g, gamma), statistics)
        center = descent(state.center, g, gamma / stats.num_workers)
        share = jnp.where(here, 1.0 / stats.num_workers, 0.0)
        own = mean_statistics(state, Group((first,)), share)
        return ServerState(center, own), (stepped, *others)

    apply.__doc__ = APPLY
    return Merge(
        server_state,
        apply,
        centered_model,
        requires,
        properties=MergeProperty.BROADCASTS | MergeProperty.UPDATES_BUSY_WORKERS,
    )
