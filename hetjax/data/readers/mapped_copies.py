"""A cache of arrays that may exceed the memory: written by a first pass, then mapped.

    NAME-0123456789abcdef/      one per source folder and options
      about.json                a fingerprint of the sources, and CRC-32 of all blocks
      4f3a.../                  the arrays, under a new name whenever they are written
      .lock                     held by the process that writes

A copy is used if the paths, sizes and times of all sources have not changed since. Its
bytes are compared with their CRC-32 first: damage costs time, and never changes a
result. Above `WHOLE` bytes that would take too long, and only evenly spaced blocks are
compared, unless `verify` says otherwise. The description is written last, so an
interrupted pass leaves no copy; the next pass removes its files.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np

from hetjax.cache import cache_folder
from hetjax.checkpointable import shortened
from hetjax.data.readers import DataError
from hetjax.data.readers.about_file import (
    ABOUT,
    LOCK,
    Unusable,
    read_about,
    write_about,
)

VERSION = 1  # of these files, and of the results of the readers
BLOCK = 1 << 22  # [bytes] written at a time, with one checksum
WHOLE = 4_000_000_000  # [bytes] of the largest copy whose every block is compared
SAMPLED = 64  # blocks of an array that are compared in a larger copy


class Copy(NamedTuple):
    """The result of a first pass, in the cache."""

    folder: Path
    arrays: dict[str, np.ndarray]  # by name, mapped and read-only


class MappedWriter:
    """Writes the files of a copy, and records the checksums of their blocks."""

    def __init__(self, folder: Path):
        """`folder` is empty, and only this process writes into it."""
        self.folder = folder
        self.files: dict[str, list[list[int]]] = {}  # [bytes] and CRC-32 of blocks

    def array(
        self, name: str, shape: tuple[int, ...], dtype: Any, parts: Iterable[np.ndarray]
    ) -> None:
        """Write an array as NAME.npy; `parts` are its rows, in order."""
        kind = np.lib.format.dtype_to_descr(np.dtype(dtype))
        described = {"descr": kind, "fortran_order": False, "shape": shape}
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, described)
        rows = (np.ascontiguousarray(part, dtype).data.cast("B") for part in parts)
        self.file(f"{name}.npy", chain([header.getvalue()], rows))

    def file(self, name: str, parts: Iterable[Any]) -> None:
        """Write a file of bytes, with a checksum for each part.

        Writing through a memory map would turn a full disk into a signal that ends the
        process, instead of an OSError.
        """
        blocks = []
        with (self.folder / name).open("xb") as file:
            for part in parts:
                file.write(part)
                blocks.append([len(part), zlib.crc32(part)])
            file.flush()
            os.fsync(file.fileno())  # before a description refers to it
        self.files[name] = blocks


class FirstPass(NamedTuple):
    """The functions that make a copy."""

    sources: Callable[[], str]  # the fingerprint of all files that are read
    write: Callable[[MappedWriter], None]
    needed: Callable[[], int]  # the approximate size of the copy [bytes]


def copy_folder(root: Path, options: Any, cache: str | PathLike | None) -> Path:
    """The cache folder for data read from `root` with these options.

    The options are JSON data; the first identifies the reader.
    """
    if not (cache is None or isinstance(cache, str | PathLike)) or cache == "":
        raise ValueError(
            f"cache={cache!r}: pass a folder, or None for the user's cache folder"
        )
    folder = cache_folder() / "read" if cache is None else Path(cache)
    root = root.resolve()
    key = json.dumps([str(root), options, VERSION])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return folder.expanduser() / f"{shortened(root.name)}-{digest}"


def fingerprint(root: Path, paths: Iterable[Path]) -> str:
    """A hash of the names, sizes and times of these files, in their order."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            found = os.stat(path)
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{path}: cannot be read ({reason})") from error
        name = os.path.relpath(path, root)
        entry = json.dumps([name, found.st_size, found.st_mtime_ns])
        digest.update(entry.encode() + b"\n")
    return digest.hexdigest()


