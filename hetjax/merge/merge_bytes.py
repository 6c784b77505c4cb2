"""The bytes that a merge moves from a member, and to it (`Merge.traffic`).

Shapes and dtypes suffice: the trees may be abstract.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.machine.merge_times import Traffic, moves_of
from hetjax.machine.types import MergeOp
from hetjax.tree import ModelState, Params, PyTree

_SCALES = {"bf16": 0, 8: 4, 4: 4, 2: 4 + 4 * 4}  # bytes of a tensor's scales
_BITS = {"bf16": 16, 8: 8, 4: 4, 2: 2}  # of a value


def dense(params: Params, model_state: ModelState = (), copies: int = 1) -> int:
    """The bytes of a model state, and of `copies` trees like the parameters."""
    return copies * tree.num_bytes(params) + tree.num_bytes(model_state)


def compressed_bytes(
    values: PyTree, *, top_k: int | None = None, chunk: int = 4096, bits: Any = None
) -> int:
    """The bytes of a `formulas.compressed_message` of such a tree.

    For each tensor ceil(n (index bits + value bits) / 8) + its scales, where n entries
    are sent. An index has ceil(log2 chunk) bits, or none where all entries are sent.
    Exact values have 32 bits, or 64 if they are float64.

    >>> two = (jnp.zeros(5), jnp.zeros(2))
    >>> compressed_bytes(two, top_k=1, chunk=2, bits=8)
    14
    """
    leaves = (x for x in jax.tree.leaves(values) if tree.is_float(x))
    top_k = chunk if top_k is None else top_k
    return sum(_tensor_bytes(x, top_k, chunk, bits) for x in leaves)


def _tensor_bytes(x: Any, top_k: int, chunk: int, bits: Any) -> int:
    size = math.prod(getattr(x, "shape", ()))
    chunks, rest = divmod(size, chunk)
    sent = chunks * min(top_k, chunk) + min(top_k, rest)
    index = 0 if sent == size else math.ceil(math.log2(chunk))
    exact = 64 if jnp.result_type(x) == jnp.float64 else 32
    value = _BITS.get(bits, exact)
    return math.ceil(sent * (index + value) / 8) + _SCALES.get(bits, 0)


def directed(op: MergeOp, up: float, down: float) -> Traffic:
    """The traffic of an operation whose members send `up` bytes and receive `down`."""
    moves = moves_of(op)
    return Traffic(
        up if moves.pushes else 0, down if moves.fetches or moves.requests else 0
    )
