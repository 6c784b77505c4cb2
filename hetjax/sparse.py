"""Sparse inputs and gradients that are not arrays: BCOO products and the row view.

`jax.experimental.sparse.BCOO` is only the container. Its product is not used: gathering
the weight rows that a batch touches and summing them by example is several times
faster, and the gradient then consists of rows instead of a dense matrix. The **row
view** of a weight W [F, H] for a batch of C non-zeros is W[ids] [C, H], one row per
non-zero. A model is differentiated with respect to the view; the result is a
`RowSparseGrad`, which local updates add to W (plain SGD), compress to unique rows
(sparse optimizer updates) or densify. A `DeferredGrad` is the gradient of an output
layer, which implements it (`hetjax.output.softmax`).
"""

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.sparse import BCOO
from jax.tree_util import KeyPath

from hetjax.tree import PyTree


class RowParam(nnx.Param):
    """A weight [F, ...] that is used only in `matmul(x, weight)` with the input x.

    Marking a weight promises that a step touches only the rows of the batch's features.
    """


@flax.struct.dataclass
class GatheredColumns:
    """A sparse input with one column per non-zero, multiplied by a row view.

    Non-zero j has value `values[j]`, row `rows[j]` and column j.
    """

    values: jax.Array  # [C]
    rows: jax.Array  # [C] int32, sorted; num_rows or more is padding
    num_rows: int = flax.struct.field(pytree_node=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, non-zeros)."""
        return self.num_rows, self.values.shape[0]

    def __matmul__(self, view: jax.Array) -> jax.Array:
        # [C, 1], or [C] where the weight is a vector
        values = self.values.reshape(-1, *(1 for _ in view.shape[1:]))
        return _sum_rows(values * view, self.rows, self.num_rows)


@flax.struct.dataclass
class RowSparseGrad:
    """Gradient of a weight [F, ...] that is zero except in the rows `ids`.

    An id may occur several times (its rows are summed); ids of F or more are padding.
    """

    ids: jax.Array  # [C] int32
    rows: jax.Array  # [C, ...]
    num_rows: int = flax.struct.field(pytree_node=False)  # F


class DeferredGrad:
    """Gradient of an output layer's W [C, H] and b [C], computed when it is used.

    In a tree of gradients it takes the place of W's, and a `WithKernel` that of b's.
    """

    kernel: jax.Array  # W at which the gradient is taken

    def arrays(self) -> tuple[jax.Array, jax.Array]:
        """(dW [C, H], db [C])."""
        raise NotImplementedError

    def subtracted(self, learning_rate: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(W - learning_rate dW, b - learning_rate db)."""
        raise NotImplementedError


@flax.struct.dataclass
class WithKernel:
    """Placeholder for the gradient of b, which the `DeferredGrad` of W computes."""


_Input: TypeAlias = jax.Array | BCOO | GatheredColumns


def matmul(x: _Input, w: jax.Array) -> jax.Array:
    """x @ w for x dense [B, F], BCOO [B, F] or `GatheredColumns` [B, C].

    w is [F, H], or [C, H] for gathered columns; it may also be a vector, [F] or [C].

    For BCOO: y[b] = sum over the non-zeros (b, f, v) of v * w[f]. Rows must be sorted;
    indices out of bounds are padding.
    """
    if isinstance(x, BCOO):
        rows, ids = x.indices[:, 0], x.indices[:, 1]
        return GatheredColumns(x.data, rows, x.shape[0]) @ w.at[ids].get(mode="clip")
    return x @ w


def _sum_rows(products: jax.Array, rows: jax.Array, num_rows: int) -> jax.Array:
    return jax.ops.segment_sum(
        products, rows, num_segments=num_rows, indices_are_sorted=True
    )


def row_view(
    params: PyTree, x: _Input, paths: Collection[str]
) -> tuple[PyTree, _Input]:
    """Replace each weight W named in `paths` by W[ids], and x by `GatheredColumns`.

    `paths` are key paths as written by `path_name`. Without paths, or with a dense x,
    both are returned unchanged.
    """
    if not paths or not isinstance(x, BCOO):
        return params, x
    ids = x.indices[:, 1]

    def view(path: KeyPath, w: jax.Array) -> jax.Array:
        return w.at[ids].get(mode="clip") if path_name(path) in paths else w

    view_params = jax.tree_util.tree_map_with_path(view, params)
    return view_params, GatheredColumns(x.data, x.indices[:, 0], x.shape[0])


