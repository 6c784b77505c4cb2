"""Runs that both players play: problems, machines, and what must be equal."""

import contextlib
import dataclasses
from functools import cache
from unittest import mock

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
from checkpointed_runs import outcome, run, session
from small_runs import problem
from tiny_problems import three_workers

import hetjax as hj
from hetjax.data import from_arrays
from hetjax.machine import ScriptedFault
from hetjax.runtimes import simulated

SECONDS = 0.08
IN_TURN, SIDE_BY_SIDE = False, True


class Convolution(nnx.Module):
    """A small convolutional model."""

    def __init__(self, num_features, num_classes, rngs):
        self.first = nnx.Conv(1, 2, (3, 3), rngs=rngs)
        self.last = nnx.Linear(2 * 4 * 4, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)).reshape(len(x), -1))


class Statistics(nnx.Module):
    """A model with batch statistics and a random stream."""

    def __init__(self, num_features, num_classes, rngs):
        self.first = nnx.Linear(num_features, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.last = nnx.Linear(5, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def _images():
    rng = np.random.default_rng(4)
    y = rng.integers(3, size=90)
    x = rng.normal(size=(3, 4, 4, 1))[y] + rng.normal(size=(90, 4, 4, 1))
    x = x.astype(np.float32)
    return from_arrays((x[:70], y[:70]), (x[70:], y[70:]), num_classes=3)


def _xmc():
    return hj.data.synthetic_xmc(
        rows=70, test_rows=20, features=40, labels=7, nonzeros=6.0
    )


@cache
def task_of(kind):
    """(task, data) of a kind of model."""
    if kind == "mlp":
        return problem().task, problem().data
    if kind == "sparse":
        data = _xmc()
        return hj.classification(hj.models.sparse_mlp(hidden=4), data), data
    if kind == "convolution":
        data = _images()
        return hj.classification(Convolution, data), data
    assert kind == "statistics"
    return hj.classification(Statistics, problem().data), problem().data


@cache
def unlucky(kind, share=0.04):
    """(task, data) of a kind whose loss is NaN in a share of all steps."""
    task, data = task_of(kind)

    def loss(params, model_state, batch, key):
        losses, state = task.loss(params, model_state, batch, key)
        bad = jax.random.uniform(jax.random.fold_in(key, 7)) < share
        return losses * jnp.where(bad, jnp.nan, 1.0), state

    return task._replace(loss=loss), data


def with_faults():
    """Three workers that are killed, join and become slow."""
    faults = (
        ScriptedFault(0.011, "kill", "w0"),
        ScriptedFault(0.013, "slow", "w1", 3.0),
        ScriptedFault(0.031, "join", "w0"),
        ScriptedFault(0.041, "kill", "w2"),
    )
    return dataclasses.replace(three_workers(), faults=faults)


@cache
def runs_of(kind, trouble="", seconds=SECONDS):
    """A session; `trouble` is "faults", "reset", "stop" or none."""
    nan = trouble in ("reset", "stop")
    task, data = unlucky(kind) if nan else task_of(kind)
    machine = with_faults() if trouble == "faults" else three_workers()
    settings = {"on_nan": trouble} if nan else {}
    return session(task, data, machine, seconds, **settings)


@contextlib.contextmanager
def rounds_are(side_by_side):
    """Compiled runs play the rounds of a superstep side by side, or in turn."""
    lanes = 8 if side_by_side else 1
    with mock.patch.object(simulated, "num_lanes", return_value=lanes):
        yield


def compiled(session, strategy, side_by_side=IN_TURN, **settings):
    """The history of a compiled run."""
    with rounds_are(side_by_side):
        history = run(session, strategy, compiled=True, **settings)
    assert history.played == "compiled"
    return history


def reference(session, strategy, **settings):
    """The history that the reference player makes."""
    history = run(session, strategy, compiled=False, **settings)
    assert history.played == "reference player: compiled=False"
    return history


def assert_agree(found, expected, *, atol=1e-6):
    """Everything is equal to the bit, but for the numbers that were learned."""
    for history in (found, expected):
        if history.error is not None:
            raise history.error
    counted = ("seconds", "updates", "examples", "merges", "bytes")
    ours, theirs = outcome(found), outcome(expected)
    for of in (ours, theirs):
        del of["bits"]
        of["learned"] = [
            {k: v for k, v in point.items() if k not in counted}
            for point in of["evals"]
        ]
        of["evals"] = [{k: point[k] for k in counted} for point in of["evals"]]
    learned = ours.pop("learned"), theirs.pop("learned")
    for name, value in theirs.items():
        assert ours[name] == value, name
    for mine, its in zip(*learned, strict=True):
        assert mine.keys() == its.keys()
        close(list(mine.values()), list(its.values()), 10 * atol)
    models = [(h.params, h.model_state) for h in (found, expected)]
    assert len({jax.tree.structure(m) for m in models}) == 1
    jax.tree.map(lambda a, b: close(a, b, atol), *models)


def close(found, expected, atol):
    """Numbers differ by no more, absolutely or relatively; a NaN equals a NaN."""
    wide = [np.asarray(x, np.float64) for x in (found, expected)]
    np.testing.assert_allclose(*wide, rtol=atol, atol=atol)
