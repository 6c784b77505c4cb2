"""One checkpoint is one folder: arrays, everything else as JSON, and checksums.

    000012/
      arrays/         NumPy's files; in the folder of a model, orbax's
      state.json      a JSON document, and the place in `arrays` of each of its arrays
      manifest.json   size and CRC-32 of every other file

A folder is written under another name, and renamed once everything in it is on the
disk: a process that is killed leaves no folder that looks complete. Files are compared
with the manifest before they are read, so that damage is an error, never a different
result.
"""

import json
import mmap
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetjax.checkpoint import array_files
from hetjax.checkpoint.array_files import NUMPY, ORBAX
from hetjax.checkpointable import shortened

FILE_VERSION = 1  # of the format of these files
STATE, MANIFEST, ARRAYS = "state.json", "manifest.json", "arrays"


class Damaged(ValueError):
    """A checkpoint that cannot be used; the message states the file and the reason."""


def write(
    folder: Path,
    document: Any,
    arrays: Sequence[np.ndarray],
    names: Sequence[str] | None = None,
) -> None:
    """Write a checkpoint to a folder that does not exist yet.

    With `names`, orbax stores each array under its own name, for other programs.

    Errors: OSError if the disk is full or cannot be written; then nothing is left.
    """
    partial = partial_path(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        if names is None:
            packed, places = array_files.pack(arrays)
            sums = array_files.save(partial / ARRAYS, packed)
        else:
            packed, places = array_files.named(arrays, names)
            if packed:
                array_files.save_by_orbax(partial / ARRAYS, packed)
            sums = {}
        by = NUMPY if names is None else ORBAX
        about = {"version": FILE_VERSION, "by": by, "arrays": places}
        _write_text(partial / STATE, json.dumps({**about, "document": document}))
        known = {partial / ARRAYS / name: found for name, found in sums.items()}
        manifest = {}
        for file in _files(partial):
            name = str(file.relative_to(partial))
            manifest[name] = manifest_entry(file, known.get(file))
        _write_text(partial / MANIFEST, json.dumps(manifest, indent=1))
        os.rename(partial, folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def partial_path(folder: Path) -> Path:
    """Return the folder to which a checkpoint is written until it is complete."""
    return folder.with_name(f".{shortened(folder.name)}.partial")


def read(folder: Path, *, document_alone: bool = False) -> tuple[Any, list[np.ndarray]]:
    """Return the document and the arrays of a checkpoint, or the `document_alone`.

    Errors: Damaged if a file that is read is not as it was written.
    """
    _check(folder, document_alone)
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        version, places, by = state["version"], state["arrays"], state["by"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{folder / STATE}: {error}") from error
    if version != FILE_VERSION:
        raise Damaged(
            f"{folder / STATE} has version {version}, but this hetjax reads version "
            f"{FILE_VERSION}: use the hetjax that wrote it"
        )
    if document_alone:
        return state["document"], []
    try:
        return state["document"], array_files.load(folder / ARRAYS, places, by)
    except Exception as error:  # those of orbax have no common type
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Damaged(f"{folder / ARRAYS}: {why}") from error


def _check(folder: Path, document_alone: bool) -> None:
    """Compare all files with the manifest, or the document alone."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = {name: (size, digest) for name, (size, digest) in manifest.items()}
    except FileNotFoundError:
        raise Damaged(f"{folder / MANIFEST}: missing") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder / MANIFEST}: {error}") from error
    found = {str(f.relative_to(folder)): f for f in _files(folder)}
    found.pop(MANIFEST, None)
    for name in [*expected, *found]:
        if name not in found:
            raise Damaged(f"{folder / name}: missing")
        if name not in expected:
            raise Damaged(f"{folder / name}: not in the manifest")
    for name, (size, digest) in expected.items():
        if document_alone and name != STATE:
            continue
        try:
            if found[name].stat().st_size != size:
                raise Damaged(
                    f"{folder / name}: {found[name].stat().st_size} bytes, not {size}"
                )
            if manifest_entry(found[name]) != [size, digest]:
                raise Damaged(f"{folder / name}: the checksum differs")
        except OSError as error:
            raise Damaged(f"{folder / name}: {error.strerror}") from error


# -- files -----------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if not p.is_dir() or p.is_symlink())


def manifest_entry(file: Path, known: tuple[int, int] | None = None) -> list[Any]:
    """Return a file's entry in the manifest: size, and CRC-32 as text."""
    size, crc = known or (file.stat().st_size, _checksum(file))
    return [size, f"{crc:08x}"]


def _checksum(file: Path) -> int:
    """CRC-32, which is four times as fast as SHA-256."""
    if not file.stat().st_size:  # an empty file cannot be mapped into memory
        return 0
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return zlib.crc32(content)


def _write_text(file: Path, text: str) -> None:
    with file.open("w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def _sync(folder: Path) -> None:
    """Make a rename in the folder survive a crash of the machine."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
