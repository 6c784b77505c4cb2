"""How models move in a merge, as stateless functions on pytrees.

`trees` are a sequence of pytrees or, inside `jax.shard_map`, a `Group` along a mesh
axis; returned trees are of the same kind. Centers and sums are float32, or float64 for
leaves of float64; trees keep their dtypes. Weights and `alpha` are arrays [n] or one
number for all. A tree of weight zero is absent: even its NaNs do not count. Settings
may be arrays: everything works under `jit` and under `vmap` over settings.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hetjax import tree
from hetjax.merge.formulas.weights import (
    Numbers,
    floats,
    presence_mask,
    proportional_weights,
)
from hetjax.merge.group import Group, as_group, like
from hetjax.merge.merge_checks import check_structure, per_member
from hetjax.tree import PyTree

Trees: TypeAlias = Group | Sequence[PyTree]


def weighted_mean(trees: Trees, weights: Numbers) -> PyTree:
    """sum_i w_i x_i / sum_i w_i, in the dtypes of the trees.

    If all trees with weight are equal, the mean is exactly that tree: it is computed as
    x_1 + sum_i w_i (x_i - x_1), where x_1 is the first tree with weight. If all weights
    are zero, the result is the first tree. Only floating leaves are averaged: any other
    leaf, such as an integer counter, is that of the first tree.

    >>> weighted_mean([jnp.array(1.0), jnp.array(5.0)], [3, 1]).item()
    2.0
    """
    group = as_group(trees)
    weights = per_member("weighted_mean", weights, group.size)
    first = jnp.arange(group.size) == jnp.argmax(weights != 0)
    base = group.total(lambda x: x, jnp.where(first, 1.0, 0.0))
    mean = moved(base, group, proportional_weights(weights))
    return tree.cast_like(mean, group.members[0])


def weighted_move(center: PyTree, trees: Trees, weights: Numbers) -> PyTree:
    """sum_i w_i (x_i - z) in float32, over trees x_i of weight w_i.

    The difference is taken first, so that trees equal to the center give exactly zero,
    also under jit.
    """
    group = as_group(trees)
    weights = per_member("weighted_move", weights, group.size)
    check_structure("the center", center, "tree 0", group.members[0])
    return group.total(lambda x: tree.difference(x, center), weights)


def moved(center: PyTree, trees: Trees, weights: Numbers) -> PyTree:
    """z + sum_i w_i (x_i - z): exactly the center where all trees equal it."""
    return tree.map_floats(jnp.add, center, weighted_move(center, trees, weights))


def plain_mean(trees: Sequence[PyTree]) -> PyTree:
    """The mean in float32; exact where all trees are equal."""
    base = tree.widened(trees[0])
    return moved(base, trees, jnp.full(len(trees), 1 / len(trees)))


def momentum_mean(
    center: PyTree,
    previous: PyTree,
    trees: Trees,
    weights: Numbers,
    *,
    momentum: ArrayLike = 0.9,
    excess: ArrayLike | None = None,
) -> tuple[PyTree, PyTree]:
    """(w', w): the weighted mean of the trees, with momentum on the center.

        w' = sum_i alpha_i w_i + gamma (w - w_p)          w_p <- w;   w <- w'

    `previous` is w_p, or () without momentum; gamma is `momentum`. The sum is
    w + sum_i alpha_i (w_i - w) + excess w, with excess = sum_i alpha_i - 1. A caller
    that knows when it is exactly 0 passes `excess`; by default it is computed. Weights
    that are all zero change nothing. Source: Adaptive SGD, Algorithm 2.
    """
    alpha = floats(weights)
    if excess is None:
        excess = jnp.where(jnp.any(alpha != 0), jnp.sum(alpha) - 1, 0.0)
    move = weighted_move(center, trees, alpha)
    new = tree.map_floats(lambda w, m: w + m + excess * w, center, move)
    if not jax.tree.leaves(previous):
        return new, previous
    merges = jnp.any(alpha != 0)  # a merge without members is no momentum step
    gamma = jnp.where(merges, momentum, 0.0)
    new = tree.map_floats(lambda n, w, p: n + gamma * (w - p), new, center, previous)
    previous = tree.map_floats(lambda w, p: jnp.where(merges, w, p), center, previous)
    return new, previous


def sma_correction(
    center: PyTree,
    velocity: PyTree,
    trees: Trees,
    *,
    alpha: Numbers,
    momentum: ArrayLike = 0.9,
    prev_trees: Trees | None = None,
    present: ArrayLike | None = None,
) -> tuple[PyTree, PyTree, Any]:
    """(z, v, trees): trees and their average model attract each other, with momentum.

        c_j = alpha_j (w_j - z)
        w_j <- w_j - c_j
        v <- sum_j c_j + mu v;   z <- z + v

    v is the last move of z, mu is `momentum`. With `prev_trees`, c_j is computed from
    those trees: CROSSBOW takes the difference before the last step and moves the model
    after it. With no member present, nothing moves. Source: CROSSBOW 3.2;
    docs/algorithms C.1.
    """
    group = as_group(trees)
    olds = _before("sma_correction", group, prev_trees)
    alpha = per_member("sma_correction", alpha, group.size)
    here = presence_mask(alpha, present)
    pull = jnp.where(here, alpha, 0.0)
    merges = jnp.any(here)  # a merge without members is no momentum step
    total = weighted_move(center, olds, pull)
    velocity = tree.map_floats(
        lambda c, v: jnp.where(merges, c + momentum * v, v), total, velocity
    )
    corrected = group.each(lambda w, old, a: _pulled(w, old, center, a), olds, pull)
    center = tree.map_floats(lambda z, v: jnp.where(merges, z + v, z), center, velocity)
    return center, velocity, like(trees, corrected)


def mean_correction(
    center: PyTree,
    trees: Trees,
    *,
    alpha: ArrayLike = 0.1,
    prev_trees: Trees | None = None,
    present: ArrayLike | None = None,
) -> tuple[PyTree, Any]:
    """(mean, trees): the trees are pulled towards their own mean, not a center.

        w_j <- w_j - alpha (w_j - mean_k w_k)

    The returned mean is that of the moved trees. `center` is only the point that
    differences are taken from. `prev_trees` is as in `sma_correction`. Source: KungFu's
    SMA; docs/algorithms C.1.
    """
    group = as_group(trees)
    olds = _before("mean_correction", group, prev_trees)
    here = presence_mask(per_member("mean_correction", 1.0, group.size), present)
    share = proportional_weights(jnp.ones(group.size), here)
    mean = moved(center, olds, share)
    pull = jnp.where(here, alpha, 0.0)
    pulled = group.each(lambda w, old, a: _pulled(w, old, mean, a), olds, pull)
    return moved(mean, pulled, share), like(trees, pulled)


def elastic_move(
    center: PyTree, params: PyTree, alpha: ArrayLike
) -> tuple[PyTree, PyTree]:
    """(x~, x): a center and a model move closer by the same elastic force.

        d = alpha (x - x~);   x~ <- x~ + d;   x <- x - d

    Their sum is conserved. Source: EASGD (Zhang et al. 2015), Algorithm 1.
    """
    alpha = floats(alpha)
    return moved(center, (params,), alpha[None]), _pulled(params, params, center, alpha)


def elastic_force(center: PyTree, params: PyTree, alpha: ArrayLike) -> PyTree:
    """d = alpha (x - x~), in float32."""
    return tree.map_floats(lambda d: alpha * d, tree.difference(params, center))


def _pulled(params: PyTree, old: PyTree, center: PyTree, alpha: jax.Array) -> PyTree:
    """w - alpha (w_old - z), in the dtypes of w; w itself where alpha is 0."""

    def move(w: jax.Array, c: jax.Array) -> jax.Array:
        w = jnp.asarray(w)
        moved = (tree.wide(w) - c).astype(w.dtype)
        return jnp.where(alpha > 0, moved, w)

    return tree.map_floats(move, params, elastic_force(center, old, alpha))


def _before(name: str, group: Group, prev_trees: Trees | None) -> Group:
    """The trees before their last step, by default the trees themselves."""
    olds = group if prev_trees is None else as_group(prev_trees)
    if olds.size != group.size:
        raise ValueError(
            f"{name}: {group.size} trees, {olds.size} prev_trees: pass one of each "
            "for every member"
        )
    return olds
