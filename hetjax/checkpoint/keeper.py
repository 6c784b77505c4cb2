"""A folder in which one run is kept: its checkpoints, and its history when it is over.

    runs/a/
      000011/  000012/    the last checkpoints; the run goes on from the newest
      000013/             or, alone: the history and the models of a run that is over
      lock                held by the process that runs it

Numbers only rise, so that the newest folder is always the one that counts, wherever a
process was killed amid writing, renaming and deleting.

Of several processes each has a folder of its own, with its own devices' replicas. They
cut a run at the same moments, under the same numbers; it goes on from the newest number
that all of them have.

Cuts are copied to the host's memory while the run waits, and written by a thread while
it goes on. A checkpoint that cannot be written does not end the run, unless that is
asked for; those that were there stay.
"""

import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np

from hetjax.checkpoint import files, packing
from hetjax.checkpoint.copies import on_host
from hetjax.checkpoint.files import Damaged
from hetjax.checkpoint.values import Encoder, decode
from hetjax.recipes import NoRecipe
from hetjax.saved import before_of

EVERY = "60s"
Gather = Callable[[str, Any], list[Any]]
"""gather(name, value) -> the values of all processes, as JSON returns them."""
ON_FAILURE = ("continue", "stop")
LOCK = "lock"
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


def alone(name: str, value: Any) -> list[Any]:
    """`Gather` of one process."""
    return [value]


class Keeper:
    """Keeps one run in a folder; a `hetjax.engine.cut.Saver`."""

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
        self.folder = Path(checkpoint.path).expanduser()
        self._seconds, self._evals = checkpoint.interval
        self._last: tuple[float, int] | None = None  # time and evaluations
        self._writer: threading.Thread | None = None
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
        highest = max([0, *_numbers(self.folder, of_runs=False)])
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
        self._replaced = [self._place(n) for n in _numbers(self.folder) if n > number]
        for path in (self.folder / name for name in others):
            if before_of(path).exists():
                os.replace(before_of(path), path)
            self._replaced.append(before_of(path))

    def begin_anew(self, *others: str) -> None:
        """Another run takes the place of what is there, with its first checkpoint.

        `others` are names of files that go with the checkpoints.
        """
        numbers = _numbers(self.folder)
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
        return self.folder / f"{number:06}"

    def begin(self, evals: int, *, wait: bool) -> "Cut | None":
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
        return Cut(self)

    def _compare(self) -> None:
        """Learn which checkpoints the other processes have, and if one must end."""
        own = {"numbers": _numbers(self.folder), "problem": self._own_problem}
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
        document = {"about": self._about, "finished": finished, "values": values}
        try:
            by = packing.ORBAX if self._is_alone else packing.NUMPY
            files.write(folder, document, arrays, by=by)
        except Exception as error:  # a full disk, or orbax's own
            self._fail(folder, error)
            return False
        return True

    def _fail(self, folder: Path, error: Exception) -> None:
        """Note why a checkpoint is not there."""
        why = next(iter(str(error).splitlines()), "")
        self._failure = f"{folder} could not be written: {_kind(error)}{why}"
        if self._checkpoint.on_failure == "stop":
            self._own_problem = self._failure
        if self._is_alone:  # else all end together
            self.problem = self._own_problem

    def _delete_old(self, keep: int) -> None:
        """Delete all checkpoints but the newest, and those that another one needs."""
        needed = self._needed
        if needed is None or needed >= self._first:
            for path in self._replaced:
                _delete(path)
            self._replaced = []
        for number in _numbers(self.folder)[:-keep]:
            if needed is None or number < needed:
                _delete(self._place(number))

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
        encoder, encoded = Encoder(), None
        try:
            encoded = {k: encoder.encode(v, k) for k, v in values.items()}
        except ValueError as error:
            self._fail(self._place(self._number), error)
        written = encoded is not None and self._write(
            encoded, on_host(encoder.arrays), finished=True
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


def find(
    folder: Path, gather: Gather = alone, *, about_alone: bool = False
) -> Found | None:
    """Return what a folder holds of a run; None if it holds nothing.

    The newest checkpoint that is not damaged is taken; of several processes the newest
    that is damaged for none. `about_alone`: its arrays are not read, and there are no
    `values`. Errors: Damaged, with the reasons, if all are, or if the processes have
    none in common.
    """
    everyone = gather("kept checkpoints", _numbers(folder))
    damaged: list[str] = []
    for number in sorted(set.intersection(*map(set, everyone)), reverse=True):
        found = _read(folder / f"{number:06}", number, about_alone)
        problems = [found] if isinstance(found, str) else []
        problems = sum(gather("damage", problems), [])
        if not problems and isinstance(found, Found):
            return found._replace(damaged=tuple(damaged))
        damaged += problems
    if not any(everyone):
        return None
    why = "; ".join(damaged) or "the processes have none in common"
    raise Damaged(
        f"{folder}: no checkpoint can be used: {why}; begin anew with "
        'resume="never", or choose another folder'
    )


def _read(place: Path, number: int, about_alone: bool) -> Found | str:
    """What a checkpoint holds, or why it cannot be used."""
    try:
        document, arrays = files.read(place, document_alone=about_alone)
        encoded = {} if about_alone else document["values"]
        values = {k: decode(v, arrays) for k, v in encoded.items()}
        return Found(document["about"], values, number, document["finished"], ())
    except Damaged as error:
        return str(error)
    except NoRecipe as error:
        raise ValueError(
            f"{place} was written by a program that has what this one has not: "
            f"{error}; go on with that program, or define it in a module of both"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{place}: {_kind(error)}{error}"


def holds_run(folder: Path) -> bool:
    """Is this the folder of a run?"""
    return bool(_numbers(folder))


def _numbers(folder: Path, *, of_runs: bool = True) -> list[int]:
    """The numbers of all checkpoints, rising; or of all that is called like one."""
    if not folder.is_dir():
        return []
    paths = [p for p in folder.iterdir() if re.fullmatch(r"\d{6,}", p.name)]
    if of_runs:  # a folder of another program may be called 20261123
        names = (files.STATE, files.MANIFEST)
        paths = [p for p in paths if any((p / name).exists() for name in names)]
    return sorted(int(p.name) for p in paths)


def _delete(path: Path) -> None:
    """Delete a folder or file, if it is there and that can be done."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _check_decodes(name: str, value: Any, arrays: list[np.ndarray]) -> None:
    """A ValueError for what was encoded, but could not be taken up again."""
    try:
        decode(value, arrays)
    except Exception as error:
        raise ValueError(
            f"{name} could not be read from a checkpoint: {_kind(error)}{error}"
        ) from error


def _kind(error: Exception) -> str:
    """The kind of an error, where its message alone does not tell it."""
    return "" if type(error) in (OSError, ValueError) else f"{type(error).__name__}: "
