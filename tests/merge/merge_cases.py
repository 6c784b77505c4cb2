"""Shared code of the merge tests: random models and members, and comparisons."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from hetjax.merge import WorkerStats
from hetjax.replica import Buffer, Replica

SHAPES = {  # mixed ranks in both dtypes; few leaves, because compilation dominates
    "scalar": jax.ShapeDtypeStruct((), jnp.bfloat16),
    "layer": {"vector": jax.ShapeDtypeStruct((3,), jnp.float32)},
    "matrices": [jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)],
}
# statistics are averaged, a counter is not
STATE = {
    "mean": jax.ShapeDtypeStruct((2,), jnp.float32),
    "count": jax.ShapeDtypeStruct((), jnp.int32),
}


def random(rng, shapes):
    """A tree of normal numbers (integers: up to a hundred)."""

    def leaf(s):
        integer = jnp.issubdtype(s.dtype, jnp.integer)
        values = (
            rng.integers(100, size=s.shape) if integer else rng.normal(size=s.shape)
        )
        return np.asarray(values).astype(s.dtype)

    return jax.device_put(jax.tree.map(leaf, shapes))


def broken(tree):
    """The same with NaN in place of all floating numbers."""

    def leaf(x):
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        return np.full(x.shape, np.nan, x.dtype) if floating else x

    return jax.device_put(jax.tree.map(leaf, tree))


def random_replica(
    rng,
    shapes=SHAPES,
    state=STATE,
    requires=("prev_params", "grad_sum"),
    broadcasts=False,
):
    """A replica with random numbers in the buffers that a merge needs."""
    buffers = {
        b.name: jax.eval_shape(b.init, shapes)
        for b in requires
        if isinstance(b, Buffer)
    }
    buffers |= dict.fromkeys((b for b in requires if isinstance(b, str)), shapes)
    if "angle" in requires:
        buffers["angle"] = jax.ShapeDtypeStruct((2,), jnp.float32)
    carry = {name: random(rng, tree) for name, tree in buffers.items()}
    if "angle" in requires:  # the mean of some rounds
        carry["angle"] = jax.device_put(np.float32([0.7, 2.0]))
    if "mean_square" in carry:  # of squares
        carry["mean_square"] = jax.tree.map(jnp.abs, carry["mean_square"])
    params = random(rng, shapes)
    if broadcasts:
        carry["round_start"] = random(rng, shapes)
    return Replica(params, random(rng, state), (), carry)


def agreeing_replica(params, model_state, requires):
    """A replica that equals the centre, as does its mailbox, with zero buffers."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    buffers = {"prev_params": params, "mailbox": params, "angle": jnp.zeros(2)}
    buffers["round_start"] = params
    carry = {b: buffers.get(b, zeros) for b in requires if isinstance(b, str)}
    carry |= own_buffers(params, requires)
    return Replica(params, model_state, (), carry)


def own_buffers(params, requires):
    """The first values of the buffers that a merge declares for itself."""
    return {b.name: b.init(params) for b in requires if isinstance(b, Buffer)}


def make_stats(updates, batch_size=None, examples=None, learning_rate=None, **others):
    """Worker statistics with these update counts; other values differ by default."""
    n = len(updates)
    updates = np.asarray(updates)
    batch_size = 8.0 + np.arange(n) if batch_size is None else batch_size
    examples = updates * np.asarray(batch_size) if examples is None else examples
    learning_rate = (
        0.5 + 0.25 * np.arange(n) if learning_rate is None else learning_rate
    )
    stats = WorkerStats(
        worker=np.arange(n, dtype=np.int32),
        local_steps=updates,
        batch_size=batch_size,
        examples=examples,
        learning_rate=learning_rate,
        staleness=np.zeros(n),
        leaves=np.ones(n),
        share=np.ones(n) / n,
        accuracy=0.5 + np.arange(n) / 16,
        weight=np.ones(n),
        server_steps=0,
        num_workers=n,
    )
    # at once, without a compiled conversion of each
    numbers = {k: np.asarray(v, np.float32) for k, v in stats._asdict().items()}
    numbers |= {"worker": stats.worker}
    numbers |= {k: np.asarray(v, np.float32) for k, v in others.items()}
    return jax.device_put(WorkerStats(**numbers))


def pick(order, replicas, stats):
    """The members with these indices, in this order."""
    chosen = jax.tree.map(
        lambda x: np.asarray(x)[np.asarray(order)] if x.ndim else x, stats
    )
    chosen = jax.device_put(chosen)
    return tuple(replicas[i] for i in order), chosen


def weights_of(merging, stats):
    """The weight that a merge gives each member, read off from one-hot models."""
    n = len(stats.local_steps)
    buffers = {"angle": jnp.zeros(2)} if "angle" in merging.requires else {}
    replicas = tuple(Replica(jnp.eye(n)[i], (), (), buffers) for i in range(n))
    state = merging.init(jnp.zeros(n), ())
    state, _ = merging.apply(state, replicas, stats)
    return np.asarray(merging.model(state)[0]), state


def assert_close(actual, expected):
    """Equal up to rounding: sums of a few float32 terms of size one.

    A bfloat16 leaf is a rounded float32: it may round to the other side.
    """
    chex.assert_trees_all_equal_structs(actual, expected)

    def same(a, e):
        a, e = np.asarray(a), np.asarray(e)
        half = jnp.bfloat16 in (a.dtype, e.dtype)
        tolerance = 2.0**-7 if half else 2e-6
        np.testing.assert_allclose(
            a.astype(np.float64), e.astype(np.float64), rtol=tolerance, atol=tolerance
        )

    jax.tree.map(same, actual, expected)
