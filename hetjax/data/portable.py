"""Memory maps between machines: the path travels, and every node opens its own file.

A map that is pickled would be read as a whole. A shared folder, or a copy at the same
path on each node, is what a member needs; a checksum tells whether it is the same.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.data.columns import View, leaf_checksum
from hetjax.data.dataset import Split


class MappedFile(NamedTuple):
    """A memory map of a whole file, as another process opens it."""

    path: str
    dtype: Any
    shape: tuple[int, ...]
    offset: int
    order: str


class MappedRows(NamedTuple):
    """Rows of a memory map."""

    file: MappedFile
    rows: np.ndarray


class Portable(NamedTuple):
    """A split with descriptions in the place of its memory maps."""

    leaves: list[Any]
    structure: Any
    checksums: dict[int, int]  # of the maps, by the number of the leaf


def portable(split: Split) -> Portable:
    """The split, to be given to another process."""
    leaves, structure = jax.tree.flatten((split.x, split.y))
    checksums = {}
    for k, leaf in enumerate(leaves):
        told = _told(leaf)
        if told is not None:
            leaves[k], checksums[k] = told, leaf_checksum(leaf)
    return Portable(leaves, structure, checksums)


def _told(leaf: Any) -> MappedFile | MappedRows | None:
    """The description of a memory map; None for what is no map of a whole file."""
    if isinstance(leaf, View):
        file = _told(leaf.base)
        return MappedRows(file, leaf.rows) if isinstance(file, MappedFile) else None
    whole = isinstance(leaf, np.memmap) and not isinstance(leaf.base, np.ndarray)
    if not whole or leaf.filename is None:
        return None
    order = "F" if leaf.flags.f_contiguous and not leaf.flags.c_contiguous else "C"
    path, offset = str(leaf.filename), int(leaf.offset)
    return MappedFile(path, leaf.dtype, leaf.shape, offset, order)


def opened(given: Portable) -> Split:
    """The split, with the memory maps of this machine.

    Errors: OSError for a file that is not here; ValueError for one that differs.
    """
    leaves = [_opened(leaf) for leaf in given.leaves]
    for k, expected in given.checksums.items():
        if leaf_checksum(leaves[k]) != expected:
            raise ValueError(f"{_file_of(given.leaves[k]).path} has other content here")
    return Split(*jax.tree.unflatten(given.structure, leaves))


def _opened(leaf: Any) -> Any:
    if isinstance(leaf, MappedRows):
        return View(_opened(leaf.file), leaf.rows)
    if not isinstance(leaf, MappedFile):
        return leaf
    path, dtype, shape, offset, order = leaf
    return np.memmap(path, dtype, "r", offset, shape, order)  # pyright: ignore


def _file_of(leaf: MappedFile | MappedRows) -> MappedFile:
    return leaf.file if isinstance(leaf, MappedRows) else leaf
