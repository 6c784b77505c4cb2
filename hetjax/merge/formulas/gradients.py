"""Gradients that are corrected before a step, as stateless functions on pytrees.

Results are float32, or float64 for leaves of float64.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike

from hetjax import tree
from hetjax.tree import PyTree

SMALLEST = 1e-7  # added to a mean square before its root is taken


def compensated_gradient(
    grads: PyTree,
    center: PyTree,
    start: PyTree,
    *,
    strength: ArrayLike = 0.04,
    mean_square: PyTree | None = None,
) -> PyTree:
    """g + L g^2 (c - s): a gradient at s, as it might be at c. All by coordinate.

    L is `strength` or, with `mean_square` q, strength / sqrt(q + 1e-7). Exactly g where
    c equals s. Source: DC-ASGD (Zheng et al. 2017), equation 10.
    """

    def corrected(g, move, q):
        g = tree.wide(g)
        factor = strength if q is None else strength / jnp.sqrt(tree.wide(q) + SMALLEST)
        return g + factor * g * g * move

    moves = tree.difference(center, start)
    if mean_square is None:
        return tree.map_floats(lambda g, m: corrected(g, m, None), grads, moves)
    return tree.map_floats(corrected, grads, moves, mean_square)


def running_mean_square(mean_square: PyTree, grads: PyTree, decay: ArrayLike) -> PyTree:
    """u q + (1 - u) g^2, by coordinate; u is `decay`."""

    def mixed(q, g):
        g = tree.wide(g)
        return decay * tree.wide(q) + (1 - decay) * g * g

    return tree.map_floats(mixed, mean_square, grads)


def joined_mean(mean: PyTree, number: ArrayLike, new: PyTree) -> PyTree:
    """The change (g - m) / (n + 1) of a mean m of n trees when the tree g joins it."""
    return tree.map_floats(
        lambda m, g: (tree.wide(g) - tree.wide(m)) / (number + 1), mean, new
    )


def scaffold_control(
    shift: PyTree, start: PyTree, params: PyTree, total_rate: ArrayLike
) -> PyTree:
    """c_i' = c_i - c + (x - y) / (H eta): the mean gradient of a round.

    `shift` is c - c_i, as the round's steps used it, x is `start` and y `params`.
    `total_rate` is the sum of the steps' learning rates, H eta if they are equal.
    Source: SCAFFOLD (Karimireddy et al. 2020), option II.
    """
    moves = tree.difference(start, params)
    return tree.map_floats(lambda m, s: m / total_rate - tree.wide(s), moves, shift)
