"""The arrays of a checkpoint: small ones are put together, equal ones kept once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_CHUNK = 2**26  # bytes of small arrays that are put together


def pack(
    arrays: Sequence[np.ndarray],
) -> tuple[dict[str, np.ndarray], list[list[Any]]]:
    """Put small arrays of a dtype together: the disk takes a millisecond for a file.

    An array that is there twice is kept once. Returns flat arrays by name, and [name,
    offset, dtype, shape] of every given array.
    """
    groups: dict[str, list[np.ndarray]] = {}
    sizes: dict[str, int] = {}
    current: dict[str, str] = {}  # the group that is being filled, by dtype
    places: list[list[Any]] = []
    placed: dict[int, int] = {}  # the first place of an array, by its id
    for number, array in enumerate(arrays):
        if placed.setdefault(id(array), number) != number:
            places.append(places[placed[id(array)]])
            continue
        dtype = str(array.dtype)
        name = current.get(dtype, "")
        if not name or (sizes[name] + array.size) * array.itemsize > _CHUNK:
            name = current[dtype] = f"{dtype}-{number}"
            groups[name], sizes[name] = [], 0
        places.append([name, sizes[name], dtype, list(array.shape)])
        if array.size:
            groups[name].append(array.reshape(-1))
            sizes[name] += array.size
    packed = {
        name: found[0] if len(found) == 1 else np.concatenate(found)
        for name, found in groups.items()
        if found
    }
    return packed, places


def named(
    arrays: Sequence[np.ndarray], names: Sequence[str]
) -> tuple[dict[str, np.ndarray], list[list[Any]]]:
    """As `pack`, with an entry for each array."""
    places = [
        [n, 0, str(x.dtype), list(x.shape)] for n, x in zip(names, arrays, strict=True)
    ]
    return {n: x for n, x in zip(names, arrays, strict=True) if x.size}, places


def unpack(packed: dict[str, Any], places: list[list[Any]]) -> list[np.ndarray]:
    """Return the arrays that `pack` was given: none shares its memory with another."""
    arrays: list[np.ndarray] = []
    taken: set[tuple[str, int]] = set()
    for name, offset, dtype, shape in places:
        size = int(np.prod(shape))
        if not size:
            arrays.append(np.empty(shape, dtype))
            continue
        flat = np.asarray(packed[name]).reshape(-1)[offset : offset + size]
        if str(flat.dtype) != dtype or flat.size != size:
            raise ValueError(f"{name} has not the {size} numbers of an array")
        again = (name, offset) in taken
        taken.add((name, offset))
        arrays.append((flat.copy() if again else flat).reshape(shape))
    return arrays
