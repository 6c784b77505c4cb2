"""Checks of what merges and formulas are called with.

They look at shapes, names and concrete numbers, never at values that JAX traces.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hetjax.machine.types import MergeOp
from hetjax.replica import Replica, Requires
from hetjax.tree import PyTree


class WrongPart(ValueError):
    """A part of a strategy, such as a merge, returned an unusable result."""


def concrete(value: Any) -> np.ndarray | None:
    """The numbers as a float64 array; None if any is traced or not addressable."""
    for x in jax.tree.leaves(value):
        if isinstance(x, Tracer):
            return None
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return None
    return np.asarray(value, np.float64)


def check_steps(where: str, local_steps: Any, present: Any = True) -> None:
    """Raises a ValueError unless present members' local steps are finite and >= 0."""
    steps, here = concrete(local_steps), concrete(present)
    if steps is None or here is None:
        return
    if np.any((here != 0) & ~((steps >= 0) & np.isfinite(steps))):
        raise ValueError(
            f"{where}: local_steps={local_steps}: pass finite numbers of at least 0"
        )


def check_op(name: str, op: MergeOp, ops: MergeOp) -> None:
    """Raises a ValueError for an operation that the merge `name` does not support."""
    missing = op & ~ops
    if missing:
        raise ValueError(
            f"{name}: the merge has no operation {missing.name}; it has {ops.name}: "
            "use a merge or a policy that fits (Merge(..., ops=...) declares them)"
        )


def check_count(name: str, replicas: int, stats: Any) -> None:
    """Raises a ValueError unless the statistics are of this number of replicas."""
    n = jnp.shape(stats.local_steps)[0]
    if replicas != n:
        raise ValueError(
            f"{name}: {replicas} replicas, statistics of {n}: pass one entry of each "
            "for every replica"
        )


def check_buffers(name: str, replicas: Sequence[Any], requires: Requires) -> None:
    """Raises a ValueError unless these are Replicas with the buffers of a merge."""
    names = [b if isinstance(b, str) else b.name for b in requires]
    for i, replica in enumerate(replicas):
        if not isinstance(replica, Replica):
            raise ValueError(
                f"{name}: replica {i} is of type {type(replica).__name__}: pass a "
                "sequence of hj.Replica: wrap each worker's parameters as "
                "hj.Replica(params), or use hj.local.new_replica"
            )
        missing = [b for b in names if b not in replica.carry]
        if missing:
            raise ValueError(
                f"{name}: replica {i} has no buffer {', '.join(missing)}, which the "
                "merge requires: make replicas by hj.local.new_replica(update, params, "
                "requires=merge.requires)"
            )


def per_member(where: str, values: Any, n: int) -> jax.Array:
    """[n] one number for each of n trees; a single number is repeated."""
    if n == 0:
        raise ValueError(f"{where}: there are no trees: pass at least one")
    values = jnp.asarray(values, jnp.float32)
    if values.shape not in ((), (n,)):
        raise ValueError(
            f"{where}: {n} trees, numbers of shape {values.shape}: pass one for every "
            "tree, or one for all"
        )
    return jnp.broadcast_to(values, (n,))


def check_alike(trees: Sequence[PyTree]) -> None:
    """Raises a ValueError unless trees are of one structure and leaves of one shape."""
    if not trees:
        raise ValueError("there are no trees: pass at least one")
    shapes = _shapes(trees[0])
    for i, tree in enumerate(trees[1:], 1):
        check_structure("tree 0", trees[0], f"tree {i}", tree)
        pairs = zip(shapes.items(), _shapes(tree).values(), strict=True)
        for (path, shape), other in pairs:
            if shape != other:
                raise ValueError(
                    f"the leaf {path!r} has shape {shape} in tree 0 and {other} in "
                    f"tree {i}: pass trees of one structure"
                )


def check_structure(name: str, tree: PyTree, other_name: str, other: PyTree) -> None:
    """Raises a ValueError that names a leaf which only one of two trees has."""
    if jax.tree.structure(tree) == jax.tree.structure(other):
        return
    paths, others = _shapes(tree), _shapes(other)
    only = [f"the leaf {p!r} only in {name}" for p in paths if p not in others]
    only += [f"the leaf {p!r} only in {other_name}" for p in others if p not in paths]
    where = only[0] if only else "equal leaves in containers of other types"
    raise ValueError(
        f"{name} and {other_name} differ in structure: {where}: pass trees of one "
        "structure"
    )


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): jnp.shape(x) for path, x in leaves}
