"""The format of a trace: the fields of its lines, and checks of a file's lines.

Errors name the file and the line, and quote damaged content in a readable length.
"""

import json
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from hetjax.machine.merge_times import Stamps
from hetjax.machine.types import MergeOp

VERSION = 3  # of the format
READ = (2, VERSION)  # versions that are read
# the fields of a line by kind: the name of the first field is the kind
_FIELDS: dict[str, dict[str, Any]] = {
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
        "members": list[int | str],
        "op": str,
        "partners": list[int],
        "stamps": list[float],
        "bytes": float,
    },
    "merged": {"merged": str, "time": float, "members": list[int | str], "op": str},
    "timer": {"timer": str, "time": float},
    "leave": {"leave": int, "time": float, "lost": bool, "why": str},
    "join": {"join": int, "time": float, "why": str},
    "slow": {"slow": int, "time": float, "factor": float},
    # "start": a stopped worker takes part again; "evaluation": a point of the history
    "start": {"start": int},
    "evaluation": {"evaluation": float},
    # from here on, the run was continued from a checkpoint
    "cut": {"cut": float},
}
_SINCE_3: dict[str, dict[str, Any]] = {
    "merge": {"blocking": bool, "transfers": int, "server_steps": int | None}
}
# fields that are left out where they are empty: the unreachable members of a merge
_OPTIONAL: dict[str, dict[str, Any]] = {"merge": {"missing": list[int]}}
_OF_WORKERS = ("dispatch", "arrival", "leave", "join", "slow", "start")
_HEADER: dict[str, Any] = {
    "strategy": str,
    "seed": int,
    "workers": list[dict],
    "instants": list[float],
    "step_modes": dict,
    "nodes": int,
    "slowdowns": list[float],
    "on_nan": str,
    "on_lost_worker": str,
}
# not every version wrote these
_MORE_HEADER: dict[str, Any] = {
    "name": str,
    "settings": dict,
    "batch_size": float,
    "eval_examples": int | None,
    "begins": float,
    "nodes_kind": str,
    "jax": str,
}
_WORKER: dict[str, Any] = {
    "index": int,
    "name": str,
    "kind": str,
    "place": list[str],
    "fixed": float,
    "per_example": float,
    "device": str,
    "present": bool,
}
_END: dict[str, Any] = {"stopped": str, "params": str}
_TYPE_NAMES = {
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    bool: "true or false",
    dict: "an object",
    list[int]: "a list of whole numbers",
    list[float]: "a list of finite numbers",
    list[str]: "a list of texts",
    list[dict]: "a list of objects",
    list[int | str]: "a list of whole numbers and texts",
    int | None: "a whole number or null",
}
_PLAIN = (int, str, bool, dict, type(None))
_LARGEST = 1e300

Line = dict[str, Any]


def _damaged(place: str, what: str) -> ValueError:
    """Return an error of readable length, whatever the file contains."""
    return ValueError(f"{place}: damaged: {shortened(what)}")


def check_header(name: str, header: Line) -> None:
    """Raise a ValueError unless this is the first line of a trace."""
    place = f"{name}, line 1"
    missing = [field for field in ("trace", *_HEADER) if field not in header]
    if missing:
        raise ValueError(
            f"{place}: this is not a trace of hetjax: it lacks {', '.join(missing)}"
        )
    if header["trace"] not in READ:
        raise ValueError(
            f"{place}: a trace of version {_text(header['trace'])}; this version of "
            f"hetjax reads versions {' and '.join(map(str, READ))}"
        )
    given = {k: v for k, v in _MORE_HEADER.items() if k in header}
    _check_fields(place, header, _HEADER | given)
    count, instants = len(header["workers"]), header["instants"]
    for k, worker in enumerate(header["workers"]):
        unknown = set(worker) - set(_WORKER)
        if unknown:
            raise _damaged(place, f"workers: unknown fields {', '.join(unknown)}")
        optional = {"device", "present"} - set(worker)  # older versions lack them
        fields = {n: v for n, v in _WORKER.items() if n not in optional}
        _check_fields(place, worker, fields, f"workers: {k}: ")
        if worker["index"] != k:
            raise _damaged(place, f"workers: {k}: its index is {worker['index']}")
    per_worker, nodes = len(header["slowdowns"]), header["nodes"]
    if not instants or per_worker != count or not 0 <= nodes < count:
        raise _damaged(
            place,
            f"{count} workers, {per_worker} slowdowns, nodes at "
            f"worker {nodes}, {len(instants)} instants do not fit together",
        )
    if instants[0] < 0 or sorted(instants) != instants:
        raise _damaged(place, "instants are not increasing from 0 s on")


