"""The checkpoints in a run's folder, and the one from which the run continues.

    runs/a/
      checkpoint-000011.npz   the last checkpoints; the run continues from the newest
      checkpoint-000012.npz   or, alone: the history and the models of a finished run
      lock                    held by the process that runs it

A checkpoint is a JSON document and arrays in NumPy's format, which has a checksum of
each. It is written under another name, and renamed once it is on the disk. Numbers only
rise, so that the newest file is always the valid one, wherever a process was killed.

In a run of several processes, each has a folder of its own, with its own devices'
replicas. All take snapshots at the same moments, under the same numbers; the run
continues from the newest number that all of them have.
"""

import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from errno import EIO, ENOENT
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hetjax.atomic_files import write_whole
from hetjax.checkpoint.values import decode
from hetjax.recipes import NoRecipe

Gather = Callable[[str, Any], list[Any]]
"""gather(name, value) -> the values of all processes, as JSON returns them."""
LOCK = "lock"
_AT_ONCE = 1 << 26  # [bytes] that wait for the disk
VERSION = 5  # of the state and the settings of a run


class Damaged(ValueError):
    """A file that cannot be used; the message states its name and the reason."""


class FoundCheckpoint(NamedTuple):
    """The newest checkpoint in a folder that is not damaged."""

    about: dict[str, Any]  # the settings of the run
    values: dict[str, Any]  # its state, or that of its end
    number: int
    finished: bool
    damaged: tuple[str, ...]  # why newer checkpoints were skipped


def gather_alone(name: str, value: Any) -> list[Any]:
    """The `Gather` of a single process."""
    return [value]


class _PassingCache(io.BufferedWriter):
    """A file that does not fill the system's cache, which costs more than writing.

    On a virtual machine, fresh pages for 1.6 GB took 3 s of a processor.
    """

    _waiting = 0  # bytes that are not on the disk

    def write(self, data: Any) -> int:
        """Write bytes, and now and then bring them to the disk."""
        written = super().write(data)
        self._waiting += written
        if self._waiting >= _AT_ONCE:
            self.to_disk()
        return written

    def to_disk(self) -> None:
        """Wait until everything is on the disk, and let the cache forget it."""
        self.flush()
        os.fsync(self.fileno())
        if hasattr(os, "posix_fadvise"):  # on Linux
            os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._waiting = 0


def checkpoint_path(folder: Path, number: int) -> Path:
    """Return the file of the checkpoint with this number."""
    return folder / f"checkpoint-{number:06}.npz"


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers of all checkpoints in a folder, rising."""
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    found = [re.fullmatch(r"checkpoint-(\d{6,})\.npz", name) for name in names]
    return sorted(int(match[1]) for match in found if match)


def holds_run(folder: Path) -> bool:
    """Whether this is the folder of a run, also of one that cannot be read here."""
    return bool(numbers_in(folder)) or _is_old(folder)


def write(path: Path, document: Any, arrays: Sequence[np.ndarray]) -> None:
    """Write a checkpoint.

    Errors: OSError if the disk is full or cannot be written; then nothing is left.
    """
    about = {"dtypes": [str(x.dtype) for x in arrays], "document": document}
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)

    def save(partial: Path) -> None:
        with _PassingCache(io.FileIO(partial, "wb")) as file:
            np.savez(file, text, *arrays)
            file.to_disk()

    write_whole(path, save)
    number = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(number)  # the rename survives a crash of the machine
    finally:
        os.close(number)


def read(path: Path, *, document_alone: bool = False) -> tuple[Any, list[np.ndarray]]:
    """Return the document and the arrays of a checkpoint, or the `document_alone`.

    Errors: Damaged if something that is read is not as it was written.
    """
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it was cut off, or is no checkpoint")
        with np.load(path) as file:
            about = json.loads(file["arr_0"].tobytes())
            # NumPy has no bfloat16
            dtypes = () if document_alone else enumerate(about["dtypes"], 1)
            arrays = [file[f"arr_{i}"].view(np.dtype(dtype)) for i, dtype in dtypes]
        return about["document"], arrays
    except MemoryError:
        raise
    except Exception as error:  # zipfile's, NumPy's and JSON's have no common type
        if isinstance(error, OSError) and error.errno not in (None, EIO, ENOENT):
            raise  # such as too many open files: it can be read later
        raise Damaged(f"{path}: {first_line(error)}") from error


def find(
    folder: Path,
    gather: Gather = gather_alone,
    *,
    about_alone: bool = False,
    any_version: bool = False,
) -> FoundCheckpoint | None:
    """Return the newest checkpoint in a folder that is not damaged; None without any.

    Of several processes, it is damaged in none. `about_alone`: do not read arrays, and
    return no `values`. `any_version`: also a finished run of another version, to which
    no other run can be compared. Errors: Damaged, with the reasons, if all checkpoints
    are, or if the processes have none in common; ValueError for an older format.
    """
    if _is_old(folder) and not numbers_in(folder):
        raise ValueError(
            f"{folder} holds checkpoints of an older hetjax, in a format that this one "
            "does not read: use the hetjax that wrote them, or begin anew with "
            'resume="never" (in scripts --overwrite) or in another folder'
        )
    everyone = gather("found checkpoints", numbers_in(folder))
    damaged: list[str] = []
    for number in sorted(set.intersection(*map(set, everyone)), reverse=True):
        found = _read(checkpoint_path(folder, number), number, about_alone, any_version)
        problems = [found] if isinstance(found, str) else []
        problems = sum(gather("damage", problems), [])
        if not problems and isinstance(found, FoundCheckpoint):
            return found._replace(damaged=tuple(damaged))
        damaged += problems
    if not any(everyone):
        return None
    why = "; ".join(damaged) or "the processes have none in common"
    raise Damaged(
        f"{folder} has no usable checkpoint: {why}; start over with "
        'resume="never", or choose another folder'
    )


def _read(
    path: Path, number: int, about_alone: bool, any_version: bool
) -> FoundCheckpoint | str:
    """Return a checkpoint, or why it cannot be used."""
    try:
        document, arrays = read(path, document_alone=about_alone)
        version, finished = document["version"], document["finished"]
        if version != VERSION and not (any_version and finished):
            return (
                f"{path} has version {version}, but this hetjax continues runs of "
                f"version {VERSION}: use the hetjax that wrote it"
            )
        encoded = {} if about_alone else document["values"]
        values = {k: decode(v, arrays) for k, v in encoded.items()}
        return FoundCheckpoint(document["about"], values, number, finished, ())
    except Damaged as error:
        return str(error)
    except NoRecipe as error:
        raise ValueError(
            f"{path} was written by a program that defines a name which this one does "
            f"not: {error}; use that program, or define the name in a module of both"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return f"{path}: {first_line(error)}"


def _is_old(folder: Path) -> bool:
    """Whether a folder has checkpoints as before version 4, which were folders."""
    return any(folder.glob("[0-9]*/manifest.json"))


def first_line(error: Exception) -> str:
    """Return an error's first line, with its type if that does not tell it."""
    plain = type(error) in (OSError, ValueError)
    line = next(iter(str(error).splitlines()), "")[:300]
    return line if plain else f"{type(error).__name__}: {line}"
