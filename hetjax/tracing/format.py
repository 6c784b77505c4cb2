"""The format of a trace: the fields of its lines, and checks of a file's lines.

Errors name the file and the line, and quote damaged content in a readable length.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from hetjax.machine.merge_times import Stamps
from hetjax.machine.types import MergeOp

VERSION = 3  # of the format
READ = (2, VERSION)  # versions that are read

Line = dict[str, Any]


class Kind(NamedTuple):
    """A kind of JSON values: its words in errors, and whether a value is of it."""

    words: str
    fits: Callable[[Any], bool]


def _list_of(words: str, *kinds: Kind) -> Kind:
    return Kind(
        f"a list of {words}",
        lambda v: type(v) is list and all(any(k.fits(x) for k in kinds) for x in v),
    )


# JSON gives no subclasses, and True is no number
_WHOLE = Kind("a whole number", lambda v: type(v) is int)
_FINITE = Kind("a finite number", lambda v: type(v) in (int, float) and abs(v) < 1e300)
_TEXT = Kind("a text", lambda v: type(v) is str)
_TRUTH = Kind("true or false", lambda v: type(v) is bool)
_OBJECT = Kind("an object", lambda v: type(v) is dict)
_WHOLE_OR_NULL = Kind("a whole number or null", lambda v: type(v) in (int, type(None)))
_NUMBERS = _list_of("finite numbers", _FINITE)
_WORKERS = _list_of("whole numbers", _WHOLE)
_MEMBERS = _list_of("whole numbers and texts", _WHOLE, _TEXT)

# the fields of a line by kind: the name of the first field is the kind; those that end
# with "?" may be missing
_FIELDS: dict[str, dict[str, Kind]] = {
    "dispatch": {
        "dispatch": _WHOLE,
        "local_steps": _WHOLE,
        "batch_size": _FINITE,
        "lr_scale": _FINITE,
        "seconds": _FINITE,
        "nonzeros": _WHOLE,
        "start": _FINITE,
    },
    "arrival": {"arrival": _WHOLE, "start": _FINITE, "finish": _FINITE},
    "merge": {
        "merge": _TEXT,
        "members": _MEMBERS,
        "op": _TEXT,
        "partners": _WORKERS,
        "stamps": _NUMBERS,
        "bytes": _FINITE,
        "missing?": _WORKERS,  # the unreachable members
        "part?": _TEXT,
        "weight?": _FINITE,
    },
    "merged": {"merged": _TEXT, "time": _FINITE, "members": _MEMBERS, "op": _TEXT},
    "timer": {"timer": _TEXT, "time": _FINITE},
    "leave": {"leave": _WHOLE, "time": _FINITE, "lost": _TRUTH, "why": _TEXT},
    "join": {"join": _WHOLE, "time": _FINITE, "why": _TEXT},
    "slow": {"slow": _WHOLE, "time": _FINITE, "factor": _FINITE},
    # "start": a stopped worker takes part again; "cancel": its round ends;
    # "evaluation": a point of the history
    "start": {"start": _WHOLE},
    "cancel": {"cancel": _WHOLE},
    "evaluation": {"evaluation": _FINITE},
    # from here on, the run was continued from a checkpoint
    "cut": {"cut": _FINITE},
}
_SINCE_3 = {"blocking": _TRUTH, "transfers": _WHOLE, "server_steps": _WHOLE_OR_NULL}
_OF_WORKERS = ("dispatch", "arrival", "leave", "join", "slow", "start", "cancel")
_HEADER: dict[str, Kind] = {
    "strategy": _TEXT,
    "seed": _WHOLE,
    "workers": _list_of("objects", _OBJECT),
    "instants": _NUMBERS,
    "step_modes": _OBJECT,
    "nodes": _WHOLE,
    "slowdowns": _NUMBERS,
    "on_nan": _TEXT,
    "on_lost_worker": _TEXT,
    # not every version wrote these
    "name?": _TEXT,
    "settings?": _OBJECT,
    "batch_size?": _FINITE,
    "eval_examples?": _WHOLE_OR_NULL,
    "begins?": _FINITE,
    "nodes_kind?": _TEXT,
    "split_merges?": _TRUTH,
    "jax?": _TEXT,
}
_WORKER: dict[str, Kind] = {
    "index": _WHOLE,
    "name": _TEXT,
    "kind": _TEXT,
    "place": _list_of("texts", _TEXT),
    "fixed": _FINITE,
    "per_example": _FINITE,
    "device?": _TEXT,
    "present?": _TRUTH,
}
_END: dict[str, Kind] = {"stopped?": _TEXT, "params?": _TEXT}


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


def check_header(name: str, header: Line) -> None:
    """Raise a ValueError unless this is the first line of a trace."""
    place = f"{name}, line 1"
    missing = [k for k in ("trace", *_HEADER) if k[-1] != "?" and k not in header]
    if missing:
        raise ValueError(
            f"{place}: this is not a trace of hetjax: it lacks {', '.join(missing)}"
        )
    if header["trace"] not in READ:
        raise ValueError(
            f"{place}: a trace of version {_text(header['trace'])}; this version of "
            f"hetjax reads versions {' and '.join(map(str, READ))}"
        )
    _check_fields(place, header, _HEADER)
    count, instants = len(header["workers"]), header["instants"]
    for k, worker in enumerate(header["workers"]):
        _check_fields(place, worker, _WORKER, f"workers: {k}: ")
        _check_names(place, worker, _WORKER, "workers: ")
        if worker["index"] != k:
            raise _damaged(place, f"workers: {k}: its index is {worker['index']}")
    per_worker, nodes = len(header["slowdowns"]), header["nodes"]
    if not instants or per_worker != count or not 0 <= nodes < count:
        raise _damaged(
            place,
            f"{count} workers, {per_worker} slowdowns, nodes at worker {nodes}, "
            f"{len(instants)} instants do not fit together",
        )
    if instants[0] < 0 or sorted(instants) != instants:
        raise _damaged(place, "instants are not increasing from 0 s on")


def end_of(place: str, line: Line) -> Line:
    """Return the content of the last line; raise a ValueError if it is damaged."""
    _check_fields(place, line, {"end": _OBJECT})
    _check_fields(place, line["end"], _END, "end: ")
    return line["end"]


def check_lines(name: str, lines: Sequence[tuple[int, Line]], header: Line) -> None:
    """Raise a ValueError for a line of unknown kind, or with wrong fields."""
    workers = range(len(header["workers"]))
    # without the beginning of a run, each worker may have an earlier round in flight
    given = set(workers) if "begins" in header else set()
    since_3 = {"merge": _SINCE_3} if header["trace"] > 2 else {}
    fields = {kind: found | since_3.get(kind, {}) for kind, found in _FIELDS.items()}
    for number, line in lines:
        place = f"{name}, line {number}"
        kind = next(iter(line), "")
        if kind not in fields:
            raise ValueError(f"{place}: unknown kind of line: {_text(line)}")
        _check_fields(place, line, fields[kind])
        _check_names(place, line, fields[kind], "it has ")
        named = [line[kind]] if kind in _OF_WORKERS else []
        for field in ("members", "partners", "missing"):
            named += [k for k in line.get(field, ()) if isinstance(k, int)]
        for worker in named:
            if worker not in workers:
                what = (
                    f"there is no worker {_text(worker)}; they are 0 to {workers[-1]}"
                )
                raise _damaged(place, what)
        if "op" in line and not set(line["op"].split("|")) <= set(MergeOp.__members__):
            raise _damaged(place, f"there is no operation {_text(line['op'])}")
        if kind == "merge" and len(line["stamps"]) != len(Stamps._fields):
            raise _damaged(place, f"a merge has {len(Stamps._fields)} stamps")
        if kind == "dispatch":
            given.add(line[kind])
        elif kind == "arrival" and line[kind] not in given:
            raise _damaged(place, f"worker {line[kind]} had no local round")
        elif kind == "arrival":
            given.remove(line[kind])


def _check_fields(
    place: str, line: Line, fields: Mapping[str, Kind], within: str = ""
) -> None:
    """Raise a ValueError for a field that is missing, or of another kind."""
    for field, kind in fields.items():
        name = field.rstrip("?")
        value = line.get(name)
        if not kind.fits(value) and (name == field or name in line):
            what = f"{within}{name} is {_text(value)}, not {kind.words}"
            raise _damaged(place, what)


def _check_names(
    place: str, line: Line, fields: Mapping[str, Kind], within: str
) -> None:
    unknown = sorted(name for name in line if not {name, f"{name}?"} & fields.keys())
    if unknown:
        raise _damaged(place, f"{within}unknown fields: {', '.join(unknown)}")


def _damaged(place: str, what: str) -> ValueError:
    """Return an error of readable length, whatever the file contains."""
    return ValueError(f"{place}: damaged: {shortened(what)}")


def _text(value: Any) -> str:
    """Return the JSON text of a value, in a readable length."""
    try:
        return shortened(json.dumps(value), 80)
    except (RecursionError, ValueError):  # or a number of too many digits
        return f"a {type(value).__name__} that is too large"


def shortened(text: str, most: int = 300) -> str:
    """Return the text, or its beginning where it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
