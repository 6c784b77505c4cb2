"""Pytree arithmetic for merges and local rules: float32 inside, own dtype outside.

Only floating leaves take part; any other leaf (a counter, a key) is left as it is.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def is_float(leaf: Any) -> bool:
    """Is this leaf of a floating dtype?"""
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def map_floats(fn: Callable, tree: Any, *rest: Any) -> Any:
    """`jax.tree.map` over the floating leaves of `tree`; the others stay."""
    return jax.tree.map(lambda x, *ys: fn(x, *ys) if is_float(x) else x, tree, *rest)


def float32(tree: Any) -> Any:
    """A copy of the tree with floating leaves in float32: what merges accumulate in."""
    return map_floats(lambda x: jnp.array(x, jnp.float32, copy=True), tree)


def cast_like(tree: Any, like: Any) -> Any:
    """The tree with each floating leaf in the dtype of the leaf beside it."""
    return map_floats(lambda x, y: x.astype(jnp.result_type(y)), tree, like)


def copies(tree: Any) -> Any:
    """The same values in buffers of their own, so that they can be donated."""
    return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)


def weighted_move(center: Any, trees: Sequence[Any], weights: jax.Array) -> Any:
    """sum_i w_i (x_i - z) in float32, over members i of weight w_i.

    A difference first, so that members equal to the centre give exactly zero also
    under jit; a weight of zero keeps even a NaN out (0 x NaN is NaN: hence `where`).
    """
    return weighted_sum(
        [map_floats(lambda z, x: x.astype(jnp.float32) - z, center, t) for t in trees],
        weights,
    )


def moved(center: Any, trees: Sequence[Any], weights: jax.Array) -> Any:
    """z + sum_i w_i (x_i - z): exactly the centre where all members equal it."""
    return map_floats(jnp.add, center, weighted_move(center, trees, weights))


def weighted_sum(trees: Sequence[Any], weights: jax.Array) -> Any:
    """sum_i w_i x_i in float32, over members of weight w_i; zero weight is absence."""

    def total(first: jax.Array, *others: jax.Array) -> jax.Array:
        if not is_float(first):
            return first
        terms = [
            jnp.where(w != 0, w * x.astype(jnp.float32), 0.0)
            for w, x in zip(weights, (first, *others), strict=True)
        ]
        return sum(terms[1:], terms[0])

    return jax.tree.map(total, *trees)


def all_finite(tree: Any) -> jax.Array:
    """[] bool: is there neither a NaN nor an infinity among the floating numbers?"""
    # 0 times a number is 0, times all else NaN: a sum is found sooner than an "all"
    sums = [jnp.sum(x * 0) for x in jax.tree.leaves(tree) if is_float(x)]
    return jnp.all(jnp.isfinite(jnp.array(sums)))


def mean_square(tree: Any) -> jax.Array:
    """Mean of the squares of all floating numbers of a tree."""
    leaves = [x for x in jax.tree.leaves(tree) if is_float(x)]
    squares = sum(jnp.sum(jnp.square(x.astype(jnp.float32))) for x in leaves)
    return jnp.asarray(squares / sum(x.size for x in leaves), jnp.float32)


def size(tree: Any) -> int:
    """How many floating numbers a tree holds."""
    return sum(x.size for x in jax.tree.leaves(tree) if is_float(x))


def num_bytes(tree: Any) -> int:
    """Bytes of all floating leaves: what a merge sends of one replica."""
    leaves = [x for x in jax.tree.leaves(tree) if is_float(x)]
    return sum(x.size * jnp.result_type(x).itemsize for x in leaves)


def dot(a: Any, b: Any) -> jax.Array:
    """The inner product of all floating numbers of two trees, in float32."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    products = [
        jnp.vdot(x.astype(jnp.float32), y.astype(jnp.float32))
        for x, y in pairs
        if is_float(x)
    ]
    return sum(products[1:], products[0])