def end_of(place: str, line: Line) -> Line:
    """Return the content of the last line; raise a ValueError if it is damaged."""
    end = line["end"]
    _check_fields(place, line, {"end": dict})
    _check_fields(place, end, {k: v for k, v in _END.items() if k in end}, "end: ")
    return end


def check_lines(name: str, lines: Sequence[tuple[int, Line]], header: Line) -> None:
    """Raise a ValueError for a line of unknown kind, or with wrong fields."""
    workers = len(header["workers"])
    # without the beginning of a run, each worker may have an earlier round in flight
    given = set(range(workers)) if "begins" in header else set()
    for number, line in lines:
        place = f"{name}, line {number}"
        kind = next(iter(line), "")
        if kind not in _FIELDS:
            raise ValueError(f"{place}: unknown kind of line: {_text(line)}")
        more_fields = {k: v for k, v in _OPTIONAL.get(kind, {}).items() if k in line}
        fields = _FIELDS[kind] | more_fields
        if header["trace"] > 2:
            fields |= _SINCE_3.get(kind, {})
        _check_fields(place, line, fields)
        if set(line) != set(fields):
            more = ", ".join(sorted(set(line) - set(fields)))
            raise _damaged(place, f"it has unknown fields: {more}")
        named = [line[kind]] if kind in _OF_WORKERS else []
        for field_name in ("members", "partners", "missing"):
            named += [k for k in line.get(field_name, ()) if isinstance(k, int)]
        for worker in named:
            if not 0 <= worker < workers:
                raise _damaged(
                    place,
                    f"there is no worker {_text(worker)}; they are 0 to {workers - 1}",
                )
        if "op" in line and not set(line["op"].split("|")) <= set(MergeOp.__members__):
            raise _damaged(place, f"there is no operation {_text(line['op'])}")
        if kind == "dispatch":
            given.add(line[kind])
        if kind == "arrival" and line[kind] not in given:
            raise _damaged(place, f"worker {line[kind]} had no local round")
        if kind == "arrival":
            given.remove(line[kind])
        if kind == "merge" and len(line["stamps"]) != len(Stamps._fields):
            raise _damaged(place, f"a merge has {len(Stamps._fields)} stamps")


def _check_fields(
    place: str, line: Line, fields: dict[str, Any], within: str = ""
) -> None:
    """Raise a ValueError for a field that is missing, or of another type."""
    for field_name, kind in fields.items():
        value = line.get(field_name)
        if not _fits(kind, value):
            wanted = _TYPE_NAMES.get(kind) or kind.__name__
            raise _damaged(
                place, f"{within}{field_name} is {_text(value)}, not {wanted}"
            )


def _fits(kind: Any, value: Any) -> bool:
    """Whether a JSON value has this type; numbers must be finite."""
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float) and -_LARGEST < value < _LARGEST
    if kind in _PLAIN:
        return isinstance(value, kind)
    if isinstance(kind, types.UnionType):
        return any(_fits(one, value) for one in typing.get_args(kind))
    (element,) = typing.get_args(kind)  # of a list
    return isinstance(value, list) and all(_fits(element, v) for v in value)


def _text(value: Any) -> str:
    """Return the JSON text of a value, in a readable length."""
    try:
        return shortened(json.dumps(value), 80)
    except (RecursionError, ValueError):  # or a number of too many digits
        return f"a {type(value).__name__} that is too large"


def shortened(text: str, most: int = 300) -> str:
    """Return the text, or its beginning where it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def parse(name: str, file: TextIO) -> Iterator[tuple[int, Line]]:
    """Yield every line with its number, except for half a line at the end."""
    for number, text in enumerate(file, 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            if number > 1 and not text.endswith("\n"):
                return
            why = getattr(error, "msg", str(error))
            raise _damaged(f"{name}, line {number}", why) from error
        if not isinstance(line, dict):
            raise _damaged(f"{name}, line {number}", "not a JSON object")
        yield number, line
