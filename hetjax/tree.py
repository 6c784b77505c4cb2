"""Pytree arithmetic for merges and local updates, accumulated in float32 or more.

Only floating leaves take part; any other leaf (a counter, a key) does not change.
Leaves in float64 stay in float64. Complex leaves are rejected.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from hetjax.program_cache import enable_program_cache

enable_program_cache()  # here: every module that compiles programs imports this one

PyTree: TypeAlias = Any  # nested containers with arrays at their leaves
Params: TypeAlias = PyTree  # parameters of a model
ModelState: TypeAlias = PyTree  # batch statistics and the like; () if there are none
OptState: TypeAlias = PyTree  # of a local update
MergeState: TypeAlias = PyTree  # of a merge: its center, momentum, and so on


def is_float(leaf: Any) -> bool:
    """Whether this leaf has a floating dtype. Errors: TypeError if it is complex."""
    dtype = jnp.result_type(leaf)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(
            f"an array has dtype {dtype}, but complex numbers are not supported: store "
            "real and imaginary parts in two arrays, and join them in the model"
        )
    return jnp.issubdtype(dtype, jnp.floating)


def wide(leaf: Any) -> jax.Array:
    """The leaf in the dtype of centers and sums: float64 stays, all else is float32."""
    double = jnp.result_type(leaf) == jnp.float64
    return jnp.asarray(leaf, jnp.float64 if double else jnp.float32)


def map_floats(fn: Callable, tree: PyTree, *rest: PyTree) -> PyTree:
    """`jax.tree.map` over the floating leaves of `tree`; other leaves do not change."""
    return jax.tree.map(lambda x, *ys: fn(x, *ys) if is_float(x) else x, tree, *rest)


def widened(tree: PyTree) -> PyTree:
    """Return a copy of the tree with `wide` floating leaves."""
    return map_floats(lambda x: jnp.array(wide(x), copy=True), tree)


def cast_like(tree: PyTree, like: PyTree) -> PyTree:
    """Return the tree with each floating leaf in the dtype of its leaf in `like`."""
    return map_floats(lambda x, y: x.astype(jnp.result_type(y)), tree, like)


def filled(like: PyTree, leaves: Sequence[Any], what: str) -> PyTree:
    """Return the tree `like`, which may be abstract, with other arrays at its leaves.

    Errors: a ValueError if shapes or dtypes differ; `what` is the tree's name in it.
    """
    expected, structure = jax.tree.flatten(like)
    shapes = [(x.shape, x.dtype) for x in expected]
    found = [(x.shape, x.dtype) for x in leaves]
    if found != shapes:
        raise ValueError(
            f"{what} does not have the arrays that were saved: {_text(shapes)}, not "
            f"{_text(found)}"
        )
    return jax.tree.unflatten(structure, leaves)


def _text(arrays: Sequence[tuple[Any, Any]]) -> str:
    """Shapes and dtypes of arrays as text; of many arrays, only the first few."""
    few = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in arrays[:4])
    return f"{few}, ... ({len(arrays)})" if len(arrays) > 4 else few or "none"


def copies(tree: PyTree) -> PyTree:
    """Return the same values in new device buffers, so that they can be donated."""
    return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)


def difference(x: PyTree, z: PyTree) -> PyTree:
    """x - z, both `wide`, over the floating leaves of z."""
    return map_floats(lambda z, x: wide(x) - z, z, x)


def weighted_sum(trees: Sequence[PyTree], weights: jax.Array) -> PyTree:
    """sum_i w_i x_i, of `wide` leaves.

    A tree of weight zero is omitted, even if it holds a NaN (0 x NaN is NaN: hence
    `where`). Any number of trees is added to one running sum, tree by tree.
    """

    def total(first: jax.Array, *others: jax.Array) -> jax.Array:
        if not is_float(first):
            return first
        terms = [
            jnp.where(w != 0, w * wide(x), 0.0)
            for w, x in zip(weights, (first, *others), strict=True)
        ]
        return sum(terms[1:], terms[0])

    return jax.tree.map(total, *trees)


def all_finite(tree: PyTree) -> jax.Array:
    """[] bool: whether all floating numbers are finite."""
    # x * 0 is 0 for finite x, else NaN; a sum of that is faster than an "all"
    sums = [jnp.sum(x * 0) for x in jax.tree.leaves(tree) if is_float(x)]
    return jnp.all(jnp.isfinite(jnp.array(sums)))


def mean_square(tree: PyTree) -> jax.Array:
    """The mean of the squares of all floating numbers of a tree."""
    leaves = [x for x in jax.tree.leaves(tree) if is_float(x)]
    squares = sum(jnp.sum(jnp.square(wide(x))) for x in leaves)
    return jnp.asarray(squares / sum(jnp.size(x) for x in leaves), jnp.float32)


def size(tree: PyTree) -> int:
    """The number of floating numbers in a tree."""
    # not `jnp.size`, which refuses the shapes of an abstract evaluation
    shapes = (getattr(x, "shape", ()) for x in jax.tree.leaves(tree) if is_float(x))
    return sum(map(math.prod, shapes))


def num_bytes(tree: PyTree) -> int:
    """The bytes of all floating leaves, which a merge sends of one replica."""
    leaves = [x for x in jax.tree.leaves(tree) if is_float(x)]
    sizes = [math.prod(getattr(x, "shape", ())) for x in leaves]
    bytes_each = [jnp.result_type(x).itemsize for x in leaves]
    return sum(map(operator.mul, sizes, bytes_each))


def dot(a: PyTree, b: PyTree) -> jax.Array:
    """The inner product of all floating numbers of two trees."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    products = [jnp.vdot(wide(x), wide(y)) for x, y in pairs if is_float(x)]
    return sum(products[1:], products[0])
