"""Two small problems with gradients in NumPy float64, and two machines.

A model is a flat vector here, in the order of `jax.flatten_util.ravel_pytree`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from hetjax import Task, classification, models
from hetjax.data import Dataset, from_arrays
from hetjax.machine import Cost, Link, Machine, Profile, preset

TRAIN, TEST = 70, 20  # passes end in the middle of batches


class Problem(NamedTuple):
    """A task and data; `gradient(w, rows)` is of the mean loss over training rows."""

    task: Task
    data: Dataset
    gradient: Callable[[np.ndarray, np.ndarray], np.ndarray]
    loss: Callable[[np.ndarray], float]  # mean over the test split
    losses: Callable[[np.ndarray, np.ndarray], np.ndarray]  # of training rows
    right: Callable[[np.ndarray, np.ndarray], float]  # metric on training rows

    def initial(self, seed):
        """The parameters that a run with this seed starts from."""
        return flat(jax.jit(self.task.init)(jax.random.key(seed))[0])


def flat(params):
    """Parameters as one float64 vector."""
    return np.asarray(ravel_pytree(params)[0], np.float64)


def float64(split):
    return np.asarray(split.x, np.float64), np.asarray(split.y)


# loss_i = |w - x_i|^2 / 2, by hand; w is spread over two leaves


def quadratic():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(TRAIN + TEST, 5)).astype(np.float32)
    y = np.zeros(len(x), np.int32)
    data = from_arrays((x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:]), num_classes=1)
    train, test = float64(data.train)[0], float64(data.test)[0]
    return Problem(
        Task(_init, _loss, _metrics, "score"),
        data,
        lambda w, rows: w - train[rows].mean(0),
        lambda w: float(np.mean(np.sum((w - test) ** 2, -1) / 2)),
        lambda w, rows: np.sum((w - train[rows]) ** 2, -1) / 2,
        lambda w, rows: float(-np.mean(np.sum((w - train[rows]) ** 2, -1) / 2)),
    )


def _init(key):
    w = 2 * jax.random.normal(key, (5,))
    return {"a": w[:2], "b": w[2:].reshape(1, 3)}, ()


def _loss(params, model_state, batch, key):
    w = jnp.concatenate([params["a"], params["b"][0]])
    return jnp.sum((w[None] - batch.x) ** 2, -1) / 2, model_state


def _metrics(params, model_state, batch):
    losses, _ = _loss(params, model_state, batch, None)
    return {"loss": losses, "score": -losses}


# An MLP 6-5-3 with softmax cross-entropy

SIZES = (6, 5, 3)


def classes():
    """Three noisy groups of points."""
    rng = np.random.default_rng(2)
    n, (features, _, groups) = TRAIN + TEST, SIZES
    y = rng.integers(groups, size=n)
    x = rng.normal(size=(groups, features))[y] + rng.normal(size=(n, features))
    x = x.astype(np.float32)
    return from_arrays((x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:]), num_classes=3)


def ten_groups():
    """Ten groups of 64 features, as large as handwritten digits, without their file.

    Loading those imports scikit-learn, which takes longer than to learn them.
    """
    rng = np.random.default_rng(3)
    y = rng.integers(10, size=1797)
    x = rng.uniform(size=(10, 64))[y] + rng.normal(scale=0.3, size=(1797, 64))
    x = x.astype(np.float32)
    return from_arrays((x[:1437], y[:1437]), (x[1437:], y[1437:]), num_classes=10)


def perceptron():
    data = classes()
    train, test = float64(data.train), float64(data.test)
    return Problem(
        classification(models.mlp(hidden=SIZES[1]), data),
        data,
        lambda w, rows: _backward(w, train[0][rows], train[1][rows]),
        lambda w: float(-np.mean(_forward(w, *test)[0])),
        lambda w, rows: -_forward(w, train[0][rows], train[1][rows])[0],
        lambda w, rows: _accuracy(w, train[0][rows], train[1][rows]),
    )


def _unpack(w):
    """b_1 [H], W_1 [F, H], b_2 [C], W_2 [H, C]: keys in alphabetical order."""
    f, h, c = SIZES
    b1, w1, b2, w2 = np.split(w, np.cumsum([h, f * h, c]))
    return b1, w1.reshape(f, h), b2, w2.reshape(h, c)


def _forward(w, x, y):
    """Log-probabilities of the labels, all probabilities, and hidden units."""
    b1, w1, b2, w2 = _unpack(w)
    hidden = np.maximum(x @ w1 + b1, 0)
    z = hidden @ w2 + b2
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.log(p[np.arange(len(y)), y]), p, hidden


def _accuracy(w, x, y):
    return float(np.mean(_forward(w, x, y)[1].argmax(-1) == y))


def _backward(w, x, y):
    _, p, hidden = _forward(w, x, y)
    dz = (p - np.eye(SIZES[2])[y]) / len(y)
    dh = (dz @ _unpack(w)[3].T) * (hidden > 0)
    pieces = dh.sum(0), x.T @ dh, dz.sum(0), hidden.T @ dz
    return np.concatenate([piece.ravel() for piece in pieces])


# Machines


def three_workers(noise=0.1):
    """Three workers that differ in every respect, with a slow central server."""
    costs = Cost(2e-3, 1e-4), Cost(1e-3, 4e-4), Cost(5e-3, 2e-4)
    workers = tuple(
        Profile(f"w{k}", "gpu", cost, factor=factor)
        for k, (cost, factor) in enumerate(zip(costs, (1.0, 1.7, 0.6), strict=True))
    )
    link = Link(latency=3e-4, bandwidth=5e6, topology="central")
    return Machine("three", workers, {"": link}, noise=noise, seed=5)


def two_places():
    """Heterogeneous pairs of workers in two places, each with its own link."""
    places = [(f"place{k // 6}", f"pair{k // 2}") for k in range(8)]
    workers = tuple(
        Profile(f"w{k}", "gpu", Cost(1e-3, 2e-4), factor=1 + k % 3 / 2, place=place)
        for k, place in enumerate(places)
    )
    inner = {"/".join(place[:depth]) for place in places for depth in (1, 2)}
    links = {"": Link(latency=3e-4, bandwidth=5e6, topology="central")}
    links |= {key: Link(latency=1e-4, bandwidth=2e7) for key in sorted(inner)}
    return Machine("two places", workers, links, noise=0.1, seed=6)


MACHINES = {
    "v100x4": lambda: preset("v100x4", noise=0.1),
    "three": three_workers,
    "two places": two_places,
}
PROBLEMS = {"quadratic": quadratic, "perceptron": perceptron}
