"""Shared code of the identity tests: runs on one problem, and their comparison."""

import copy
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from tiny_problems import PROBLEMS, flat, three_workers

from hetjax import merge
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.machine import Link, preset
from hetjax.sampling import Sampler

SECONDS, POINTS, SEED = 0.04, 8, 1

# Rounding of tens of steps on numbers of the order of 1 (see test_oracles).
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


@cache
def problem():
    return PROBLEMS["perceptron"]()


@cache
def session():
    """One session for all runs: they share their compiled programs."""
    task, data = problem().task, problem().data
    return Session(
        task, data, three_workers(), RunConfig(seconds=SECONDS, num_evals=POINTS)
    )


def train(strategy, machine, num_evals=POINTS):
    one = copy.copy(session())
    one.machine = machine
    one.config = RunConfig(seconds=SECONDS, num_evals=num_evals)
    return one.run(strategy.name, strategy, SEED, ProgressBar(SECONDS, shown=False))


def free(machine):
    """The same workers, with links that take no time."""
    return replace(machine, links={"": Link(latency=0.0, bandwidth=1e30)})


ONE = free(preset("v100x1"))


def column(history, name):
    return [point[name] for point in history.evals]


COUNTS = ("seconds", "updates", "examples")


def assert_same_run(one, other, *, counts=COUNTS):
    """Equal evaluations and final parameters, after at least a few merges."""
    assert one.merges == other.merges >= 4
    for name in counts:
        assert column(one, name) == column(other, name)
    assert len({p["loss"] for p in one.evals}) > 4  # the loss changes
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(
            column(one, name), column(other, name), **TOLERANCE, err_msg=name
        )
    np.testing.assert_allclose(flat(one.params), flat(other.params), **TOLERANCE)


class Watched(NamedTuple):
    """The state of a merge, and the first member's parameters after it."""

    state: Any
    params: Any


def watching(inner):
    """The merge whose model is the first replica instead of its own centre."""

    def init(params, model_state):
        copy = jax.tree.map(lambda x: x + 0, params)
        return Watched(inner.init(params, model_state), copy)

    def apply(state, replicas, stats, op):
        new, replicas = inner.apply(state.state, replicas, stats, op)
        return Watched(new, replicas[0].params), replicas

    def model(state):
        return state.params, inner.model(state.state)[1]

    return merge.Merge(init, apply, model, inner.requires)


def own_order():
    """A sampler with an order of its own for each worker, whatever the others draw.

    Elastic draws K batches at once, Adaptive one at a time: only with this sampler do
    they see the same examples.
    """

    def init(workers, num_examples, seed):
        rngs = [np.random.default_rng((seed, worker.index)) for worker in workers]
        return tuple(rng.integers(num_examples, size=10_000) for rng in rngs)

    def draw(state, worker, n):
        rest = list(state)
        rest[worker] = state[worker][n:]
        return tuple(rest), state[worker][:n]

    return Sampler(init, draw)
