"""Arrays that may exceed the memory: written once by a first pass, then mapped.

    NAME-0123456789abcdef/      for the folder that is read and the options
      about.json                a fingerprint of the sources, and CRC-32 of all blocks
      4f3a.../                  arrays, under a new name whenever they are written
      .lock                     of who writes

A copy is used if the paths, sizes and times of all sources are as when it was made. Its
bytes are compared with their CRC-32 before it is used: damage costs time, and never
changes a result. Above `WHOLE` bytes that would take too long, and only evenly spaced
blocks are compared, unless `verify` says otherwise. The description is written last, so
a pass that is interrupted leaves no copy, and its files are removed by the next one.
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
BLOCK = 1 << 22  # [bytes] with one checksum, and written at a time
WHOLE = 4_000_000_000  # [bytes] of a copy of which every block is compared
SAMPLED = 64  # blocks of an array that are compared in a larger copy


class Copy(NamedTuple):
    """What a first pass has written."""

    folder: Path
    arrays: dict[str, np.ndarray]  # by name, mapped and read-only


class MappedWriter:
    """Writes the files of a copy, and keeps the checksums of their blocks."""

    def __init__(self, folder: Path):
        """`folder` is empty, and nobody else writes into it."""
        self.folder = folder
        self.files: dict[str, list[list[int]]] = {}  # [bytes] and CRC-32 of blocks

    def array(
        self, name: str, shape: tuple[int, ...], dtype: Any, parts: Iterable[np.ndarray]
    ) -> None:
        """Write an array as NAME.npy, of which `parts` are the rows, in order."""
        kind = np.lib.format.dtype_to_descr(np.dtype(dtype))
        described = {"descr": kind, "fortran_order": False, "shape": shape}
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, described)
        rows = (np.ascontiguousarray(part, dtype).data.cast("B") for part in parts)
        self.file(f"{name}.npy", chain([header.getvalue()], rows))

    def file(self, name: str, parts: Iterable[Any]) -> None:
        """Write a file of bytes, each part of which has a checksum.

        They are written and not mapped: a full disk is then an OSError, and not a
        signal that ends the process.
        """
        blocks = []
        with (self.folder / name).open("xb") as file:
            for part in parts:
                file.write(part)
                blocks.append([len(part), zlib.crc32(part)])
            file.flush()
            os.fsync(file.fileno())  # before a description says that it is there
        self.files[name] = blocks


class FirstPass(NamedTuple):
    """How a copy is made."""

    sources: Callable[[], str]  # the fingerprint of all files that are read
    write: Callable[[MappedWriter], None]
    needed: Callable[[], int]  # [bytes] of the copy, about; asked if it is written


def copy_folder(root: Path, options: Any, cache: str | PathLike | None) -> Path:
    """The folder for the copy of what is read from `root` with these options.

    The options are JSON data, the first of which says who reads.
    """
    if not (cache is None or isinstance(cache, str | PathLike)) or cache == "":
        raise ValueError(
            f"cache={cache!r}: give a folder, or None for the user's cache folder"
        )
    folder = cache_folder() / "read" if cache is None else Path(cache)
    root = root.resolve()
    key = json.dumps([str(root), options, VERSION])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return folder.expanduser() / f"{shortened(root.name)}-{digest}"


def fingerprint(root: Path, paths: Iterable[Path]) -> str:
    """Changes with the name, size or time of any of these files, and their order."""
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
    """The copy in this place, which is first written if there is none.

    Of several processes one writes it, and the others wait. `verify` True compares all
    blocks, False only the sizes of files, and None decides by the size. A `DataError`
    says why nothing can be written.
    """
    with contextlib.suppress(OSError, Unusable):  # see below
        copy = _opened(place, first_pass.sources(), verify)
        if copy is not None:
            return copy
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _locked(place):
            return _open_or_write(place, first_pass, verify)
    except (OSError, NotImplementedError) as error:  # a file system without locks
        raise DataError(
            f"{place}: no copy can be kept there ({error}); make room, or give another "
            "folder as cache=..."
        ) from error


def _locked(place: Path) -> filelock.AcquireReturnProxy:
    """The lock, which a `with` releases.

    There is no longest wait, since a first pass may take hours.
    """
    lock = filelock.FileLock(place / LOCK)
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        why = "another process is making this copy, and this one waits for it"
        warnings.warn(f"{place}: {why}", stacklevel=6)
        return lock.acquire()


def _open_or_write(place: Path, first_pass: FirstPass, verify: bool | None) -> Copy:
    """The copy, while nobody else writes one."""
    sources = first_pass.sources()
    try:
        copy = _opened(place, sources, verify)
        if copy is not None:
            return copy
    except Unusable as error:
        warnings.warn(f"{place}: {error}; all is read again", stacklevel=6)
    _clear(place)
    _write(place, first_pass, sources)
    try:
        copy = _opened(place, sources, verify)
    except Unusable as error:
        raise DataError(
            f"{place}: {error}, though it was just written; is the disk sound? give "
            "a folder on another one as cache=..."
        ) from error
    assert copy is not None
    return copy


def _clear(place: Path) -> None:
    """Remove copies of other sources, and what a killed process has left."""
    for entry in place.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name.startswith(f"{ABOUT}."):
            entry.unlink(missing_ok=True)


def _write(place: Path, first_pass: FirstPass, sources: str) -> None:
    """Write the copy, of sources that do not change meanwhile."""
    folder = place / uuid.uuid4().hex
    folder.mkdir()
    try:
        free, needed = shutil.disk_usage(folder).free, first_pass.needed()
        if free < needed:  # said before hours of work, not after them
            raise OSError(
                f"it needs {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free"
            )
        writer = MappedWriter(folder)
        first_pass.write(writer)
        if first_pass.sources() != sources:
            raise DataError(
                f"{place}: the files changed while they were read; start again"
            )
        about = {"sources": sources, "folder": folder.name, "files": writer.files}
        write_about(place, about)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _opened(place: Path, sources: str, verify: bool | None) -> Copy | None:
    """The copy, if there is one of these sources; `Unusable` if it is damaged."""
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
    """Raises `Unusable` unless the file is as it was written.

    Its first block, which is an array's header, is always compared, and `at_most` of
    the others; None for all.
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
