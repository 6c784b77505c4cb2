"""Samplers, which choose the examples of every worker (host world, no JAX)."""

from hetjax.sampling.biased import POOL_FORMULAS, biased
from hetjax.sampling.sharded import sharded
from hetjax.sampling.types import Sampler
from hetjax.sampling.uniform import uniform

__all__ = ["POOL_FORMULAS", "Sampler", "biased", "sharded", "uniform"]
