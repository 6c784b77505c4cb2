"""Many small inputs of a program as one array, which is sent to the devices at once.

Sending an array costs the host 50 to 100 us, however small it is. Leaves of numbers of
four bytes, and flags, go side by side into one buffer of 32-bit words; large leaves are
sent as they are.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from hetjax.tree import PyTree

LARGE = 2**15  # bytes of a leaf that is sent by itself


class Packing(NamedTuple):
    """How a tree was packed; static, so that a program can unpack it."""

    structure: Any
    # of each leaf: its shape behind [devices, waves] and its dtype, if it was packed
    leaves: tuple[tuple[tuple[int, ...], np.dtype] | None, ...]


class Packed(NamedTuple):
    """A packed tree: leaves [devices, waves, ...]."""

    words: Any  # [devices, waves, n] uint32
    large: tuple[Any, ...]


def pack(trees: Sequence[PyTree], devices: int) -> tuple[Packed, Packing]:
    """Pack the trees of several waves, with leaves [devices, ...] on the host."""
    columns = [jax.tree.leaves(tree) for tree in trees]
    structure = jax.tree.structure(trees[0])
    large, about, small = [], [], []
    size = 1  # never empty: a program has to know the number of waves
    for of_waves in zip(*columns, strict=True):
        first = of_waves[0]
        if first.nbytes <= LARGE and _fits(first.dtype):
            about.append((first.shape[1:], first.dtype))
            small.append((size, of_waves))
            size += first.size // devices
        else:
            about.append(None)
            one = len(of_waves) == 1
            large.append(first[:, None] if one else np.stack(of_waves, axis=1))
    buffer = np.zeros((devices, len(trees), size), np.uint32)
    for start, of_waves in small:
        end = start + of_waves[0].size // devices
        for wave, leaf in enumerate(of_waves):
            buffer[:, wave, start:end] = _as_words(leaf).reshape(devices, -1)
    return Packed(buffer, tuple(large)), Packing(structure, tuple(about))


def unpack(packed: Packed, packing: Packing) -> PyTree:
    """Inside a program: the tree of one wave and device, with leaves [...]."""
    large, start = iter(packed.large), 1
    leaves = []
    for about in packing.leaves:
        if about is None:
            leaves.append(next(large))
            continue
        shape, dtype = about
        end = start + math.prod(shape)
        leaf = packed.words[start:end].reshape(shape)
        if dtype == np.bool_:
            leaf = leaf != 0
        elif dtype.itemsize == 4:
            leaf = lax.bitcast_convert_type(leaf, dtype)
        else:
            leaf = leaf.astype(dtype)
        leaves.append(leaf)
        start = end
    return jax.tree.unflatten(packing.structure, leaves)


def _fits(dtype: np.dtype) -> bool:
    """Does a number of this type fit into a word, and come back as it was?"""
    return dtype.itemsize == 4 or (dtype.itemsize == 1 and dtype.kind in "biu")


def _as_words(leaf: np.ndarray) -> np.ndarray:
    """The bits of numbers of four bytes; smaller integers as such."""
    if leaf.dtype.itemsize != 4:
        return leaf.astype(np.uint32)
    return np.ascontiguousarray(leaf).view(np.uint32)
