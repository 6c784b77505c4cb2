"""Traces: what happened in a run, as JSON lines.

The first line says what was run on what; then, in the order of the run, one line for
every order that takes time and every event; the last line says how it ended. A trace is
enough to run the same strategy again to the same bits, and to fit a simulated machine.
"""

import json
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from hetjax.machine.types import Stamps, WorkerInfo

VERSION = 2  # of the format
MANY = 5_000  # lines that wait for a pause to be written
# what a line of each kind holds: the field of its name comes first
_FIELDS: dict[str, dict[str, type]] = {
    "dispatch": {
        "dispatch": int,
        "local_steps": int,
        "batch_size": float,
        "lr_scale": float,
        "seconds": float,
        "nonzeros": int,
        "start": float,
    },
    "arrival": {"arrival": int, "start": float, "finish": float},
    "merge": {
        "merge": str,
        "members": list,
        "op": str,
        "partners": list,
        "stamps": list,
        "bytes": float,
    },
    "merged": {"merged": str, "time": float, "members": list, "op": str},
    "timer": {"timer": str, "time": float},
    "leave": {"leave": int, "time": float, "lost": bool, "why": str},
    "join": {"join": int, "time": float, "why": str},
    "slow": {"slow": int, "time": float, "factor": float},
}
_OF_WORKERS = ("dispatch", "arrival", "leave", "join", "slow")
_HEADER: dict[str, type] = {
    "strategy": str,
    "seed": int,
    "workers": list,
    "instants": list,
    "step_modes": dict,
    "nodes": int,
    "slowdowns": list,
    "on_nan": str,
    "on_lost_worker": str,
}
_IN_WORDS = {int: "a whole number", float: "a number", str: "a text", list: "a list"}

Line = dict[str, Any]


