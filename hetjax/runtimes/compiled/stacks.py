"""Rows of arrays that are stacked along their first axes, inside a program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hetjax.tree import PyTree


def at(array: Any, index: Any) -> Any:
    """`array[index]`, for an index of at least 0: else XLA has to compile a choice."""
    return jax.lax.dynamic_index_in_dim(
        array, index, keepdims=False, allow_negative_indices=False
    )


def row(stacked: PyTree, index: Any) -> PyTree:
    """One of the trees that are stacked along the leaves' first axes."""
    return jax.tree.map(lambda x: at(x, index), stacked)


def put(stacked: PyTree, index: Any, new: PyTree, old: PyTree | None) -> PyTree:
    """The stack with a new row; a leaf that is the `old` one itself is not written."""
    leaves, structure = jax.tree.flatten(stacked)
    before = [None] * len(leaves) if old is None else jax.tree.leaves(old)
    every = zip(leaves, jax.tree.leaves(new), before, strict=True)
    return structure.unflatten(
        [x if value is was else written(x, index, value) for x, value, was in every]
    )


def written(stack: Any, index: Any, value: Any) -> Any:
    """A stacked leaf with another row."""
    value = jnp.asarray(value, stack.dtype)
    return jax.lax.dynamic_update_index_in_dim(
        stack, value, index, 0, allow_negative_indices=False
    )


def different(new: PyTree, old: PyTree) -> list[Any]:
    """The leaves that are not the `old` ones themselves."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    return [x for x, was in pairs if x is not was]


def do_if(chosen: Any, play: Callable, carry: Any) -> Any:
    """`play(carry)` if it is chosen: a loop of one turn, which changes arrays in place.

    A `lax.cond` would copy all of them.
    """
    return lax.fori_loop(0, chosen.astype(jnp.int32), lambda _, now: play(now), carry)


def repeated(number: int, play: Callable, start: Any, held: Any) -> Any:
    """play(i, held) for each of a number of places from `start` on."""
    if number == 1:
        return play(start, held)
    return lax.fori_loop(0, number, lambda i, held: play(start + i, held), held)


def where(chosen: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """The rows of `new` that are chosen, and those of `old` elsewhere."""
    return jnp.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old)
