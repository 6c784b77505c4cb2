"""Named algorithms: factories that put a policy, a local rule and a merge together."""

from hetjax.strategies.adaptive import adaptive_sgd
from hetjax.strategies.baselines import elastic_sgd, sequential_sgd, sync_sgd
from hetjax.strategies.crossbow import sma
from hetjax.strategies.types import Strategy

STRATEGIES = {
    "sequential_sgd": sequential_sgd,
    "sync_sgd": sync_sgd,
    "elastic_sgd": elastic_sgd,
    "sma": sma,
    "adaptive_sgd": adaptive_sgd,
}

__all__ = [
    "STRATEGIES",
    "Strategy",
    "adaptive_sgd",
    "elastic_sgd",
    "sequential_sgd",
    "sma",
    "sync_sgd",
]
