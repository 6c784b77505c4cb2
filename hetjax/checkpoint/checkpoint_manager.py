"""The keeper of one run: makes cuts when they are due, and writes them to its folder.

Cuts are copied to the host's memory while the run waits, and written by a thread while
it goes on. A checkpoint that cannot be written does not end the run, unless that is
asked for; those that were there stay.
"""

import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from hetjax.checkpoint import checkpoint_files
from hetjax.checkpoint.checkpoint_folder import (
    LOCK,
    VERSION,
    Gather,
    alone,
    delete,
    kind_of,
    numbers_in,
    place,
)
from hetjax.checkpoint.host_copies import Copies
from hetjax.checkpoint.settings import Checkpoint
from hetjax.checkpoint.values import Encoder, decode
from hetjax.checkpointable import before_of


class CheckpointManager:
    """Keeps one run in a folder."""

    prefers_rest = True  # then replicas are equal, or there is no outcome to keep

    def __init__(
        self, checkpoint: Checkpoint, about: dict[str, Any], gather: Gather = alone
    ):
        """`about` is what the run is made from, as JSON data.

        With other processes (`gather`), all have to call the same methods together.
        Errors: BlockingIOError if another process has the folder, OSError if it cannot
        be written.
        """
        self._checkpoint, self._about = checkpoint, about
        self._gather, self._is_alone = gather, gather is alone
        self._needed: int | None = None  # the newest that all processes have
        self.folder = checkpoint.folder
        self._seconds, self._evals = checkpoint.interval
        self._last: tuple[float, int] | None = None  # time and evaluations
        self._writer: threading.Thread | None = None
        self._copies = Copies()  # that it writes: their memory is used again
        self._failure = ""  # why a checkpoint was not written, until that is told
        self.problem = self._own_problem = ""  # why the run must end: of all, of this
        self._replaced: list[Path] = []  # by the next checkpoint, whatever `keep` says
        self._tried = False  # whether what was encoded can be decoded
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(self.folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise BlockingIOError(
                f"{self.folder} is being used by another process, which runs it: wait "
                "for it, or choose another folder"
            ) from None
        highest = max([0, *numbers_in(self.folder, of_runs=False)])
        self._number = self._first = max(gather("the last checkpoint", highest)) + 1

    def is_due(self, evals: int) -> bool:
        """Was no cut made yet, or so long ago as was asked for?"""
        if self._last is None:
            return True
        seconds, before = self._last
        if self._evals:
            return evals - before >= self._evals
        return time.monotonic() - seconds >= self._seconds

    def goes_on(self, number: int, evals: int, *others: str) -> None:
        """The run goes on from a checkpoint: the next cut is due after an interval.

        Those with higher numbers are damaged. `others` are names of files that go with
        the checkpoints: where one was replaced and no checkpoint written since, it is
        there again.
        """
        self._last = time.monotonic(), evals
        self._replaced = [self._place(n) for n in numbers_in(self.folder) if n > number]
        for path in (self.folder / name for name in others):
            if before_of(path).exists():
                os.replace(before_of(path), path)
            self._replaced.append(before_of(path))

    def begin_anew(self, *others: str) -> None:
        """Another run takes the place of what is there, with its first checkpoint.

        `others` are names of files that go with the checkpoints.
        """
        numbers = numbers_in(self.folder)
        for path in (self.folder / name for name in others):
            if path.exists():
                os.replace(path, before_of(path))
            if numbers:  # else it is not of a run that was kept here
                self._replaced.append(before_of(path))
        self._replaced += map(self._place, numbers)

    def all_agree(self, fact: bool) -> bool:
        """Is it so in all processes?"""
        return all(self._gather("agree", fact))

    def _place(self, number: int) -> Path:
        return place(self.folder, number)

    def begin(self, evals: int, *, wait: bool) -> "Snapshot | None":
        """Begin a cut; None if the one before is still being written (or `wait`).

        Several processes always wait: all have to make the same cuts.
        """
        if self._writer is not None:
            if self._writer.is_alive() and not wait and self._is_alone:
                return None
            self.join()
        if not self._is_alone:
            self._compare()
        self._last = time.monotonic(), evals
        self._copies = Copies(self._copies.memory)
        return Snapshot(self, self._copies)

    def _compare(self) -> None:
        """Learn which checkpoints the other processes have, and if one must end."""
        own = {"numbers": numbers_in(self.folder), "problem": self._own_problem}
        everyone = self._gather("checkpoints", own)
        common = set.intersection(*(set(each["numbers"]) for each in everyone))
        self._needed = max(common, default=0)
        self.problem = next((p["problem"] for p in everyone if p["problem"]), "")

    def write(self, values: dict[str, Any], arrays: list[np.ndarray]) -> None:
        """Write a checkpoint in a thread; a ValueError if it could not be read."""
        if not self._tried:  # at the beginning of a run, not when it is to go on
            for name, value in values.items():
                _check_decodes(name, value, arrays)
            self._tried = True

        def work() -> None:
            if self._write(values, arrays):
                self._delete_old(self._checkpoint.keep)

        # no daemon: a process that exits waits for its last checkpoint
        self._writer = threading.Thread(target=work, name=f"hetjax {self.folder.name}")
        self._writer.start()

    def _write(
        self,
        values: dict[str, Any],
        arrays: list[np.ndarray],
        *,
        finished: bool = False,
    ) -> bool:
        """Write the next checkpoint, or note why not; was it written?"""
        folder = self._place(self._number)
        self._number += 1
        document = {
            "version": VERSION,
            "about": self._about,
            "finished": finished,
            "values": values,
        }
        try:
            checkpoint_files.write(folder, document, arrays)
        except Exception as error:  # a full disk, usually
            self._fail(folder, error)
            return False
        return True

    def _fail(self, folder: Path, error: Exception) -> None:
        """Note why a checkpoint is not there."""
        why = next(iter(str(error).splitlines()), "")
        self._failure = f"{folder} could not be written: {kind_of(error)}{why}"
        if self._checkpoint.on_failure == "stop":
            self._own_problem = self._failure
        if self._is_alone:  # else all end together
            self.problem = self._own_problem

    def _delete_old(self, keep: int) -> None:
        """Delete all checkpoints but the newest, and those that another one needs."""
        needed = self._needed
        if needed is None or needed >= self._first:
            for path in self._replaced:
                delete(path)
            self._replaced = []
        for number in numbers_in(self.folder)[:-keep]:
            if needed is None or number < needed:
                delete(self._place(number))

    def join(self) -> None:
        """Wait until the last checkpoint is written; warn if it could not be."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure:
            what = "the run ends" if self._own_problem else "the run is not ended by it"
            warnings.warn(f"{self._failure}; {what}", stacklevel=2)
            self._failure = ""

    def finish(self, values: dict[str, Any]) -> None:
        """Keep the end of the run, and delete its checkpoints.

        If the end cannot be written, that is a warning, and they stay.
        """
        self.join()
        encoder, copies, encoded = Encoder(), Copies(self._copies.memory), None
        try:
            encoded = {k: encoder.encode(v, k) for k, v in values.items()}
            copies.add(encoder.arrays)
        except ValueError as error:
            self._fail(self._place(self._number), error)
        written = encoded is not None and self._write(
            encoded, copies.arrays, finished=True
        )
        if not self._is_alone:
            self._compare()
        if written:
            self._delete_old(1)

    def close(self) -> None:
        """Wait for the last checkpoint, and leave the folder to others."""
        try:
            self.join()
        finally:
            self._lock.release()


class Snapshot:
    """A cut that is being made: JSON data, and copies of all arrays on the host."""

    def __init__(self, keeper: Any, copies: Copies):
        """`keeper.write(values, arrays)` is called with the complete cut."""
        self._keeper, self._copies = keeper, copies
        self._encoder = Encoder()
        self._values: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        """Encode a value, and copy its arrays."""
        encoder = self._encoder
        self._values[name] = encoder.encode(value, name)
        self._copies.add(encoder.arrays[len(self._copies.arrays) :])

    def commit(self) -> None:
        """Write it, in a thread."""
        self._keeper.write(self._values, self._copies.arrays)


def _check_decodes(name: str, value: Any, arrays: list[np.ndarray]) -> None:
    """A ValueError for what was encoded, but could not be taken up again."""
    try:
        decode(value, arrays)
    except Exception as error:
        raise ValueError(
            f"{name} could not be read from a checkpoint: {kind_of(error)}{error}"
        ) from error
