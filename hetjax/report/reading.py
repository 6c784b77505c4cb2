"""Reading results.json: the runs of a comparison, without timelines and models."""

import json
import math
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetjax.engine.records.history import (
    Evaluation,
    History,
    Interruption,
    WorkerEvent,
    WorkerRecord,
)
from hetjax.metric_mode import MODES
from hetjax.report.record import WORKER_BYTES, WORKER_NUMBERS
from hetjax.report.runs import NotStored


def read_document(path: str | Path) -> dict[str, Any]:
    """Read a results.json, or that of a folder; return the arguments of `Comparison`.

    Errors: those of opening the file; a ValueError that names the file and the field
    that is missing or of another type.
    """
    path = Path(path)
    path = path / "results.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also of text that is not UTF-8
        raise ValueError(f"{path} is not JSON: {error}") from None
    root = _Record(found, str(path), "")
    mode = root.get("mode", str)
    if mode not in MODES:
        raise root.error("mode", f"is {mode!r}, not one of {', '.join(MODES)}")
    metric, target = root.get("metric", str), root.number("target")
    versions = {"hetjax": root.get("hetjax", str), **root.get("versions", dict)}
    runs = [_history(run, metric, mode) for run in root.records("runs")]
    if not runs:
        raise root.error("runs", "is empty")
    return {
        "histories": runs,
        "data": root.get("data", dict),
        "machine": root.get("machine", dict),
        "target": None if root.get("target_is_default", bool) else target,
        "tuning": root.get("tuning", (dict, type(None))),
        "signal": root.get("signal", str),
        "versions": versions,
        # not in files of earlier versions
        "constant": None if found.get("constant") is None else root.number("constant"),
    }


class _Record:
    """A JSON object whose fields are checked when they are read."""

    def __init__(self, value: Any, file: str, where: str):
        self._file, self._where = file, where
        if not isinstance(value, dict):
            raise ValueError(f"{file}: {where or 'its content'} is not a JSON object")
        self.value = value

    def error(self, name: str, what: str) -> ValueError:
        return ValueError(
            f"{self._file} is not a results.json of this version of hetjax: "
            f"{self._where}{name} {what}"
        )

    def get(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """A field of this type."""
        if name not in self.value:
            raise self.error(name, "is missing")
        value = self.value[name]
        # True is an int, too
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(name, f"is {_short(value)}")
        return value

    def number(self, name: str) -> float:
        """A field that is a number; NaN for null."""
        value = self.get(name, (int, float, type(None)))
        return math.nan if value is None else value

    def records(self, name: str) -> list["_Record"]:
        """A field that is a list of objects."""
        found = enumerate(self.get(name, list))
        where = f"{self._where}{name}"
        return [_Record(v, self._file, f"{where}[{i}].") for i, v in found]

    def converted(
        self, name: str, make: Callable[[Any], Any], kind: type = list
    ) -> Any:
        """A field, converted by `make`; an error if its content does not fit."""
        value = self.get(name, kind)
        try:
            return make(value)
        except (TypeError, ValueError, KeyError, AttributeError):
            raise self.error(name, f"is {_short(value)}") from None


# not in files of earlier versions
_NEW_NUMBERS = {
    "schedule_seed": (int, type(None)),
    "root_merges": (int, type(None)),
    "unseen_merge": (int, float, type(None)),
}


def _history(record: _Record, metric: str, mode: str) -> History:
    """The history of one run."""
    points = record.records("evals")
    workers = record.records("workers")
    staleness = record.get("staleness", list)
    if len(staleness) != len(workers):
        raise record.error("staleness", f"is not of {len(workers)} workers")
    texts = ("output", "stopped", "placement")
    counts = ("eval_examples", "merges", "compilations")
    numbers = ("duration", "compile_seconds", "host_seconds")
    flags = ("real", "estimates_busy")
    return History(
        record.get("strategy", str),
        record.get("seed", int),
        record.get("settings", dict),
        metric,
        mode,
        # not in files of earlier versions
        **{
            name: record.get(name, str) if name in record.value else ""
            for name in ("algorithm", "played")
        },
        **_new_numbers(record),
        evals=[Evaluation(_point(p, metric)) for p in points],
        at_end=record.converted("at_end", _nan_for_none, dict),
        workers=[_worker(*w) for w in zip(workers, staleness, strict=True)],
        timeline=NotStored(),
        merge_times=record.converted("merge_times", lambda times: array("d", times)),
        programs=record.get("programs", dict),
        step_modes=record.get("step_modes", dict),
        stuck=record.get("stuck", list),
        events=record.converted("events", lambda all: [WorkerEvent(**e) for e in all]),
        interruptions=record.converted(
            "interruptions", lambda all: [Interruption(**e) for e in all]
        ),
        **{name: record.get(name, str) for name in texts},
        **{name: record.get(name, int) for name in counts},
        **{name: record.number(name) for name in numbers},
        **{name: record.get(name, bool) for name in flags},
    )


def _point(record: _Record, metric: str) -> dict[str, float]:
    """An evaluation; all of its fields are numbers."""
    for name in ("seconds", "updates", "examples", "loss", metric):
        record.number(name)
    return {name: record.number(name) for name in record.value}


def _worker(record: _Record, staleness: Any) -> WorkerRecord:
    """One worker's record, with its staleness, which is stored separately."""
    # only of clusters, and not in files of earlier versions
    on_cluster = {k: record.get(k, int) for k in WORKER_BYTES if k in record.value}
    if "node" in record.value:
        on_cluster["node"] = record.get("node", str)
    sizes = record.converted(
        "batch_size_over_time", lambda all: [(t, b) for t, b in all]
    )
    return WorkerRecord(
        record.get("name", str),
        **{name: record.number(name) for name in WORKER_NUMBERS},
        **on_cluster,
        batch_size_over_time=sizes,
        staleness={int(k): v for k, v in staleness.items()},
    )


def _new_numbers(record: _Record) -> dict[str, Any]:
    found = {
        name: record.get(name, kind)
        for name, kind in _NEW_NUMBERS.items()
        if name in record.value
    }
    if "unseen_merge" in found and found["unseen_merge"] is None:
        found["unseen_merge"] = math.inf  # JSON has no such number
    return found


def _nan_for_none(values: dict[str, float | None]) -> dict[str, float]:
    return {name: math.nan if v is None else v for name, v in values.items()}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
