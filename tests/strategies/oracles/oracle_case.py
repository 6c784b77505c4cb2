"""The cases that oracles and strategies run on; the oracle of every strategy."""

from typing import Any, NamedTuple

import async_oracle
import federated_oracle
import float64_oracle
import numpy as np
import tree_oracle

from hetjax import sampling


def sma(world, *, two_level=None, **settings):
    if two_level:
        settings.pop("restart", None)
        return tree_oracle.two_level_sma(world, two_level=two_level, **settings)
    return float64_oracle.sma(world, **settings)


ORACLES = {
    "sequential_sgd": float64_oracle.sequential_sgd,
    "sync_sgd": float64_oracle.sync_sgd,
    "elastic_sgd": float64_oracle.elastic_sgd,
    "easgd_sync": float64_oracle.easgd_sync,
    "sma": sma,
    "hier_sgd": tree_oracle.hier_sgd,
    "local_sgd": federated_oracle.local_sgd,
    "biased_local_sgd": federated_oracle.biased_local_sgd,
    "fed_nova": federated_oracle.fed_nova,
    "fed_acc": federated_oracle.fed_acc,
    "fed_adp": federated_oracle.fed_adp,
    "async_sgd": async_oracle.async_sgd,
    "magma_async_sgd": async_oracle.magma_async_sgd,
    "hogwild": async_oracle.hogwild,
    "downpour": async_oracle.downpour,
    "easgd": async_oracle.easgd,
    "eamsgd": async_oracle.eamsgd,
    "ad_psgd": async_oracle.ad_psgd,
    "adaptive_sgd": float64_oracle.adaptive_sgd,
}
BOTH = ("quadratic", "perceptron")
ONE = ("perceptron",)  # for variants of cases that run on both problems


class Case(NamedTuple):
    """A factory, its settings and its oracle's, and where they run."""

    strategy: str
    machine: str
    settings: dict[str, Any]
    problems: tuple[str, ...] = BOTH
    shards: Any = None  # a sampler that replaces the strategy's
    reaches: Any = None  # a branch that the oracle must have taken


def case(strategy, machine, *, problems=BOTH, shards=None, reaches=None, **settings):
    return Case(strategy, machine, settings, problems, shards, reaches)


def falling(examples):
    return 0.3 / (1 + examples / 200)


def dropping(examples):
    """A schedule in steps."""
    return 0.2 if examples < 100 else 0.1 if examples < 180 else 0.04


def quickly(seconds):
    return 0.2 / (1 + seconds / 0.02)


def by_half(updates):
    return 0.2 if updates < 20 else 0.1 if updates < 50 else 0.04


def unequal_shards():
    """Shards of forty, twenty and ten of the seventy rows."""
    rows = np.random.default_rng(0).permutation(70)
    return sampling.sharded(np.split(rows, (40, 60)))


S = {"batch_size": 6, "learning_rate": 0.1}
