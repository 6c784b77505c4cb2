"""Copies of a run's arrays on the host; equal large arrays are copied once.

The run waits while they are made. A thread writes them while the run continues.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

LARGE = 2**20  # bytes from which an array is compared with others
_PIECE = 2**19  # bytes of one comparison, which fit a core's cache
_Kind = tuple[tuple[int, ...], np.dtype]


class HostCopies:
    """Copies of a snapshot's arrays, which do not change when the run continues.

    A large array with the same bits as an earlier one is that array: after a broadcast
    all replicas are equal, and are copied and written once.
    """

    def __init__(self, spare: Iterable[np.ndarray] = ()):
        """Reuse the memory of large arrays in `spare`, which nothing reads any more.

        New memory takes several times as long: the system clears it page by page.
        """
        self.arrays: list[np.ndarray] = []  # in the order in which they were added
        self._known: dict[_Kind, list[int]] = {}  # places of large arrays that differ
        self._spare: dict[_Kind, list[np.ndarray]] = {}
        for array in {id(x): x for x in spare if x.nbytes >= LARGE}.values():
            if array.flags.writeable:  # else it is JAX's copy
                self._spare.setdefault(_kind(array), []).append(array)

    def add(self, arrays: Sequence[Any]) -> None:
        """Copy more arrays, and append the copies."""
        for array in arrays:
            if isinstance(array, jax.Array):
                array.copy_to_host_async()  # start all transfers from a GPU first
        begin = len(self.arrays)
        # views of a CPU's arrays, copies of all others
        self.arrays += map(np.asarray, arrays)
        firsts = [self._first_equal(k) for k in range(begin, len(self.arrays))]
        large = []  # places of the arrays that several threads copy
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
        """The place of the first array with the same bits; its own, if it is small."""
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
        """Arrays whose memory may be reused once these copies are not needed."""
        return [*self.arrays, *(x for unused in self._spare.values() for x in unused)]

    def _memory_for(self, seen: np.ndarray) -> np.ndarray | None:
        """Spare memory for a copy, if some is left."""
        spare = self._spare.get(_kind(seen))
        return spare.pop() if spare else None


def _is_elsewhere(array: Any) -> bool:
    """Whether this is an array on devices other than the host's CPUs."""
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
    """Whether all bits are equal; arrays that differ usually do so early."""
    first, second = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    whole = len(first) // 8 * 8
    if not np.array_equal(first[whole:], second[whole:]):
        return False
    first, second = (x[:whole].view(np.uint64) for x in (first, second))
    ends = range(0, len(first), _PIECE // 8)
    pieces = (slice(start, start + _PIECE // 8) for start in ends)
    return all(np.array_equal(first[p], second[p]) for p in pieces)