def load_or_write(
    place: Path, first_pass: FirstPass, verify: bool | None = None
) -> Copy:
    """The copy in the folder `place`; written first if there is none.

    One of several processes writes it, and the others wait. `verify` True compares all
    blocks, False only the sizes of files, and None decides by the size. A `DataError`
    gives the reason if it cannot be written.
    """
    with contextlib.suppress(OSError, Unusable):  # reported below, with the lock held
        copy = _opened(place, first_pass.sources(), verify)
        if copy is not None:
            return copy
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _locked(place):
            return _open_or_write(place, first_pass, verify)
    except (OSError, NotImplementedError) as error:  # a file system without locks
        raise DataError(
            f"{place}: no copy can be written there ({error}); free disk space, or "
            "pass another folder as cache=..."
        ) from error


def _locked(place: Path) -> filelock.AcquireReturnProxy:
    """The lock, to be released by `with`.

    There is no timeout, since a first pass may take hours.
    """
    lock = filelock.FileLock(place / LOCK)
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        why = "another process is making this copy, and this one waits for it"
        warnings.warn(f"{place}: {why}", stacklevel=6)
        return lock.acquire()


def _open_or_write(place: Path, first_pass: FirstPass, verify: bool | None) -> Copy:
    """The copy, opened or else written; the lock must be held."""
    sources = first_pass.sources()
    try:
        copy = _opened(place, sources, verify)
        if copy is not None:
            return copy
    except Unusable as error:
        warnings.warn(f"{place}: {error}; all files are read again", stacklevel=6)
    _clear(place)
    _write(place, first_pass, sources)
    try:
        copy = _opened(place, sources, verify)
    except Unusable as error:
        raise DataError(
            f"{place}: {error}, though it was just written; is the disk damaged? pass "
            "a folder on another disk as cache=..."
        ) from error
    assert copy is not None
    return copy


def _clear(place: Path) -> None:
    """Remove copies of other sources, and files left by killed processes."""
    for entry in place.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name.startswith(f"{ABOUT}."):
            entry.unlink(missing_ok=True)


def _write(place: Path, first_pass: FirstPass, sources: str) -> None:
    """Write the copy; a DataError if the sources change meanwhile."""
    folder = place / uuid.uuid4().hex
    folder.mkdir()
    try:
        free, needed = shutil.disk_usage(folder).free, first_pass.needed()
        if free < needed:  # an early error, before hours of work
            raise OSError(
                f"it needs {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free"
            )
        writer = MappedWriter(folder)
        first_pass.write(writer)
        if first_pass.sources() != sources:
            raise DataError(f"{place}: the files changed during reading; start again")
        about = {"sources": sources, "folder": folder.name, "files": writer.files}
        write_about(place, about)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _opened(place: Path, sources: str, verify: bool | None) -> Copy | None:
    """The copy of these sources, None if there is none; `Unusable` if damaged."""
    about = read_about(place)
    if about is None or about["sources"] != sources:
        return None
    folder, files = place / about["folder"], about["files"]
    total = sum(length for blocks in files.values() for length, _ in blocks)
    at_most = None if verify or (verify is None and total <= WHOLE) else SAMPLED
    if verify is False:
        at_most = 0
    try:
        for name, blocks in files.items():
            _compare(folder / name, blocks, at_most)
        arrays = {
            name.removesuffix(".npy"): np.load(folder / name, mmap_mode="r")
            for name in files
            if name.endswith(".npy")
        }
    except OSError as error:
        raise Unusable(f"a file cannot be read ({error})") from error
    return Copy(folder, arrays)


def _compare(path: Path, blocks: Sequence[Sequence[int]], at_most: int | None) -> None:
    """Raises `Unusable` unless the file matches its checksums.

    Always compares the first block, an array's header, and `at_most` of the others;
    None for all.
    """
    lengths = np.array([length for length, _ in blocks], np.int64)
    if path.stat().st_size != lengths.sum():
        raise Unusable(f"{path.name} is damaged (another size)")
    starts = np.cumsum(lengths) - lengths
    chosen = range(len(blocks))
    if at_most is not None:
        chosen = np.linspace(1, len(blocks) - 1, min(at_most, len(blocks) - 1))
        chosen = [0, *sorted({int(block) for block in chosen})]

    def is_same(block: int) -> bool:
        with path.open("rb") as file:  # a mapped file would count as memory in use
            file.seek(starts[block])
            return zlib.crc32(file.read(lengths[block])) == blocks[block][1]

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # checksums release the GIL
        if not all(pool.map(is_same, chosen)):
            raise Unusable(f"{path.name} is damaged")
