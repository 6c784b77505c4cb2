"""The quadratic problem of docs/algorithms' vectors: three workers, two coordinates.

The t-th gradient of worker i at x is x - a_i[t mod 2], from (1, -1), at eta = .5.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hetjax import local
from hetjax.data.batching import Batch
from hetjax.tasks.types import Task

START = {"x": jnp.float32([1.0, -1.0])}
ETA = 0.5
TARGETS = np.array(
    [[(2, 0), (0, 1)], [(-1, 1), (1, -2)], [(0.5, 0.5), (-2, 0)]], np.float32
)  # [worker, t mod 2, coordinate]


def loss(params, model_state, batch, key):
    del key
    return jnp.sum((params["x"][None] - batch.x) ** 2, axis=1) / 2, model_state


TASK = Task(lambda key: (START, ()), loss, lambda *of: {}, "loss")


class Workers:
    """Workers whose replicas make local steps when they are asked for."""

    def __init__(self, update, merge, number):
        self.step = local.step_fn(update, TASK, requires=merge.requires)
        self.replicas = [
            local.new_replica(update, START, requires=merge.requires)
            for _ in range(number)
        ]
        self.seen = [0] * number  # the gradients that each has computed

    def works(self, worker, steps=1, eta=ETA):
        """The worker makes local steps from its model."""
        for _ in range(steps):
            target = TARGETS[worker][self.seen[worker] % 2]
            one = np.ones((), np.float32)
            batch = Batch(target[None], np.zeros(1), one[None], one)
            self.replicas[worker], _ = self.step(
                self.replicas[worker], batch, jnp.float32(eta), jax.random.key(0)
            )
            self.seen[worker] += 1


def close(actual, expected):
    """As printed: six digits."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)
