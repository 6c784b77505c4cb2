"""Read and write rows of stacked arrays and trees [N, ...] inside a program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hetjax.tree import PyTree


def array_row(array: Any, index: Any) -> Any:
    """Return `array[index]`; without negative indices, XLA compiles no select."""
    return jax.lax.dynamic_index_in_dim(
        array, index, keepdims=False, allow_negative_indices=False
    )


def tree_row(stacked: PyTree, index: Any) -> PyTree:
    """Return the tree at an index of a stacked tree, whose leaves are [N, ...]."""
    return jax.tree.map(lambda x: array_row(x, index), stacked)


def set_tree_row(
    stacked: PyTree, index: Any, new: PyTree, old: PyTree | None
) -> PyTree:
    """Write a row of a stacked tree, except leaves identical (`is`) to the old ones."""
    leaves, structure = jax.tree.flatten(stacked)
    before = [None] * len(leaves) if old is None else jax.tree.leaves(old)
    every = zip(leaves, jax.tree.leaves(new), before, strict=True)
    return structure.unflatten(
        [
            x if value is was else set_array_row(x, index, value)
            for x, value, was in every
        ]
    )


def set_array_row(stack: Any, index: Any, value: Any) -> Any:
    """Write a row of a stacked array."""
    value = jnp.asarray(value, stack.dtype)
    return jax.lax.dynamic_update_index_in_dim(
        stack, value, index, 0, allow_negative_indices=False
    )


def replaced_leaves(new: PyTree, old: PyTree) -> list[Any]:
    """Return the new leaves that are not identical (`is`) to the old ones."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    return [x for x, was in pairs if x is not was]


def run_if(chosen: Any, play: Callable, carry: Any) -> Any:
    """Return `play(carry)` if chosen, else `carry`.

    It is a loop of at most one iteration, which updates arrays in place; `lax.cond`
    would copy all of them.
    """
    return lax.fori_loop(0, chosen.astype(jnp.int32), lambda _, now: play(now), carry)


def repeat(number: int, play: Callable, start: Any, run_state: Any) -> Any:
    """Apply `play(i, run_state)` for `number` indices i from `start` on."""
    if number == 1:
        return play(start, run_state)
    return lax.fori_loop(
        0, number, lambda i, run_state: play(start + i, run_state), run_state
    )


def where_rows(chosen: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Select rows of `new` where chosen [N], and rows of `old` elsewhere."""
    return jnp.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old)
