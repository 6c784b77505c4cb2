"""Reading results.json: the runs of a comparison, without timelines and models."""

import json
import math
from array import array
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
from hetjax.report.record import WORKER_BYTES, WORKER_CANCELLED, WORKER_NUMBERS
from hetjax.report.runs import NotStored

NULL = type(None)
NUMBER = (int, float, NULL)  # null is NaN

# The fields and their types, [type] for lists. Files of earlier versions lack those
# with a question mark.
_WORKER = {
    **{"name": str, "node?": str, "batch_size_over_time": [[NUMBER]]},
    **dict.fromkeys(WORKER_NUMBERS, NUMBER),
    **{f"{name}?": NUMBER for name in WORKER_CANCELLED},
    **{f"{name}?": int for name in WORKER_BYTES},
}
_RUN = {
    **{"strategy": str, "seed": int, "settings": dict, "staleness": [dict]},
    **{"output": str, "stopped": str, "placement": str},
    **{"algorithm?": str, "played?": str, "command?": str, "parts?": dict},
    **{"eval_examples": int, "merges": int, "compilations": int, "parameters?": int},
    **{"duration": NUMBER, "compile_seconds": NUMBER, "host_seconds": NUMBER},
    **{"real": bool, "estimates_busy": bool},
    **{"schedule_seed?": (int, NULL), "root_merges?": (int, NULL)},
    **{"unseen_merge?": NUMBER, "merge_times": [(int, float)]},
    **{"at_end": dict, "programs": dict, "step_modes": dict, "stuck": [str]},
    "events": [{"seconds": NUMBER, "worker": str, "what": str, "why": str}],
    "interruptions": [{"seconds": NUMBER, "checkpoint": int, "why": str}],
    "workers": [_WORKER],
}
_DOCUMENT = {
    **{"mode": str, "metric": str, "target": NUMBER, "target_is_default": bool},
    **{"hetjax": str, "versions": dict, "data": dict, "machine": dict},
    **{"tuning": (dict, NULL), "signal": str, "constant?": NUMBER},
}


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
    if not isinstance(found, dict):
        raise ValueError(f"{path}: its content is not a JSON object")
    old = f"{path} is not a results.json of this version of hetjax"
    if wrong := _misfit(found, _DOCUMENT):
        raise ValueError(f"{old}: {wrong}")
    if found["mode"] not in MODES:
        raise ValueError(
            f"{old}: mode is {found['mode']!r}, not one of {', '.join(MODES)}"
        )
    point = dict.fromkeys(
        ("seconds", "updates", "examples", "loss", found["metric"]), NUMBER
    )
    if wrong := _misfit(found, {"runs": [{**_RUN, "evals": [point]}]}):
        raise ValueError(f"{old}: {wrong}")
    if not found["runs"]:
        raise ValueError(f"{old}: runs is empty")
    try:
        runs = [_history(run, found["metric"], found["mode"]) for run in found["runs"]]
    except (TypeError, ValueError) as error:  # as of staleness of other workers
        raise ValueError(f"{old}: {error}") from None
    return {
        "histories": runs,
        "target": None if found["target_is_default"] else _number(found["target"]),
        "versions": {"hetjax": found["hetjax"], **found["versions"]},
        "constant": found.get("constant"),
        **{name: found[name] for name in ("data", "machine", "tuning", "signal")},
    }


def _misfit(value: Any, kind: Any, where: str = "") -> str:
    """The first field that is missing or of another type, and its value; else empty."""
    types = type(kind) if isinstance(kind, dict | list) else kind
    # True is an int, too
    if not isinstance(value, types) or (types is int and isinstance(value, bool)):
        text = json.dumps(value)
        return f"{where} is {text if len(text) <= 40 else f'{text[:37]}...'}"
    if isinstance(kind, list):
        found = (_misfit(v, kind[0], f"{where}[{i}]") for i, v in enumerate(value))
        return next(filter(None, found), "")
    for name, inner in kind.items() if isinstance(kind, dict) else ():
        key = name.removesuffix("?")
        path = f"{where}.{key}".removeprefix(".")
        if key in value:
            if wrong := _misfit(value[key], inner, path):
                return wrong
        elif key == name:
            return f"{path} is missing"
    return ""


def _history(run: dict[str, Any], metric: str, mode: str) -> History:
    """The history of one run."""
    workers = zip(run["workers"], run["staleness"], strict=True)
    made = {
        "evals": [Evaluation(_numbers(p)) for p in run["evals"]],
        "at_end": _numbers(run["at_end"]),
        "workers": [_worker(w, stale) for w, stale in workers],
        "merge_times": array("d", run["merge_times"]),
        "events": [WorkerEvent(**e) for e in run["events"]],
        "interruptions": [Interruption(**e) for e in run["interruptions"]],
        "duration": _number(run["duration"]),
        "compile_seconds": _number(run["compile_seconds"]),
        "host_seconds": _number(run["host_seconds"]),
    }
    if "unseen_merge" in run:  # JSON has no infinity
        unseen = run["unseen_merge"]
        made["unseen_merge"] = math.inf if unseen is None else unseen
    known = {name.removesuffix("?") for name in _RUN} & set(run)
    same = {name: run[name] for name in known - set(made) - {"staleness"}}
    return History(metric=metric, mode=mode, timeline=NotStored(), **same, **made)


def _worker(record: dict[str, Any], staleness: dict[str, int]) -> WorkerRecord:
    """One worker's record, with its staleness, which is stored separately."""
    known = {name.removesuffix("?") for name in _WORKER} & set(record)
    fields = {name: _number(record[name]) for name in known}
    fields["batch_size_over_time"] = [tuple(p) for p in record["batch_size_over_time"]]
    fields["staleness"] = {int(k): v for k, v in staleness.items()}
    return WorkerRecord(**fields)


def _number(value: Any) -> Any:
    return math.nan if value is None else value


def _numbers(values: dict[str, float | None]) -> dict[str, float]:
    return {name: _number(v) for name, v in values.items()}
