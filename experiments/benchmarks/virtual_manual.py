"""Simulated workers without hetjax: hand-written `async_sgd` and `local_sgd`.

"dispatch" calls a compiled program per arrival or per step, on batches that are ready
on the host. "scan" is one program for the whole run: it indexes data on the
device by the given row numbers. Both return the final parameters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.local_sgd_peers import loss_of
from hetjax.data.dataset import Split

MOMENTUM = 0.9  # the default of `hetjax.local_sgd`
ByHand = dict[str, Callable[[], Any]]


class Start(NamedTuple):
    """The common settings of the contenders."""

    params: Any
    train: Split
    workers: int
    learning_rate: float


_gradient = jax.grad(loss_of("mlp"))


def async_sgd(start: Start, order: np.ndarray, rows: np.ndarray) -> ByHand:
    """Worker order[n] pushes the gradient of rows[n], then it fetches the center.

    `order` is int32 [arrivals], `rows` int32 [arrivals, batch].
    """
    rate = start.learning_rate

    @jax.jit
    def arrival(center: Any, replica: Any, x: Any, y: Any) -> Any:
        gradient = _gradient(replica, x, y)
        return jax.tree.map(lambda w, g: w - rate * g, center, gradient)

    batches = [(start.train.x[r], start.train.y[r]) for r in rows]

    def dispatch() -> Any:
        center = start.params
        replicas = [center] * start.workers
        for worker, (x, y) in zip(order.tolist(), batches, strict=True):
            # nothing is donated, so that a fetch is a second reference to the center
            replicas[worker] = center = arrival(center, replicas[worker], x, y)
        return center

    x, y = jnp.asarray(start.train.x), jnp.asarray(start.train.y)

    @jax.jit
    def run(center: Any, order: Any, rows: Any) -> Any:
        def one(carry: Any, given: Any) -> tuple[Any, None]:
            (center, replicas), (worker, own) = carry, given
            replica = jax.tree.map(lambda r: r[worker], replicas)
            center = arrival(center, replica, x[own], y[own])
            replicas = jax.tree.map(lambda r, c: r.at[worker].set(c), replicas, center)
            return (center, replicas), None

        replicas = _stacked(center, start.workers)
        return jax.lax.scan(one, (center, replicas), (order, rows))[0][0]

    return {"dispatch": dispatch, "scan": lambda: run(start.params, order, rows)}


def local_sgd(start: Start, rows: np.ndarray) -> ByHand:
    """Rounds of local steps with momentum, then an average of the parameters.

    `rows` is int32 [rounds, workers, steps, batch].
    """
    rate, train = start.learning_rate, start.train

    @jax.jit
    def step(replica: Any, x: Any, y: Any) -> Any:
        params, velocity = replica
        gradient = _gradient(params, x, y)
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradient)
        return jax.tree.map(lambda w, v: w - rate * v, params, velocity), velocity

    @jax.jit
    def average(replicas: list[Any]) -> Any:
        return jax.tree.map(lambda *ws: sum(ws) / len(ws), *replicas)

    zeros = jax.tree.map(jnp.zeros_like, start.params)
    batches = [
        [[(train.x[r], train.y[r]) for r in own] for own in of_round]
        for of_round in rows
    ]

    def dispatch() -> Any:
        center, velocities = start.params, [zeros] * start.workers
        for of_round in batches:
            replicas = []
            for worker, own in enumerate(of_round):
                replica = center, velocities[worker]
                for x, y in own:
                    replica = step(replica, x, y)
                params, velocities[worker] = replica
                replicas.append(params)
            center = average(replicas)
        return center

    x, y = jnp.asarray(train.x), jnp.asarray(train.y)

    @jax.jit
    def run(center: Any, rows: Any) -> Any:
        def one_step(replica: Any, own: Any) -> tuple[Any, None]:
            return step(replica, x[own], y[own]), None

        def one_round(carry: Any, rows: Any) -> tuple[Any, None]:
            center, velocities = carry

            def arrival(total: Any, given: Any) -> tuple[Any, Any]:
                velocity, own = given
                (params, velocity), _ = jax.lax.scan(one_step, (center, velocity), own)
                return jax.tree.map(jnp.add, total, params), velocity

            total, velocities = jax.lax.scan(arrival, zeros, (velocities, rows))
            center = jax.tree.map(lambda t: t / start.workers, total)
            return (center, velocities), None

        velocities = _stacked(zeros, start.workers)
        return jax.lax.scan(one_round, (center, velocities), rows)[0][0]

    return {"dispatch": dispatch, "scan": lambda: run(start.params, rows)}


def _stacked(params: Any, workers: int) -> Any:
    """The same parameters for every worker, along a new first axis."""
    return jax.tree.map(lambda w: jnp.broadcast_to(w, (workers, *w.shape)), params)


def check_equal(contenders: ByHand) -> None:
    """Raise an AssertionError unless both ways end with the same parameters."""
    dispatch, scan = (contenders[way]() for way in ("dispatch", "scan"))
    for ours, others in zip(*map(jax.tree.leaves, (dispatch, scan)), strict=True):
        np.testing.assert_allclose(ours, others, rtol=0, atol=1e-5, equal_nan=False)