@dataclass
class Trace:
    """A recorded run: `header`, `lines`, and what the last line says in `end`."""

    header: Line
    lines: list[Line] = field(default_factory=list)
    end: Line = field(default_factory=dict)
    name: str = field(default="the trace", compare=False)  # in errors: its file

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers of the run."""
        return tuple(
            WorkerInfo(**{**w, "place": tuple(w["place"])})
            for w in self.header["workers"]
        )

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON lines."""
        with Path(path).open("w", encoding="utf-8") as file:
            for line in (self.header, *self.lines, {"end": self.end}):
                file.write(json.dumps(line) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read a trace; a ValueError names the file and the line that is damaged.

        A run that was cut off (no last line, or half of one) is read as far as it goes.
        """
        with Path(path).open(encoding="utf-8") as file:
            return cls.read(file, str(path))

    @classmethod
    def read(cls, file: TextIO, name: str) -> "Trace":
        """Read an open file, called `name` in errors."""
        try:
            numbered = list(_parsed(name, file))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}: this is no text, and no trace: {error}"
            ) from error
        if not numbered:
            raise ValueError(f"{name}: an empty file is no trace")
        (_, header), *lines = numbered
        _check_header(name, header)
        end: Line = {}
        if lines and "end" in lines[-1][1]:
            end = lines.pop()[1]["end"]
        _check_lines(name, lines, len(header["workers"]))
        return cls(header, [line for _, line in lines], end, name)


class Recording:
    """A trace in a file: that of a path, or one that goes when nobody has this."""

    def __init__(self, path: str | Path | None = None):
        """Opens the file."""
        if path is None:
            number, temporary = tempfile.mkstemp(".jsonl", "hetjax-trace-")
            os.close(number)
            self._path, self._name = Path(temporary), "the trace"
            weakref.finalize(self, self._path.unlink, missing_ok=True)
        else:
            self._path, self._name = Path(path), str(path)
        self._waiting: list[Line] = []
        self.context: Any = None  # what it was recorded of, while that is in memory
        self._file = self._path.open("w", encoding="utf-8")

    def load(self) -> Trace:
        """Read it."""
        if not self._file.closed:
            self.flush()
        with self._path.open(encoding="utf-8") as file:
            return Trace.read(file, self._name)

    def save(self, path: str | Path) -> None:
        """Write it to another file."""
        self.load().save(path)

    def write(self, line: Line) -> None:
        """Append a line; it goes to the file with many others, when there is time."""
        self._waiting.append(line)
        if len(self._waiting) >= MANY:
            self.flush()

    def flush(self) -> None:
        """Bring the file up to date."""
        waiting, self._waiting = self._waiting, []
        self._file.write("".join(json.dumps(line) + "\n" for line in waiting))
        self._file.flush()

    def end(self, **what: Any) -> None:
        """Write the last line."""
        self.write({"end": what})

    def close(self) -> None:
        """Nothing is written any more."""
        if not self._file.closed:
            self.flush()
            self._file.close()


def _check_header(name: str, header: Line) -> None:
    missing = [field for field in ("trace", *_HEADER) if field not in header]
    if missing:
        raise ValueError(
            f"{name}, line 1: this is no trace of hetjax: {', '.join(missing)} missing"
        )
    if header["trace"] != VERSION:
        raise ValueError(
            f"{name}, line 1: a trace of version {header['trace']}; this hetjax reads "
            f"version {VERSION}"
        )
    place = f"{name}, line 1"
    _check_fields(place, header, _HEADER)
    try:
        count = len(Trace(header).workers)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{place}: damaged: workers: {error}") from error
    per_worker, nodes = len(header["slowdowns"]), header["nodes"]
    if not header["instants"] or per_worker != count or not 0 <= nodes < count:
        raise ValueError(
            f"{place}: damaged: {count} workers, {per_worker} slowdowns, nodes at "
            f"worker {nodes}, {len(header['instants'])} instants do not fit"
        )


def _check_lines(name: str, lines: Sequence[tuple[int, Line]], workers: int) -> None:
    """A ValueError for a line that is of no kind, or lacks what its kind has."""
    given: set[int] = set()
    for number, line in lines:
        place = f"{name}, line {number}"
        kind = next(iter(line), "")
        if kind not in _FIELDS:
            raise ValueError(f"{place}: unknown: {json.dumps(line)}")
        _check_fields(place, line, _FIELDS[kind])
        if set(line) != set(_FIELDS[kind]):
            more = ", ".join(sorted(set(line) - set(_FIELDS[kind])))
            raise ValueError(f"{place}: damaged: it has {more} besides")
        if kind in _OF_WORKERS and not 0 <= line[kind] < workers:
            raise ValueError(
                f"{place}: damaged: there is no worker {line[kind]}; they are 0 to "
                f"{workers - 1}"
            )
        if kind == "dispatch":
            given.add(line[kind])
        if kind == "arrival" and line[kind] not in given:
            raise ValueError(f"{place}: damaged: worker {line[kind]} had no work")
        if kind == "arrival":
            given.remove(line[kind])
        if kind == "merge" and len(line["stamps"]) != len(Stamps._fields):
            raise ValueError(
                f"{place}: damaged: a merge has {len(Stamps._fields)} stamps"
            )


def _check_fields(place: str, line: Line, fields: dict[str, type]) -> None:
    """A ValueError for a field that is not there, or of another type."""
    for field_name, kind in fields.items():
        value = line.get(field_name)
        number = kind is float and isinstance(value, int)
        is_bool = isinstance(value, bool) and kind is not bool
        if is_bool or not (isinstance(value, kind) or number):
            raise ValueError(
                f"{place}: damaged: {field_name} is {json.dumps(value)}, not "
                f"{_IN_WORDS.get(kind, kind.__name__)}"
            )


def _parsed(name: str, file: TextIO) -> Iterator[tuple[int, Line]]:
    """Every line with its number; but for half a line at the end of a run cut off."""
    for number, text in enumerate(file, 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            if number > 1 and not text.endswith("\n"):
                return
            why = getattr(error, "msg", error)
            raise ValueError(f"{name}, line {number}: damaged: {why}") from error
        if not isinstance(line, dict):
            raise ValueError(f"{name}, line {number}: damaged: no JSON object")
        yield number, line
