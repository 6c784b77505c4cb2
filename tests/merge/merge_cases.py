"""What the merge tests share: random models and members, and comparisons."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from hetjax.merge import Facts
from hetjax.replica import Replica


def random_tree(rng, dtype=np.float32):
    """Parameters of mixed ranks, one of them always in the other dtype."""
    other = jnp.bfloat16 if dtype == np.float32 else np.float32
    return {
        "scalar": jnp.asarray(rng.normal(), dtype),
        "layer": {"vector": jnp.asarray(rng.normal(size=3), dtype)},
        "matrices": [
            jnp.asarray(rng.normal(size=(2, 3)), dtype),
            jnp.asarray(rng.normal(size=(3, 2)), other),
        ],
    }


def random_state(rng, dtype=np.float32):
    """Model state: statistics that are averaged, and a counter that is not."""
    return {
        "mean": jnp.asarray(rng.normal(size=2), dtype),
        "count": jnp.asarray(rng.integers(100), jnp.int32),
    }


def random_replica(rng, dtype=np.float32, tree=random_tree):
    carry = {"before": tree(rng, dtype), "gradients": tree(rng, dtype)}
    return Replica(tree(rng, dtype), random_state(rng, dtype), (), carry)


def random_replicas(rng, n, dtype=np.float32, tree=random_tree):
    return tuple(random_replica(rng, dtype, tree) for _ in range(n))


def make_facts(updates, batch_size=None, examples=None, rate=None):
    """Facts of members with these update counts; the rest is distinct by default."""
    n = len(updates)
    updates = np.asarray(updates)
    batch_size = 8.0 + np.arange(n) if batch_size is None else batch_size
    examples = updates * np.asarray(batch_size) if examples is None else examples
    rate = 0.5 + 0.25 * np.arange(n) if rate is None else rate
    return Facts(
        worker=jnp.arange(n, dtype=jnp.int32),
        updates=jnp.asarray(updates, jnp.float32),
        batch_size=jnp.asarray(batch_size, jnp.float32),
        examples=jnp.asarray(examples, jnp.float32),
        rate=jnp.asarray(rate, jnp.float32),
        staleness=jnp.zeros(n, jnp.float32),
        ticks=jnp.asarray(updates, jnp.float32),
    )


def pick(items, order):
    """Those members, in this order, of replicas or facts."""
    if isinstance(items, Facts):
        return Facts(*(x[jnp.asarray(order)] for x in items))
    return tuple(items[i] for i in order)


def assert_close(actual, expected):
    """Equal up to rounding: sums of a few float32 terms of size one.

    A bfloat16 leaf is a rounded float32: it may fall to the other side.
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
