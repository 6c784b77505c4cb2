"""The checkpoint manager of one run: takes due snapshots, and writes them to a folder.

A snapshot is copied to the host's memory while the run waits. A thread writes it while
the run continues. A checkpoint that cannot be written does not end the run, unless the
user asks for that; earlier checkpoints stay.
"""

import os
import threading
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import filelock
import jax
import numpy as np

from hetjax.checkpoint import checkpoint_files
from hetjax.checkpoint.checkpoint_files import (
    LOCK,
    VERSION,
    Gather,
    checkpoint_path,
    first_line,
    gather_alone,
    numbers_in,
)
from hetjax.checkpoint.settings import Checkpoint
from hetjax.checkpoint.values import Encoder, decode
from hetjax.checkpointable import backup_path

Memory = dict[Any, list[np.ndarray]]  # arrays of earlier copies, by shape and dtype


class CheckpointManager:
    """Writes the checkpoints of one run to a folder."""

    prefers_rest = True  # then replicas are equal, or there is no result to save

    def __init__(
        self,
        checkpoint: Checkpoint,
        about: dict[str, Any],
        gather: Gather = gather_alone,
    ):
        """`about` describes the run's settings, as JSON data.

        With other processes (`gather`), all have to call the same methods together.
        Errors: BlockingIOError if another process uses the folder, OSError if it cannot
        be written.
        """
        self._checkpoint, self._about = checkpoint, about
        self._gather, self._is_alone = gather, gather is gather_alone
        self._needed: int | None = None  # the newest checkpoint of all processes
        self.folder = checkpoint.folder
        self._seconds, self._evals = checkpoint.interval
        self._last: tuple[float, int] | None = None  # time and evals of a snapshot
        self._writer: threading.Thread | None = None
        self._failure = ""  # why a checkpoint was not written, until it is reported
        self.problem = ""  # why the run must end, in all processes
        self._own_problem = ""  # why it must end, in this process
        self._replaced: list[Path] = []  # by the next checkpoint, whatever `keep` is
        self._tried = False  # whether decoding the values was tried
        # of the last snapshot, for the next one: fresh memory takes longer than copies
        self._memory: Memory = defaultdict(list)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(self.folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise BlockingIOError(
                f"{self.folder} is in use by another process, which runs it: wait for "
                "that process, or choose another folder"
            ) from None
        highest = max([0, *numbers_in(self.folder)])
        self._number = self._first = max(gather("the last checkpoint", highest)) + 1

    def is_due(self, evals: int) -> bool:
        """Whether a snapshot is due: it is the first, or the interval has passed."""
        if self._last is None:
            return True
        seconds, before = self._last
        if self._evals:
            return evals - before >= self._evals
        return time.monotonic() - seconds >= self._seconds

    def resume_from(self, number: int, evals: int, *others: str) -> None:
        """Continue from a checkpoint: the next snapshot is due after an interval.

        Checkpoints with higher numbers are damaged. `others` are names of files that
        belong to the checkpoints: one that was replaced after the last checkpoint is
        restored.
        """
        self._last = time.monotonic(), evals
        self._replaced = [self._path(n) for n in numbers_in(self.folder) if n > number]
        for path in (self.folder / name for name in others):
            if backup_path(path).exists():
                os.replace(backup_path(path), path)
            self._replaced.append(backup_path(path))

    def start_over(self, *others: str) -> None:
        """Let another run replace the folder's contents with its first checkpoint.

        `others` are names of files that belong to the checkpoints.
        """
        numbers = numbers_in(self.folder)
        for path in (self.folder / name for name in others):
            if path.exists():
                os.replace(path, backup_path(path))
            if numbers:  # else it belongs to no run of this folder
                self._replaced.append(backup_path(path))
        self._replaced += map(self._path, numbers)

    def all_agree(self, fact: bool) -> bool:
        """Whether a fact holds in all processes."""
        return all(self._gather("agree", fact))

    def _path(self, number: int) -> Path:
        return checkpoint_path(self.folder, number)

    def begin(self, evals: int, *, wait: bool) -> "Snapshot | None":
        """Begin a snapshot; None if the last one is still being written.

        `wait`: wait for that instead. Several processes always wait: all have to take
        the same snapshots.
        """
        writes = self._writer is not None and self._writer.is_alive()
        if writes and not wait and self._is_alone:
            return None
        self.wait_for_writer()
        if not self._is_alone:
            self._compare()
        self._last = time.monotonic(), evals
        return Snapshot(self, self._memory)

    def _compare(self) -> None:
        """Find the newest common checkpoint, and whether any process must end."""
        own = {"numbers": numbers_in(self.folder), "problem": self._own_problem}
        everyone = self._gather("checkpoints", own)
        common = set.intersection(*(set(each["numbers"]) for each in everyone))
        self._needed = max(common, default=0)
        self.problem = next((p["problem"] for p in everyone if p["problem"]), "")

    def write(self, values: dict[str, Any], arrays: list[np.ndarray]) -> None:
        """Write a checkpoint in a thread. Errors: ValueError if it cannot be read."""
        for name, value in values.items() if not self._tried else ():
            try:
                decode(value, arrays)
            except Exception as error:
                raise ValueError(
                    f"{name} cannot be read from a checkpoint: {first_line(error)}"
                ) from error
        self._tried = True
        self._memory.clear()  # those of arrays that there are no more

        def work() -> None:
            if self._write(values, arrays):
                self._delete_old(self._checkpoint.keep)
            for array in arrays:
                self._memory[array.shape, array.dtype].append(array)

        # not a daemon: a process that exits waits for its last checkpoint
        self._writer = threading.Thread(target=work, name=f"hetjax {self.folder.name}")
        self._writer.start()

    def _write(
        self,
        values: dict[str, Any],
        arrays: list[np.ndarray],
        *,
        finished: bool = False,
    ) -> bool:
        """Write the next checkpoint; return whether it was written."""
        path = self._path(self._number)
        self._number += 1
        document = {"version": VERSION, "finished": finished, "about": self._about}
        try:
            checkpoint_files.write(path, {**document, "values": values}, arrays)
        except Exception as error:  # a full disk, usually
            self._fail(path, error)
            return False
        return True

    def _fail(self, path: Path, error: Exception) -> None:
        """Note why a checkpoint could not be written."""
        self._failure = f"{path} could not be written: {first_line(error)}"
        if self._checkpoint.on_failure == "stop":
            self._own_problem = self._failure
        if self._is_alone:  # else all processes end together
            self.problem = self._own_problem

    def _delete_old(self, keep: int) -> None:
        """Delete all checkpoints but the newest `keep`, and those that a peer needs."""
        needed = self._needed
        if needed is None or needed >= self._first:
            for path in self._replaced:
                path.unlink(missing_ok=True)
            self._replaced = []
        for number in numbers_in(self.folder)[:-keep]:
            if needed is None or number < needed:
                self._path(number).unlink(missing_ok=True)

    def wait_for_writer(self) -> None:
        """Wait until the last checkpoint is written; warn if that failed."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure:
            what = "the run ends" if self._own_problem else "the run continues"
            warnings.warn(f"{self._failure}; {what}", stacklevel=2)
            self._failure = ""

    def finish(self, values: dict[str, Any]) -> None:
        """Save the end of the run, and delete its checkpoints.

        If the end cannot be written, there is a warning, and the checkpoints stay.
        """
        self.wait_for_writer()
        snapshot, written = Snapshot(self), False
        try:
            for name, value in values.items():
                snapshot.add(name, value)
        except ValueError as error:
            self._fail(self._path(self._number), error)
        else:
            written = self._write(snapshot.values, snapshot.arrays, finished=True)
        if not self._is_alone:
            self._compare()
        if written:
            self._delete_old(1)

    def close(self) -> None:
        """Wait for the last checkpoint, and unlock the folder."""
        try:
            self.wait_for_writer()
        finally:
            self._lock.release()


class Snapshot:
    """A snapshot in progress: JSON data, and copies of all arrays on the host."""

    def __init__(self, manager: Any, memory: Memory | None = None):
        """`manager.write(values, arrays)` is called with the complete snapshot.

        `memory`: arrays that are written over, if they have the shapes of the copies.
        """
        self._manager, self._encoder = manager, Encoder()
        self._memory = {} if memory is None else memory
        self.values: dict[str, Any] = {}
        self.arrays: list[np.ndarray] = []

    def add(self, name: str, value: Any) -> None:
        """Encode a value, and copy its arrays."""
        self.values[name] = self._encoder.encode(value, name)
        new = self._encoder.arrays[len(self.arrays) :]
        for array in new:
            if isinstance(array, jax.Array):
                array.copy_to_host_async()  # start all transfers from a GPU first
        self.arrays += map(self._copy, new)

    def _copy(self, array: Any) -> np.ndarray:
        """Copy an array, into the memory of the last snapshot if it had one like it."""
        free = self._memory.get((array.shape, array.dtype))
        copy = free.pop() if free else np.empty(array.shape, array.dtype)
        np.copyto(copy, array)
        return copy

    def commit(self) -> None:
        """Write the snapshot, in a thread."""
        self._manager.write(self.values, self.arrays)
