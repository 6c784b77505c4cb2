"""Copies of a run's arrays on the host, each bit pattern once.

The run waits while they are made, and a thread writes them while it goes on.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

LARGE = 2**20  # bytes of an array that is compared with others
_PIECE = 2**19  # bytes that are compared at a time: they stay in a core's cache
_Kind = tuple[tuple[int, ...], np.dtype]


class Copies:
    """Copies of a cut's arrays, which do not change when the run goes on.

    Large arrays with the bits of an earlier one are that array: after a broadcast all
    replicas are equal, and need not be copied and written.
    """

    def __init__(self, spare: Iterable[np.ndarray] = ()):
        """The memory of large arrays in `spare`, which nobody reads, is used again.

        New memory takes several times as long: the system clears it page by page.
        """
        self.arrays: list[np.ndarray] = []  # in the order in which they were added
        self._known: dict[_Kind, list[int]] = {}  # places of large ones that differ
        self._spare: dict[_Kind, list[np.ndarray]] = {}
        for array in {id(x): x for x in spare if x.nbytes >= LARGE}.values():
            if array.flags.writeable:  # else it is JAX's own, of another device's array
                self._spare.setdefault(_kind(array), []).append(array)

    def add(self, arrays: Sequence[Any]) -> None:
        """Copy more arrays."""
        for array in arrays:
            if isinstance(array, jax.Array):
                array.copy_to_host_async()  # all moves from a GPU begin before one ends
        begin = len(self.arrays)
        # of a CPU's arrays these are views, of others copies
        self.arrays += map(np.asarray, arrays)
        firsts = [self._first_equal(k) for k in range(begin, len(self.arrays))]
        large = []  # those that several threads copy
        for place, (first, array) in enumerate(zip(firsts, arrays, strict=True), begin):
            if first != place or _is_elsewhere(array):
                continue
            if self.arrays[place].nbytes < LARGE:
                self.arrays[place] = np.array(self.arrays[place])
            else:
                large.append(place)
        jobs = [(self.arrays[k], self._memory_for(self.arrays[k])) for k in large]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for place, copy in zip(large, pool.map(_copied, jobs), strict=True):
                self.arrays[place] = copy
        self.arrays[begin:] = [self.arrays[first] for first in firsts]

    def _first_equal(self, place: int) -> int:
        """The place of the first array with the bits of this one: its own, if small."""
        seen = self.arrays[place]
        if seen.nbytes < LARGE:
            return place
        same = self._known.setdefault(_kind(seen), [])
        for other in same:
            if _equal_bits(seen, self.arrays[other]):
                return other
        same.append(place)
        return place

    @property
    def memory(self) -> list[np.ndarray]:
        """What may be spare when these copies are not needed any more."""
        return [*self.arrays, *(x for unused in self._spare.values() for x in unused)]

    def _memory_for(self, seen: np.ndarray) -> np.ndarray | None:
        """Memory for a copy that is there already, if some is left."""
        spare = self._spare.get(_kind(seen))
        return spare.pop() if spare else None


def _is_elsewhere(array: Any) -> bool:
    """Is it on another device than the host's processors?"""
    return isinstance(array, jax.Array) and all(
        d.platform != "cpu" for d in array.devices()
    )


def _copied(job: tuple[np.ndarray, np.ndarray | None]) -> np.ndarray:
    seen, memory = job
    if memory is None:
        return np.array(seen)
    np.copyto(memory, seen)
    return memory


def _kind(array: np.ndarray) -> _Kind:
    return array.shape, array.dtype


def _equal_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Are all bits equal? Of different arrays the first few tell."""
    first, second = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    whole = len(first) // 8 * 8
    if not np.array_equal(first[whole:], second[whole:]):
        return False
    first, second = (x[:whole].view(np.uint64) for x in (first, second))
    ends = range(0, len(first), _PIECE // 8)
    pieces = (slice(start, start + _PIECE // 8) for start in ends)
    return all(np.array_equal(first[p], second[p]) for p in pieces)
