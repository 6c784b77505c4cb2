"""Traces: the actions and events of a run, as JSON lines.

The first line describes the run. One line follows for every local round, merge and
event, in the order of the run; the last line says how the run ended. From a trace the
same strategy can be replayed, bit for bit, and a simulated machine can be fitted.
"""

import json
import os
import tempfile
import warnings
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from hetjax.atomic_files import naming
from hetjax.checkpointable import backup_path
from hetjax.machine.types import WorkerInfo
from hetjax.tracing.format import Line, check_header, check_lines, end_of, parse

MAX_WAITING = 5_000  # buffered lines at which the buffer is written


@dataclass
class Trace:
    """A recorded run: `header`, `lines`, and the content of its last line in `end`."""

    header: Line
    lines: list[Line] = field(default_factory=list)
    end: Line = field(default_factory=dict)
    name: str = field(default="the trace", compare=False)  # of its file, for errors

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers of the run."""
        return tuple(
            WorkerInfo(**{**w, "place": tuple(w["place"])})
            for w in self.header["workers"]
        )

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON lines."""
        with naming(path), Path(path).open("w", encoding="utf-8") as file:
            for line in (self.header, *self.lines, {"end": self.end}):
                file.write(json.dumps(line) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read a trace; a ValueError names the file and the damaged line.

        The trace of a run that was interrupted (without a last line, or with half of
        one) is read up to its last whole line.
        """
        with Path(path).open(encoding="utf-8") as file:
            return cls.read(file, str(path))

    @staticmethod
    def header_of(path: str | Path) -> Line:
        """Return the first line of a trace file; {} if it is missing or damaged."""
        try:
            with Path(path).open(encoding="utf-8") as file:
                found = json.loads(file.readline())
            check_header(str(path), found)
        except (OSError, ValueError, TypeError, RecursionError):
            return {}
        return found

    @classmethod
    def read(cls, file: TextIO, name: str) -> "Trace":
        """Read an open file; errors call it `name`."""
        try:
            numbered = list(parse(name, file))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}: not a trace, as it is not a text file: {error}"
            ) from error
        if not numbered:
            raise ValueError(f"{name}: not a trace, as the file is empty")
        (_, header), *lines = numbered
        check_header(name, header)
        end: Line = {}
        if lines and "end" in lines[-1][1]:
            number, last = lines.pop()
            end = end_of(f"{name}, line {number}", last)
        check_lines(name, lines, header)
        return cls(header, [line for _, line in lines], end, name)


class Recording:
    """A trace that is being written, to a given file or a temporary one.

    The temporary file is deleted together with this object. A full disk does not end
    the run: it causes a warning, and nothing more is written.
    """

    def __init__(self, path: str | Path | None = None, *, continues: bool = False):
        """Open the file; with `continues`, its content stays until `truncate`."""
        if path is None:
            number, temporary = tempfile.mkstemp(".jsonl", "hetjax-trace-")
            os.close(number)
            self._path, self._name = Path(temporary), "the trace"
            weakref.finalize(self, self._path.unlink, missing_ok=True)
        else:
            self._path, self._name = Path(path), str(path)
        self._waiting: list[Line] = []
        self._problem = ""  # why nothing more is written
        # (task, data, strategy) of the run, which the file does not hold
        self.context: Any = None
        if not (continues and self._path.exists()):
            self._path.write_text("", encoding="utf-8")
        self._file = self._path.open("r+", encoding="utf-8")

    @property
    def length(self) -> int:
        """The file's length [bytes] with all lines; 0 if some could not be written."""
        self.flush()
        return 0 if self._problem else self._file.tell()

    def truncate(self, length: int, header: Line | None = None) -> bool:
        """Keep the first `length` bytes and return True, or start an empty file.

        With `header`, the file must begin with it, except for the workers, whose costs
        are measured. A file that does not fit is moved aside (see `backup_path`).
        """
        whole = self._path.stat().st_size >= length > 0
        if whole and header is not None:
            found, own = Trace.header_of(self._path), json.loads(json.dumps(header))
            names = {*found, *own} - {"workers", "begins"}
            whole = all(found.get(name) == own.get(name) for name in names)
        if not whole and self._path.stat().st_size:
            self._file.close()
            os.replace(self._path, backup_path(self._path))
            self._file = self._path.open("w+", encoding="utf-8")
        self._file.seek(length if whole else 0)
        self._file.truncate()
        return whole

    def load(self) -> Trace:
        """Read the trace; raise a ValueError if it could not be written."""
        if self._problem:
            raise ValueError(f"{self._name} is incomplete: {self._problem}")
        if not self._file.closed:
            self.flush()
        with self._path.open(encoding="utf-8") as file:
            return Trace.read(file, self._name)

    def save(self, path: str | Path) -> None:
        """Write the trace to another file."""
        self.load().save(path)

    def write(self, line: Line) -> None:
        """Append a line to the buffer."""
        self._waiting.append(line)
        if len(self._waiting) >= MAX_WAITING:
            self.flush()

    def flush(self) -> None:
        """Write all buffered lines to the file, if it can be written."""
        waiting, self._waiting = self._waiting, []
        if self._problem:
            return
        try:
            self._file.write("".join(json.dumps(line) + "\n" for line in waiting))
            self._file.flush()
        except OSError as error:
            self._problem = str(error)
            warnings.warn(
                f"{self._name} could not be written: {error}; the run continues "
                "without its trace",
                stacklevel=2,
            )

    def end(self, **what: Any) -> None:
        """Write the last line."""
        self.write({"end": what})

    def close(self) -> None:
        """Write all buffered lines and close the file."""
        if not self._file.closed:
            self.flush()
            with suppress(OSError):  # of lines that could not be written before
                self._file.close()
