"""A cache of arrays that may exceed the memory: written once, mapped from then on.

    NAME-0123456789abcdef/         one per source folder and options
      *.npy                        the arrays
      about.json                   a fingerprint of the sources, CRC-32 of all blocks
    NAME-0123456789abcdef.lock     held by the process that writes

A copy is used if the paths, sizes and times of all sources have not changed since. Its
bytes are compared with their CRC-32 first: damage costs time, and never changes a
result. Above `WHOLE` bytes that would take too long, and only evenly spaced blocks are
compared, unless `verify` says otherwise.
"""

import contextlib
import hashlib
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import filelock
import numpy as np

from hetjax.cache import cache_folder
from hetjax.checkpointable import shortened
from hetjax.data.readers import DataError, reading

VERSION = 2  # of these files, and of the results of the readers
BLOCK = 1 << 22  # [bytes] with one checksum
WHOLE = 4_000_000_000  # [bytes] of the largest copy whose every block is compared
SAMPLED = 64  # blocks of a file that are compared in a larger copy
ABOUT = "about.json"


class CannotWrite(DataError):
    """No copy can be written: a full disk, no permission, no locks."""


class _Unusable(Exception):
    """A copy is damaged; the message names the damage."""


class Copy(NamedTuple):
    """The arrays in the cache."""

    folder: Path
    arrays: dict[str, np.ndarray]  # by name, mapped
    facts: dict[str, Any]  # of the writer


