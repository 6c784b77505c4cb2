"""Copies of a run's arrays on the host, each bit pattern once.

The run waits while they are made, and a thread writes them while it goes on.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

LARGE = 2**20  # bytes of an array that is compared with others


def on_host(
    arrays: Sequence[Any], before: Sequence[np.ndarray] = ()
) -> list[np.ndarray]:
    """Copies on the host, which do not change when the run goes on.

    Large arrays with the bits of one in `before`, or of one another, are that array:
    after a broadcast all replicas are equal, and need not be copied and written.
    """
    for array in arrays:
        if isinstance(array, jax.Array):
            array.copy_to_host_async()  # all moves from a GPU begin before one ends
    known: dict[tuple, list[np.ndarray]] = {}
    for array in before:
        known.setdefault((array.shape, array.dtype), []).append(array)
    return [_copy(array, known) for array in arrays]


def _copy(array: Any, known: dict[tuple, list[np.ndarray]]) -> np.ndarray:
    seen = np.asarray(array)  # of a CPU's array a view, of others a copy
    if seen.nbytes >= LARGE:
        same = known.setdefault((seen.shape, seen.dtype), [])
        for other in same:
            if _equal_bits(seen, other):
                return other
    moved = isinstance(array, jax.Array) and all(
        d.platform != "cpu" for d in array.devices()
    )
    copy = seen if moved else np.array(seen)
    if seen.nbytes >= LARGE:
        known[seen.shape, seen.dtype].append(copy)
    return copy


def _equal_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Are all bits equal? Of different arrays the first few tell."""
    first, second = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    ends = [0, 2**12, *range(2**22, len(first), 2**22), len(first)]
    pieces = (slice(*pair) for pair in itertools.pairwise(ends))
    return all(np.array_equal(first[p], second[p]) for p in pieces)
