"""A cache of parsed texts: later calls map NumPy's files into memory.

    NAME-0123456789abcdef/      one per pair of files and first index
      about.json                the sources, and CRC-32 of all arrays
      4f3a.../                  the arrays, under a new name whenever they are written
      .lock                     held by the process that writes

A copy is used if the sizes and times of both files have not changed since. If only the
times differ, or a file had just been written, the SHA-256 of the files decides. All
bytes of a copy are compared with their CRC-32 first (a fifth of a second for a text of
1 GB): damage costs time, and never changes a result. If the copy cannot be written, the
data are returned without one.
"""

import contextlib
import hashlib
import json
import shutil
import time
import uuid
import warnings
import zlib
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import scipy.sparse as sp

from hetjax.cache import cache_folder
from hetjax.checkpointable import shortened
from hetjax.data.dataset import Dataset, Split
from hetjax.data.readers import text_files
from hetjax.data.readers.about_file import (
    ABOUT,
    LOCK,
    LONGEST_WAIT,
    Unusable,
    write_about,
)
from hetjax.data.readers.about_file import read_about as _about

VERSION = 1  # of these files, and of the results of the reader
RESOLUTION = 2.0  # [s] of the times of files, where it is worst
_BLOCK = 1 << 20  # [bytes]
_PARTS = ("data", "indices", "indptr")


def copy_folder(
    paths: Sequence[Path], first_index: int, cache: bool | str | PathLike | None
) -> Path | None:
    """The folder for the copy of these files; None for no copy."""
    if not (cache is None or isinstance(cache, bool | str | PathLike)) or cache == "":
        raise ValueError(
            f"cache={cache!r}: pass a folder, True, False, or None for large files only"
        )
    if cache is False:
        return None
    try:
        size = sum(path.stat().st_size for path in paths)
    except OSError:
        return None  # the reader reports the error
    if cache is None and size < text_files.LARGE:
        return None
    folder = cache_folder() / "read"
    if isinstance(cache, str | PathLike):
        folder = Path(cache)
    files_at = [str(path.resolve()) for path in paths]
    key = json.dumps([*files_at, int(first_index), VERSION])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return folder.expanduser() / f"{shortened(paths[0].resolve().parent.name)}-{digest}"


def load_or_read(
    place: Path, paths: Sequence[Path], read: Callable[[], Dataset]
) -> Dataset:
    """The copy in the folder `place`, or else the result of `read`, copied to it.

    One of several processes reads, and the others wait for its copy.
    """
    with contextlib.suppress(OSError, Unusable):  # reported below, with the lock held
        data = _opened(place, paths, [_source(path) for path in paths])
        if data is not None:
            return data
    data = None
    try:
        place.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(place / LOCK, timeout=LONGEST_WAIT):
            sources = [_source(path) for path in paths]
            try:
                data = _opened(place, paths, sources)
            except Unusable as error:
                warnings.warn(f"{place}: {error}; the text is read again", stacklevel=4)
            if data is None:
                data = read()
                _write(place, paths, sources, data)
    except (OSError, NotImplementedError) as error:  # a file system without locks
        why = f"no parsed copy can be written ({error}); cache=False asks for none"
        warnings.warn(f"{place}: {why}", stacklevel=4)
    return read() if data is None else data


def _source(path: Path) -> dict[str, Any]:
    """Path, size and times of a file, which show a change without reading it."""
    found = path.stat()
    # programs can restore the first time after a change, but not the second one
    times = [found.st_mtime_ns, found.st_ctime_ns]
    return {"path": str(path.resolve()), "size": found.st_size, "times": times}