def check_space(folder: Path, needed: int) -> None:
    """Raises an OSError if so many bytes are not free, before hours of work."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"it needs {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free"
        )


def write_array(
    path: Path, shape: tuple[int, ...], dtype: Any, parts: Iterable[np.ndarray]
) -> None:
    """Write an array as a .npy file; `parts` are its rows, in order.

    Writing through a memory map would turn a full disk into a signal that ends the
    process, instead of an OSError.
    """
    kind = np.lib.format.dtype_to_descr(np.dtype(dtype))
    described = {"descr": kind, "fortran_order": False, "shape": shape}
    with path.open("xb") as file:
        np.lib.format.write_array_header_1_0(file, described)
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).data)


def copy_folder(root: Path, options: Any, cache: str | PathLike | None) -> Path:
    """The cache folder for data read from `root` with these options.

    The options are JSON data; the first identifies the reader.
    """
    if cache == "":
        raise ValueError("cache='': pass a folder, or None for the user's cache folder")
    folder = cache_folder() / "read" if cache is None else Path(cache)
    root = root.resolve()
    key = json.dumps([str(root), options, VERSION])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return folder.expanduser() / f"{shortened(root.name)}-{digest}"


def load_or_write(
    place: Path,
    sources: Iterable[Path],
    write: Callable[[Path], dict[str, Any]],
    *,
    verify: bool | None = None,
    mode: Literal["r", "c"] = "r",
) -> Copy:
    """The copy of these files in the folder `place`; written first if there is none.

    `write` puts .npy and other files into a folder, and returns facts as JSON data. One
    of several processes writes, and the others wait. `verify` True compares all blocks,
    False the first ones and the sizes of files, and None decides by the size. `mode` is
    that of the memory maps. If nothing can be written, `CannotWrite` gives the reason.
    """
    sources = list(sources)
    with contextlib.suppress(OSError, _Unusable):  # reported below, with the lock held
        copy = _opened(place, _fingerprint(sources), verify, mode)
        if copy is not None:
            return copy
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place):
            found = _fingerprint(sources)
            copy = None
            try:
                copy = _opened(place, found, verify, mode)
            except _Unusable as error:
                warnings.warn(f"{place}: {error}; it is made again", stacklevel=6)
            if copy is None:
                _write(place, sources, found, write)
                copy = _opened(place, found, verify, mode)
            assert copy is not None
            return copy
    except (OSError, NotImplementedError, _Unusable) as error:  # e.g. without locks
        raise CannotWrite(
            f"{place}: no copy can be written there ({error}); free disk space, or "
            "pass another folder as cache=..."
        ) from error


def _fingerprint(paths: Iterable[Path]) -> str:
    """A hash of the names, sizes and times of these files, in their order.

    Names begin at the folder of all, whose own name may be written in several ways.
    """
    digest = hashlib.sha256()
    names = [os.path.abspath(path) for path in paths]
    start = len(os.path.commonpath(map(os.path.dirname, names))) if names else 0
    for name in names:
        with reading(Path(name)):
            found = os.stat(name)
        times = found.st_mtime_ns, found.st_ctime_ns
        entry = json.dumps([name[start:], found.st_size, times])
        digest.update(entry.encode() + b"\n")
    return digest.hexdigest()


def _locked(place: Path) -> filelock.AcquireReturnProxy:
    """The lock, without a timeout: a first pass may take hours."""
    lock = filelock.FileLock(f"{place}.lock")
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        why = "another process is making this copy, and this one waits for it"
        warnings.warn(f"{place}: {why}", stacklevel=7)
        return lock.acquire()


def _write(
    place: Path,
    sources: list[Path],
    fingerprint: str,
    write: Callable[[Path], dict[str, Any]],
) -> None:
    """Write the copy whole, or not at all; the lock must be held."""
    partial, old = Path(f"{place}.partial"), Path(f"{place}.partial.old")
    for left_over in (partial, old):  # by a killed process
        shutil.rmtree(left_over, ignore_errors=True)
    partial.mkdir()
    try:
        facts = write(partial)
        if _fingerprint(sources) != fingerprint:
            raise DataError(f"{place}: the files changed during reading; start again")
        files = {
            path.name: [path.stat().st_size, _checksums(path, range(_blocks(path)))]
            for path in partial.iterdir()
        }
        for name in files:  # before the renaming; otherwise a crash may leave holes
            with (partial / name).open("rb") as file:
                os.fsync(file.fileno())
        text = json.dumps({"sources": fingerprint, "files": files, "facts": facts})
        (partial / ABOUT).write_text(f"{zlib.crc32(text.encode())}\n{text}")
        if place.exists():  # damaged, or of other sources; another process may read it
            place.rename(old)
        partial.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _opened(
    place: Path, fingerprint: str, verify: bool | None, mode: Literal["r", "c"]
) -> Copy | None:
    """The copy of these sources, None if there is none; `_Unusable` if damaged."""
    if not place.is_dir():
        return None
    try:
        crc, text = (place / ABOUT).read_text().split("\n", 1)
        if int(crc) != zlib.crc32(text.encode()):
            raise _Unusable(f"{ABOUT} is damaged")
        about = json.loads(text)
        if about["sources"] != fingerprint:
            return None
        files = about["files"]
        if verify is None and sum(size for size, _ in files.values()) <= WHOLE:
            verify = True
        for name, (size, checksums) in files.items():
            chosen = _compared(len(checksums), verify)
            same = (place / name).stat().st_size == size and all(
                checksums[block] == found
                for block, found in zip(
                    chosen, _checksums(place / name, chosen), strict=True
                )
            )
            if not same:
                raise _Unusable(f"{name} is damaged")
        arrays = {
            name.removesuffix(".npy"): np.load(place / name, mmap_mode=mode)
            for name in files
            if name.endswith(".npy")
        }
    except (OSError, ValueError) as error:
        raise _Unusable(f"a file cannot be read ({error})") from error
    return Copy(place, arrays, about["facts"])


def _compared(blocks: int, verify: bool | None) -> Sequence[int]:
    """The blocks to compare: all, the first with an array's header, or some (None)."""
    if verify is None:
        return sorted({int(k) for k in np.linspace(0, blocks - 1, SAMPLED)})
    return range(blocks if verify else min(1, blocks))


def _blocks(path: Path) -> int:
    """The number of blocks of a file."""
    return -(-path.stat().st_size // BLOCK)


def _checksums(path: Path, blocks: Iterable[int]) -> list[int]:
    """CRC-32 of each of these blocks of a file."""

    def checksum(block: int) -> int:
        with path.open("rb") as file:  # a mapped file would count as memory in use
            file.seek(block * BLOCK)
            return zlib.crc32(file.read(BLOCK))

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # checksums release the GIL
        return list(pool.map(checksum, blocks))
