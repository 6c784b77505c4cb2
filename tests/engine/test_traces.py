"""How often a model is traced: large ones take seconds each time."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tiny_runs import machine

import hetjax as hj
from hetjax.data import from_arrays


def rows():
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    y = np.arange(24) % 2
    return from_arrays((x, y), (x, y))


def train(task, data):
    strategy = hj.local_sgd(batch_size=4, learning_rate=0.1, local_steps=2)
    return hj.train(
        task, data, machine(1.0), strategy, seconds=4.0, num_evals=1, progress=False
    )


def test_a_model_is_built_twice_for_a_task_and_its_runs():
    """Once for its structure, and once for the program that initializes it."""
    built = deque()  # not a list: its contents are no setting of `build`

    def build(features, classes, *, rngs):
        built.append(features)
        return hj.models.MLP(features, classes, hidden=(4,), rngs=rngs)

    data = rows()
    task = hj.classification(build, data)
    for _ in range(2):
        train(task, data)
    assert len(built) == 2


def test_a_module_starts_from_the_parameters_that_it_had():
    """Those of when the task was made, whether a program was made before a change."""
    data = rows()
    starts = []
    for early in (False, True):
        model = hj.models.MLP(3, 2, hidden=(4,), rngs=nnx.Rngs(0))
        task = hj.classification(model, data)
        if early:
            train(task, data)
        nnx.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param)))
        starts.append(train(task, data).evals[0]["loss"])
    assert starts[0] == starts[1] != np.float32(np.log(2))
