"""Merges: pure functions on pytrees that make one model of several replicas."""

from hetjax.merge.averaging import average
from hetjax.merge.gradient import gradient_aggregation
from hetjax.merge.normalized import normalized
from hetjax.merge.sma import sma
from hetjax.merge.types import Facts, Merge

__all__ = ["Facts", "Merge", "average", "gradient_aggregation", "normalized", "sma"]
