"""Merges: pure functions on pytrees that combine several replicas into one model.

merges        `average`, `sma`, ...: pairs of functions, `m.init(params)` and
              `m.apply(state, replicas, stats(local_steps=[8, 4]))`
custom        `Merge` and `masked` on tuples of replicas; `group_merge` on a `Group`

The functions that merges consist of, on any pytrees, are in `hetjax.formulas`.

All merges promise, where their docstrings say nothing else: the order of workers is
irrelevant; consensus is an exact fixed point; a member without local steps is absent.

A `hetjax.Replica` holds a worker's params, model state and optimizer state, and the
buffers in `m.requires`. Both `local.new_replica` and `local.step_fn` take `requires`.

>>> import hetjax as hj
>>> m, params = hj.merge.sma(), {"w": 1.0}
>>> r = hj.local.new_replica(hj.local.sgd(), params, requires=m.requires)
>>> state, (r, _) = m.apply(m.init(params), (r, r), hj.merge.stats(local_steps=[8, 4]))

On a mesh, with P = jax.sharding.PartitionSpec and leaves [8, ...] of all replicas:

    mesh = jax.make_mesh((8,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, own = P(), P("workers")  # state and statistics; replicas
    @jax.shard_map(mesh=mesh, in_specs=(whole, own, whole),
                   out_specs=(whole, own), check_vma=False)
    def merged(state, replicas, stats):
        r = jax.tree.map(lambda x: x[0], replicas)  # of this device
        state, (r,) = hj.merge.over_axis(m, "workers").apply(state, (r,), stats)
        return state, jax.tree.map(lambda x: x[None], r)
"""

from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.averaging import average, normalized
from hetjax.merge.compression import compressed
from hetjax.merge.delay_compensation import delay_compensated
from hetjax.merge.federated import fed_acc, fed_adp, fed_nova
from hetjax.merge.gradient import gradient_aggregation, hierarchical
from hetjax.merge.gradient_tables import gradient_sums, malenia, ringleader
from hetjax.merge.group import Group
from hetjax.merge.group_merges import group_merge, over_axis
from hetjax.merge.masking import masked
from hetjax.merge.members import reset_to
from hetjax.merge.outer import buffered, outer
from hetjax.merge.parameter_server import downpour, easgd, gossip, magma_async
from hetjax.merge.parts import Pattern, divided, in_parts
from hetjax.merge.scaffold import scaffold
from hetjax.merge.sma import replica_mean, sma
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats, stats
from hetjax.replica import Buffer

__all__ = [
    "PUSH_FETCH",
    "Pattern",
    "Buffer",
    "Group",
    "Merge",
    "MergeOp",
    "MergeProperty",
    "WorkerStats",
    "average",
    "buffered",
    "divided",
    "compressed",
    "delay_compensated",
    "downpour",
    "easgd",
    "fed_acc",
    "fed_adp",
    "fed_nova",
    "gossip",
    "gradient_aggregation",
    "gradient_sums",
    "group_merge",
    "hierarchical",
    "in_parts",
    "magma_async",
    "malenia",
    "masked",
    "normalized",
    "outer",
    "over_axis",
    "replica_mean",
    "reset_to",
    "ringleader",
    "scaffold",
    "sma",
    "stats",
]
