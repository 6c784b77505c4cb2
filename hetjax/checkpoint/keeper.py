"""A folder in which one run is kept: its checkpoints, and its history when it is over.

    runs/a/
      000011/  000012/    the last checkpoints; the run goes on from the newest
      finished/           the history and the models, once the run is over
      lock                held by the process that runs it

Cuts are copied to the host's memory while the run waits, and written by a thread while
it goes on. A checkpoint that cannot be written does not end the run, unless that is
asked for; those that were there stay.
"""

import re
import shutil
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np

from hetjax.checkpoint import files
from hetjax.checkpoint.copies import on_host
from hetjax.checkpoint.files import Damaged
from hetjax.checkpoint.values import Encoder, decode

EVERY = "60s"
ON_FAILURE = ("continue", "stop")
FINISHED, LOCK = "finished", "lock"
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a run is kept, for `train(checkpoint=...)`.

    `every` is a time ("60s", "10min", "1h") of the host, or a number of evaluations ("5
    evals"). The newest `keep` checkpoints are kept; each also holds the model of the
    best evaluation so far. If one cannot be written (the disk is full), the run goes on
    with a warning, or ends: on_failure="stop".

    >>> Checkpoint("runs/a", every="10min").interval
    (600.0, 0)
    """

    path: str | Path
    every: str = EVERY
    keep: int = 2
    on_failure: str = "continue"

    def __post_init__(self):
        _ = self.interval
        if not (isinstance(self.keep, int) and self.keep >= 1):
            raise ValueError(f"keep={self.keep!r}: give a whole number, at least 1")
        if self.on_failure not in ON_FAILURE:
            known = ", ".join(ON_FAILURE)
            raise ValueError(f"on_failure={self.on_failure!r}: choose one of {known}")

    @property
    def interval(self) -> tuple[float, int]:
        """Seconds and evaluations between two checkpoints; one of them is 0."""
        text = str(self.every)
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|min|h|evals?)\s*", text)
        number = float(found[1]) if found else 0.0
        if found and found[2] in _UNITS and number > 0:
            return number * _UNITS[found[2]], 0
        if found and found[2] not in _UNITS and number >= 1 and number == int(number):
            return 0.0, int(number)
        raise ValueError(
            f'every={self.every!r}: give a time, such as "60s", "10min" or "1h", or a '
            'number of evaluations, such as "5 evals"'
        )


class Found(NamedTuple):
    """What a folder holds of a run."""

    about: dict[str, Any]  # the settings with which it was made
    values: dict[str, Any]  # of the newest checkpoint that is not damaged, or the end
    number: int  # of that checkpoint
    finished: bool
    damaged: tuple[str, ...]  # why newer ones were passed over


class Keeper:
    """Keeps one run in a folder; a `hetjax.engine.cut.Saver`."""

    prefers_rest = True  # then replicas are equal, or there is no outcome to keep

    def __init__(self, checkpoint: Checkpoint, about: dict[str, Any]):
        """`about` is what the run is made from, as JSON data.

        Errors: BlockingIOError if another process has the folder, OSError if it cannot
        be written.
        """
        self._checkpoint, self._about = checkpoint, about
        self.folder = Path(checkpoint.path)
        self._seconds, self._evals = checkpoint.interval
        self._last: tuple[float, int] | None = None  # time and evaluations
        self._writer: threading.Thread | None = None
        self._failure = ""  # why a checkpoint could not be written
        self._replaced: list[str] = []  # of another run, until this one has something
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(self.folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise BlockingIOError(
                f"{self.folder} is being used by another process, which runs it: wait "
                "for it, or choose another folder"
            ) from None
        self._number = max([0, *_numbers(self.folder)]) + 1

    def is_due(self, evals: int) -> bool:
        """Was no cut made yet, or so long ago as was asked for?"""
        if self._last is None:
            return True
        seconds, before = self._last
        if self._evals:
            return evals - before >= self._evals
        return time.monotonic() - seconds >= self._seconds

    @property
    def problem(self) -> str:
        """Why the run must end: a checkpoint was not written; "" if it need not."""
        return self._failure if self._checkpoint.on_failure == "stop" else ""

    def goes_on(self, evals: int) -> None:
        """The run goes on from what is kept: the next cut is due after an interval."""
        self._last = time.monotonic(), evals

    def begin(self, evals: int, *, wait: bool) -> "Cut | None":
        """Begin a cut; None if the one before is still being written (or `wait`)."""
        if self._writer is not None:
            if self._writer.is_alive() and not wait:
                return None
            self.join()
        self._last = time.monotonic(), evals
        return Cut(self)

    def write(self, values: dict[str, Any], arrays: list[np.ndarray]) -> None:
        """Write a checkpoint in a thread."""
        folder = self.folder / f"{self._number:06}"
        self._number += 1

        def work() -> None:
            try:
                files.write(folder, {"about": self._about, "values": values}, arrays)
                self._prune()
            except Exception as error:  # a full disk, or orbax's own
                self._failure = _unwritten(folder, error)

        # no daemon: a process that exits waits for its last checkpoint
        self._writer = threading.Thread(target=work, name=f"hetjax {folder.name}")
        self._writer.start()

    def join(self) -> None:
        """Wait until the last checkpoint is written; warn if it could not be."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure and self._checkpoint.on_failure == "continue":
            warnings.warn(f"{self._failure}; the run is not ended by it", stacklevel=2)
            self._failure = ""

    def finish(self, values: dict[str, Any]) -> None:
        """Keep the end of the run, and delete its checkpoints.

        If the end cannot be written, that is a warning, and they stay.
        """
        self.join()
        encoder = Encoder()
        encoded = {k: encoder.encode(v, k) for k, v in values.items()}
        document = {"about": self._about, "values": encoded}
        shutil.rmtree(self.folder / FINISHED, ignore_errors=True)
        try:
            files.write(self.folder / FINISHED, document, on_host(encoder.arrays))
        except Exception as error:  # as for a checkpoint
            self._failure = _unwritten(self.folder / FINISHED, error)
            self.join()
            return
        for number in _numbers(self.folder):
            shutil.rmtree(self.folder / f"{number:06}", ignore_errors=True)

    def close(self) -> None:
        """Wait for the last checkpoint, and leave the folder to others."""
        try:
            self.join()
        finally:
            self._lock.release()

    def begin_anew(self) -> None:
        """Another run takes the place of what is there, with its first checkpoint."""
        self._replaced = [FINISHED, *(f"{n:06}" for n in _numbers(self.folder))]

    def _prune(self) -> None:
        for name in self._replaced:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self._replaced = []
        for number in _numbers(self.folder)[: -self._checkpoint.keep]:
            shutil.rmtree(self.folder / f"{number:06}", ignore_errors=True)


class Cut:
    """A cut that is being made: JSON data, and copies of all arrays on the host."""

    def __init__(self, keeper: Any):
        """`keeper.write(values, arrays)` is called with the complete cut."""
        self._keeper = keeper
        self._encoder = Encoder()
        self._values: dict[str, Any] = {}
        self._arrays: list[np.ndarray] = []

    def add(self, name: str, value: Any) -> None:
        """Encode a value, and copy its arrays."""
        encoder = self._encoder
        self._values[name] = encoder.encode(value, name)
        self._arrays += on_host(encoder.arrays[len(self._arrays) :], self._arrays)

    def commit(self) -> None:
        """Write it, in a thread."""
        self._keeper.write(self._values, self._arrays)


def find(folder: Path, *, about_alone: bool = False) -> Found | None:
    """Return what a folder holds of a run; None if it holds nothing.

    The newest checkpoint that is not damaged is taken. `about_alone`: its arrays are
    not read, and there are no `values`. Errors: Damaged, with the reasons, if all are.
    """
    damaged: list[str] = []
    places = [folder / f"{n:06}" for n in reversed(_numbers(folder))]
    if (folder / FINISHED).exists():
        places.insert(0, folder / FINISHED)
    for place in places:
        try:
            document, arrays = files.read(place, document_alone=about_alone)
            encoded = {} if about_alone else document["values"]
            values = {k: decode(v, arrays) for k, v in encoded.items()}
            about = document["about"]
        except Damaged as error:
            damaged.append(str(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            damaged.append(f"{place}: {_named(error)}{error}")
        else:
            finished = place.name == FINISHED
            number = 0 if finished else int(place.name)
            return Found(about, values, number, finished, tuple(damaged))
    if damaged:
        raise Damaged(
            f"{folder}: no checkpoint can be used: {'; '.join(damaged)}; begin anew "
            'with resume="never", or choose another folder'
        )
    return None


def holds_run(folder: Path) -> bool:
    """Is this the folder of a run?"""
    return (folder / FINISHED).exists() or bool(_numbers(folder))


def _numbers(folder: Path) -> list[int]:
    """The numbers of all checkpoints, rising."""
    if not folder.is_dir():
        return []
    names = [p.name for p in folder.iterdir() if re.fullmatch(r"\d{6,}", p.name)]
    return sorted(map(int, names))


def _unwritten(folder: Path, error: Exception) -> str:
    why = next(iter(str(error).splitlines()), "")
    return f"{folder} could not be written: {_named(error)}{why}"


def _named(error: Exception) -> str:
    """The kind of an error, where its message alone does not tell it."""
    return "" if type(error) in (OSError, ValueError) else f"{type(error).__name__}: "
