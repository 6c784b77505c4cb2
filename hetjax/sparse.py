"""Sparse inputs that stay sparse to the weights: BCOO products and the row view.

`jax.experimental.sparse.BCOO` is the container, not the kernel: gathering the weight
rows that a batch touches and summing them by example is several times faster than
BCOO's own product, and its gradient is rows instead of a dense matrix. The **row
view** of a weight W [F, H] for a batch of C non-zeros is W[ids] [C, H], one row per
non-zero. A model is differentiated with respect to the view; the result is a
`RowSparseGrad`, which local rules add into W (plain SGD), compress to unique rows (lazy
optimizers) or make dense.
"""

from collections.abc import Collection
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.sparse import BCOO


class RowParam(nnx.Param):
    """A weight [F, ...] that meets the input only in `matmul(x, weight)`.

    Marking it so promises that a step touches only the rows of the batch's features.
    """


@flax.struct.dataclass
class GatheredColumns:
    """A sparse matrix whose columns are its non-zeros: what stands beside a row view.

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
    """Gradient of a weight [F, ...] that is zero but for rows `ids`.

    An id may occur several times (the rows add up); ids of F or more are padding.
    """

    ids: jax.Array  # [C] int32
    rows: jax.Array  # [C, ...]
    num_rows: int = flax.struct.field(pytree_node=False)  # F


def matmul(x: Any, w: jax.Array) -> jax.Array:
    """x @ w for x dense [B, F], BCOO [B, F] or `GatheredColumns` [B, C].

    w is [F, H], of gathered columns [C, H].

    For BCOO: y[b] = sum over the non-zeros (b, f, v) of v * w[f]; rows must be sorted,
    indices out of bounds are padding. w may be a vector, too: [F] or [C].
    """
    if isinstance(x, BCOO):
        rows, ids = x.indices[:, 0], x.indices[:, 1]
        return GatheredColumns(x.data, rows, x.shape[0]) @ w.at[ids].get(mode="clip")
    return x @ w


def _sum_rows(products: jax.Array, rows: jax.Array, num_rows: int) -> jax.Array:
    return jax.ops.segment_sum(
        products, rows, num_segments=num_rows, indices_are_sorted=True
    )


def row_view(params: Any, x: Any, paths: Collection[str]) -> tuple[Any, Any]:
    """Params with W[ids] in place of each weight named in `paths`, and x aligned.

    `paths` are key paths as `path_name` writes them. With no paths, or a dense x,
    both come back as they are.
    """
    if not paths or not isinstance(x, BCOO):
        return params, x
    ids = x.indices[:, 1]

    def view(path: Any, w: jax.Array) -> jax.Array:
        return w.at[ids].get(mode="clip") if path_name(path) in paths else w

    view_params = jax.tree_util.tree_map_with_path(view, params)
    return view_params, GatheredColumns(x.data, x.indices[:, 0], x.shape[0])


def row_sparse_grads(grads: Any, params: Any, x: Any, paths: Collection[str]) -> Any:
    """The gradients of a row view as `RowSparseGrad`s of the weights in `params`."""
    if not paths or not isinstance(x, BCOO):
        return grads
    ids = x.indices[:, 1]

    def name(path: Any, g: jax.Array, w: jax.Array) -> Any:
        named = path_name(path) in paths
        return RowSparseGrad(ids, g, w.shape[0]) if named else g

    return jax.tree_util.tree_map_with_path(name, grads, params)


def path_name(path: Any) -> str:
    """A tree path as text: ("layer", "kernel") is "layer/kernel"."""
    return "/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)


def is_row_sparse(x: Any) -> bool:
    """Is this leaf a `RowSparseGrad`?"""
    return isinstance(x, RowSparseGrad)


def dense(grads: Any) -> Any:
    """The gradient tree with every `RowSparseGrad` written out as a whole array."""

    def full(g: Any) -> jax.Array:
        if not is_row_sparse(g):
            return g
        zeros = jnp.zeros((g.num_rows, *g.rows.shape[1:]), g.rows.dtype)
        return zeros.at[g.ids].add(g.rows, mode="drop")

    return jax.tree.map(full, grads, is_leaf=is_row_sparse)


def subtract(params: Any, grads: Any, learning_rate: jax.Array) -> Any:
    """w - rate g, exactly plain SGD: a scatter-add per non-zero for row gradients."""

    def step(g: Any, w: jax.Array) -> jax.Array:
        if is_row_sparse(g):
            return w.at[g.ids].add(
                (-learning_rate * g.rows).astype(w.dtype), mode="drop"
            )
        return (w - learning_rate * g).astype(w.dtype)

    return jax.tree.map(step, grads, params, is_leaf=is_row_sparse)


def unique(g: RowSparseGrad) -> RowSparseGrad:
    """The same gradient with every id once; the rest of `ids` is padding (F)."""
    ids, place = jnp.unique(
        jnp.minimum(g.ids, g.num_rows),
        size=g.ids.shape[0],
        fill_value=g.num_rows,
        return_inverse=True,
    )
    rows = jnp.zeros_like(g.rows).at[place.reshape(-1)].add(g.rows)
    return RowSparseGrad(ids, rows, g.num_rows)
