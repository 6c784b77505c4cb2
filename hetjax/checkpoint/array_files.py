"""Arrays in a folder: those of a run in NumPy's format, those of a model in orbax's.

Other programs can read a model with orbax alone. Nothing but hetjax reads the arrays of
a run, and orbax takes ten times the CPU time for them, which a run on a CPU needs
itself. In a run of several processes, orbax would also wait for all of them.
"""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hetjax.checkpoint.direct_io import DirectFile

ORBAX, NUMPY = "orbax", "numpy"
_CHUNK = 2**26  # bytes of small arrays in one file


def save(folder: Path, packed: dict[str, np.ndarray]) -> dict[str, tuple[int, int]]:
    """Write flat arrays to a new folder; return the size and CRC-32 of each file."""
    folder.mkdir()
    found = {}
    for name, array in packed.items():
        file = f"{name}.npy"
        with DirectFile(folder / file) as opened:
            as_bytes = array.view(np.uint8)  # NumPy has no bfloat16
            header = np.lib.format.header_data_from_array_1_0(as_bytes)
            np.lib.format.write_array_header_1_0(opened, header)
            opened.write(as_bytes)
        found[file] = opened.size, opened.crc
    return found


def save_by_orbax(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays to a new folder, for other programs.

    Errors: ValueError in all processes but the first: orbax would drop their arrays.
    """
    if jax.process_index() > 0:
        raise ValueError(
            "orbax writes NumPy arrays in process 0 alone: save the model there"
        )
    _checkpointer().save(folder.absolute(), arrays)


def load(folder: Path, places: list[list[Any]], by: str) -> list[np.ndarray]:
    """Return the arrays at these places, which were written `by` ORBAX or NUMPY.

    Errors: OSError, ValueError, or those of orbax, which have no common type.
    """
    kinds = {name: dtype for name, _, dtype, shape in places if 0 not in shape}
    if not kinds:
        packed: dict[str, Any] = {}
    elif by == ORBAX:
        packed = _checkpointer().restore(folder.absolute())
    else:
        read = functools.partial(np.load, allow_pickle=False)
        packed = {
            n: read(folder / f"{n}.npy").view(dtype) for n, dtype in kinds.items()
        }
    return unpack(packed, places)


@functools.cache
def _checkpointer() -> Any:
    """Orbax's checkpointer for trees of NumPy arrays, for this process alone."""
    import orbax.checkpoint as ocp  # here, since the import takes seconds

    # at every checkpoint it warns that OCDBT is off, as requested below
    logging.getLogger("absl").addFilter(lambda r: "OCDBT" not in str(r.msg))
    # compression would save 8 % of trained float32, and OCDBT some files, each for
    # several times the CPU time
    own = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(), active_processes={jax.process_index()}
    )
    handler = ocp.PyTreeCheckpointHandler(
        use_compression=False, use_ocdbt=False, multiprocessing_options=own
    )
    return ocp.Checkpointer(handler, multiprocessing_options=own)


# -- packing ---------------------------------------------------------------------------


def pack(
    arrays: Sequence[np.ndarray],
) -> tuple[dict[str, np.ndarray], list[list[Any]]]:
    """Join small arrays of a dtype: the disk takes a millisecond for every file.

    An array that occurs twice is stored once. Returns flat arrays by name, and [name,
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
    """Return what `pack` does, with an entry for each array."""
    places = [
        [n, 0, str(x.dtype), list(x.shape)] for n, x in zip(names, arrays, strict=True)
    ]
    return {n: x for n, x in zip(names, arrays, strict=True) if x.size}, places


def unpack(packed: dict[str, Any], places: list[list[Any]]) -> list[np.ndarray]:
    """Return the arrays that were passed to `pack`; none shares memory with another."""
    arrays: list[np.ndarray] = []
    taken: set[tuple[str, int]] = set()
    for name, offset, dtype, shape in places:
        size = int(np.prod(shape))
        if not size:
            arrays.append(np.empty(shape, dtype))
            continue
        flat = np.asarray(packed[name]).reshape(-1)[offset : offset + size]
        if str(flat.dtype) != dtype or flat.size != size:
            raise ValueError(f"{name} does not hold the {size} numbers of an array")
        again = (name, offset) in taken
        taken.add((name, offset))
        arrays.append((flat.copy() if again else flat).reshape(shape))
    return arrays