def row_sparse_grads(
    grads: PyTree, params: PyTree, x: _Input, paths: Collection[str]
) -> PyTree:
    """Return gradients of a row view as `RowSparseGrad`s of the weights in `params`."""
    if not paths or not isinstance(x, BCOO):
        return grads
    ids = x.indices[:, 1]

    def name(path: KeyPath, g: jax.Array, w: jax.Array) -> jax.Array | RowSparseGrad:
        named = path_name(path) in paths
        return RowSparseGrad(ids, g, w.shape[0]) if named else g

    return jax.tree_util.tree_map_with_path(name, grads, params)


def path_name(path: KeyPath) -> str:
    """Return a tree path as text: ("layer", "kernel") is "layer/kernel"."""
    return "/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)


def is_row_sparse(x: Any) -> bool:
    """Whether the leaf is a `RowSparseGrad`."""
    return isinstance(x, RowSparseGrad)


def _is_gradient(x: Any) -> bool:
    """Whether this is a gradient that is not an array."""
    return isinstance(x, RowSparseGrad | DeferredGrad | WithKernel)


def dense(grads: PyTree) -> PyTree:
    """Return the tree with every gradient as a dense array."""

    def full(g: jax.Array | RowSparseGrad) -> jax.Array:
        if not isinstance(g, RowSparseGrad):
            return g
        zeros = jnp.zeros((g.num_rows, *g.rows.shape[1:]), g.rows.dtype)
        return zeros.at[g.ids].add(g.rows, mode="drop")

    return jax.tree.map(full, materialize(grads), is_leaf=is_row_sparse)


def materialize(grads: PyTree) -> PyTree:
    """Return the tree with a `DeferredGrad` computed, as two dense arrays."""
    return _with_both(grads, grads, lambda g, *_: g.arrays())


def subtract(params: PyTree, grads: PyTree, learning_rate: jax.Array) -> PyTree:
    """Return w - learning_rate g (plain SGD); row-sparse gradients are scatter-added.

    A `DeferredGrad` subtracts itself, without an array of its size.
    """

    def step(g: jax.Array | RowSparseGrad, w: jax.Array) -> jax.Array:
        if isinstance(g, RowSparseGrad):
            return w.at[g.ids].add(
                (-learning_rate * g.rows).astype(w.dtype), mode="drop"
            )
        if isinstance(g, DeferredGrad | WithKernel):
            return w  # updated below
        return (w - learning_rate * g).astype(w.dtype)

    def both(g: DeferredGrad, w: jax.Array, b: Any) -> tuple[jax.Array, Any]:
        if w is g.kernel:
            return g.subtracted(learning_rate)
        dw, db = g.arrays()  # the gradient was taken at another W
        moved = (w - learning_rate * dw).astype(w.dtype)
        return moved, None if b is None else (b - learning_rate * db).astype(b.dtype)

    moved = jax.tree.map(step, grads, params, is_leaf=_is_gradient)
    return _with_both(grads, moved, both)


def _with_both(grads: PyTree, values: PyTree, both: Callable) -> PyTree:
    """Return `values` with both(gradient, W, b) in place of a `DeferredGrad`'s W and b.

    b is None if the output layer has no bias.
    """
    leaves, structure = jax.tree.flatten(grads, is_leaf=_is_gradient)
    found = [i for i, g in enumerate(leaves) if isinstance(g, DeferredGrad)]
    if not found:
        return values
    changed = structure.flatten_up_to(values)
    biases = [i for i, g in enumerate(leaves) if isinstance(g, WithKernel)]
    (kernel,), bias = found, biases[0] if biases else None
    old = changed[kernel], None if bias is None else changed[bias]
    changed[kernel], new_bias = both(leaves[kernel], *old)
    if bias is not None:
        changed[bias] = new_bias
    return jax.tree.unflatten(structure, changed)


def unique(g: RowSparseGrad) -> RowSparseGrad:
    """Return the gradient with every id once, padded with ids of F."""
    ids, place = jnp.unique(
        jnp.minimum(g.ids, g.num_rows),
        size=g.ids.shape[0],
        fill_value=g.num_rows,
        return_inverse=True,
    )
    rows = jnp.zeros_like(g.rows).at[place.reshape(-1)].add(g.rows)
    return RowSparseGrad(ids, rows, g.num_rows)
