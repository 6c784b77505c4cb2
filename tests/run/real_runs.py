"""Short runs on the test process's four CPU devices, of models that compile at once."""

import threading

import jax.numpy as jnp
import numpy as np

import hetjax as hj
from hetjax.data import from_arrays

FEATURES, CLASSES = 6, 3


def small_data(examples=60):
    """Three noisy groups of points."""
    rng = np.random.default_rng(2)
    y = rng.integers(CLASSES, size=examples)
    x = rng.normal(size=(CLASSES, FEATURES))[y] + rng.normal(size=(examples, FEATURES))
    x = x.astype(np.float32)
    return from_arrays((x, y), (x[:20], y[:20]), num_classes=CLASSES)


DATA = small_data()
TASK = hj.classification(hj.models.mlp(hidden=5), DATA)


def poisoned_task(bad_row=7):
    """The loss of one example is NaN, and so is every gradient that it is part of."""
    x = DATA.train.x[bad_row]

    def loss(params, model_state, batch, key):
        losses, state = TASK.loss(params, model_state, batch, key)
        bad = jnp.all(batch.x == x[None], axis=-1)
        return jnp.where(bad, jnp.nan, 1.0) * losses, state

    return TASK._replace(loss=loss)


def three_workers(**settings):
    """Of three devices, the last of which is slowed."""
    settings = {"slowdown": (1, 1, 2), "form": "dispatch", **settings}
    return hj.local_machine(["cpu:0", "cpu:1", "cpu:2"], **settings)


def real(strategy, machine=None, *, seconds=0.3, task=TASK, points=3, **options):
    """A run for real."""
    machine = machine or three_workers()
    options = {"points": points, "progress": False, **options}
    return hj.train(task, DATA, machine, strategy, seconds=seconds, **options)


def rounds(**settings):
    """Local SGD: two steps each, then all merge."""
    return hj.local_sgd(**{"batch_size": 4, "rate": 0.1, "steps": 2, **settings})


def what_happened(history):
    """(worker, what) of every incident."""
    return [(i.worker, i.what) for i in history.incidents]


def own_threads():
    """Threads of hetjax that are alive."""
    return [t for t in threading.enumerate() if t.name.startswith("hetjax worker")]
