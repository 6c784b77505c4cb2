"""Splits that can be sent to other machines: memory maps are replaced by their paths.

Pickling a memory map would read all of it. Instead every machine opens its own file, in
a shared folder or a copy at the same path, and compares its checksum.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.data.columns import RowsView, leaf_checksum
from hetjax.data.dataset import Split


class MappedFile(NamedTuple):
    """The description of a memory map of a whole file."""

    path: str
    dtype: Any
    shape: tuple[int, ...]
    offset: int
    order: str


class MappedRows(NamedTuple):
    """The description of a view of a memory map's rows."""

    file: MappedFile
    rows: np.ndarray


class Portable(NamedTuple):
    """A split with descriptions in place of its memory maps."""

    leaves: list[Any]
    structure: Any
    checksums: dict[int, int]  # of the memory maps, by index of the leaf


def portable(split: Split) -> Portable:
    """Return the split in a form that can be sent to another process."""
    leaves, structure = jax.tree.flatten((split.x, split.y))
    checksums = {}
    for k, leaf in enumerate(leaves):
        description = _description(leaf)
        if description is not None:
            leaves[k], checksums[k] = description, leaf_checksum(leaf)
    return Portable(leaves, structure, checksums)


def _description(leaf: Any) -> MappedFile | MappedRows | None:
    """The description of a memory map, or None if it is not one of a whole file."""
    if isinstance(leaf, RowsView):
        file = _description(leaf.base)
        return MappedRows(file, leaf.rows) if isinstance(file, MappedFile) else None
    whole = isinstance(leaf, np.memmap) and not isinstance(leaf.base, np.ndarray)
    if not whole or leaf.filename is None:
        return None
    order = "F" if leaf.flags.f_contiguous and not leaf.flags.c_contiguous else "C"
    path, offset = str(leaf.filename), int(leaf.offset)
    return MappedFile(path, leaf.dtype, leaf.shape, offset, order)


def open_portable(portable_split: Portable) -> Split:
    """Return the split with memory maps of this machine's files.

    Errors: OSError for a missing file; ValueError for a file with other content.
    """
    leaves = [_open_leaf(leaf) for leaf in portable_split.leaves]
    for k, expected in portable_split.checksums.items():
        if leaf_checksum(leaves[k]) != expected:
            file = leaves[k].base if isinstance(leaves[k], RowsView) else leaves[k]
            raise ValueError(f"{file.filename} has other content here")
    return Split(*jax.tree.unflatten(portable_split.structure, leaves))


def _open_leaf(leaf: Any) -> Any:
    if isinstance(leaf, MappedRows):
        return RowsView(_open_leaf(leaf.file), leaf.rows)
    if not isinstance(leaf, MappedFile):
        return leaf
    path, dtype, shape, offset, order = leaf
    return np.memmap(path, dtype, "r", offset, shape, order)  # pyright: ignore
