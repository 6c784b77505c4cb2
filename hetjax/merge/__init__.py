"""Merges: pure functions on pytrees that make one model of several replicas."""

from hetjax.merge.asynchronous import downpour, elastic, gossip, ticking
from hetjax.merge.averaging import average
from hetjax.merge.federated import fed_acc, fed_adp, fed_nova
from hetjax.merge.gradient import gradient_aggregation
from hetjax.merge.hierarchical import hierarchical
from hetjax.merge.normalized import normalized
from hetjax.merge.sma import replica_mean, sma
from hetjax.merge.types import Facts, Merge

__all__ = [
    "Facts",
    "Merge",
    "average",
    "downpour",
    "elastic",
    "fed_acc",
    "fed_adp",
    "fed_nova",
    "gossip",
    "gradient_aggregation",
    "hierarchical",
    "normalized",
    "replica_mean",
    "sma",
    "ticking",
]