def _known(source: dict[str, Any], sha256: str) -> dict[str, Any]:
    """The record of a file: no times if it might still change without new ones."""
    settled = max(source["times"]) < time.time_ns() - 1e9 * RESOLUTION
    return {**source, "times": source["times"] if settled else None, "sha256": sha256}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size_and_crc(path: Path) -> list[int]:
    """Size and CRC-32, which is twice as fast as SHA-256."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):  # a mapped file would count as memory in use
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]


def _opened(
    place: Path, paths: Sequence[Path], sources: list[dict[str, Any]]
) -> Dataset | None:
    """The copy of these sources, None if there is none."""
    about = _about(place)
    if about is None:
        return None
    known = about["sources"]
    if [s["size"] for s in known] != [s["size"] for s in sources]:
        return None
    if [s["times"] for s in known] != [s["times"] for s in sources]:
        if [s["sha256"] for s in known] != [_sha256(path) for path in paths]:
            return None
        about["sources"] = [
            _known(new, old["sha256"]) for old, new in zip(known, sources, strict=True)
        ]
        _renew(place, about)
    return _mapped(place / about["folder"], about)


def _renew(place: Path, about: dict[str, Any]) -> None:
    """Record the files' new times, unless another process writes or has written a copy.

    Otherwise the next call compares the files again.
    """
    with (
        contextlib.suppress(OSError, Unusable),
        filelock.FileLock(place / LOCK, timeout=0),
    ):
        now = _about(place)
        if now is not None and now["folder"] == about["folder"]:
            write_about(place, about)


def _mapped(folder: Path, about: dict[str, Any]) -> Dataset:
    """The data set whose arrays are in these files."""
    for name, entry in about["files"].items():
        try:
            found = _size_and_crc(folder / name)
        except OSError as error:
            raise Unusable(f"{name} cannot be read ({error})") from error
        if found != entry:
            raise Unusable(f"{name} is damaged")
    splits = []
    for split in ("train", "test"):
        matrices = []
        for axis in ("x", "y"):
            # copy-on-write: writing into an array does not change the file
            parts = [
                np.load(folder / f"{split}_{axis}_{part}.npy", mmap_mode="c")
                for part in _PARTS
            ]
            columns = about["features" if axis == "x" else "labels"]
            matrices.append(_matrix(parts, columns))
        splits.append(Split(*matrices))
    return Dataset(
        train=splits[0],
        test=splits[1],
        num_classes=about["labels"],
        notes=tuple(about["notes"]),
    )


def _matrix(parts: list[np.ndarray], columns: int) -> sp.csr_array:
    """The matrix of the three arrays, without copying them."""
    matrix = sp.csr_array(tuple(parts), shape=(len(parts[2]) - 1, columns))
    matrix.has_canonical_format = True  # otherwise scipy reads everything to check
    return matrix


def _write(
    place: Path, paths: Sequence[Path], sources: list[dict[str, Any]], data: Dataset
) -> None:
    """Write the copy, unless the sources have changed since `sources` was recorded."""
    checksums = [_sha256(path) for path in paths]
    if [_source(path) for path in paths] != sources:
        return
    folder = place / uuid.uuid4().hex
    folder.mkdir()
    try:
        for name, array in _arrays(data):
            np.save(folder / name, array)
        about = {
            "sources": [
                _known(source, checksum)
                for source, checksum in zip(sources, checksums, strict=True)
            ],
            "features": data.num_features,
            "labels": data.num_classes,
            "notes": data.notes,
            "folder": folder.name,
            "files": {file.name: _size_and_crc(file) for file in folder.iterdir()},
        }
        write_about(place, about)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for other in place.iterdir():  # older copies, and files left by killed processes
        if other.is_dir() and other != folder:
            shutil.rmtree(other, ignore_errors=True)
        elif other.name.startswith(f"{ABOUT}."):
            other.unlink(missing_ok=True)


def _arrays(data: Dataset) -> list[tuple[str, np.ndarray]]:
    return [
        (f"{split}_{axis}_{part}.npy", getattr(getattr(of_split, axis), part))
        for split, of_split in (("train", data.train), ("test", data.test))
        for axis in ("x", "y")
        for part in _PARTS
    ]
