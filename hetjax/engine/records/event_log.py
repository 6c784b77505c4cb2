"""The log of a run: one line for each event in its records."""

from collections.abc import Iterator
from typing import Any, NamedTuple

SHOWN = 40  # lines of a printed log, at its beginning and at its end
# the order at equal times; worker events are in between
_FIRST, _LAST = ("arrival", "merge", "transfer"), ("merged", "evaluation", "dispatch")


class LogEntry(NamedTuple):
    """One event and its time."""

    seconds: float
    worker: str  # its name; "" for the whole run
    what: str  # "dispatch", "arrival", "merge", "merged", "lost", ...
    about: str = ""


class Log(list[LogEntry]):
    """Entries in order of time; the log and its slices are printed as tables."""

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        return Log(found) if isinstance(where, slice) else found

    def __repr__(self) -> str:
        width = max([6, *(len(entry.worker) for entry in self)])
        lines = [f"{'seconds':>12}  {'worker':<{width}}  what"]
        for k, (seconds, worker, what, about) in enumerate(self):
            if SHOWN <= k < len(self) - SHOWN:
                if k == SHOWN:
                    lines.append(f"{'...':>12}  {len(self) - 2 * SHOWN:,} more")
                continue
            line = f"{seconds:12.6f}  {worker:<{width}}  {what:<10}  {about}"
            lines.append(line.rstrip())
        return "\n".join(lines)


def log_of(history: Any) -> Log:
    """Return the log of a `History`: timeline, events, merges and evaluations."""
    return Log(sorted(_entries(history), key=_sort_key))


def _sort_key(entry: LogEntry) -> tuple[float, int]:
    seconds, _, what, _ = entry
    if what in _FIRST:
        return seconds, _FIRST.index(what)
    later = _LAST.index(what) + 1 if what in _LAST else 0
    return seconds, len(_FIRST) + later


def _entries(h: Any) -> Iterator[LogEntry]:
    names = [worker.name for worker in h.workers]
    # by worker, so that equal times are in the order of the machine
    for worker, kind, start, finish, whole in sorted(h.timeline.marked()):
        name = names[worker]
        if kind == "busy":
            yield LogEntry(start, name, "dispatch")
            if whole:
                yield LogEntry(finish, name, "arrival")
        else:
            what = "merge" if kind == "merging" else kind
            yield LogEntry(start, name, what, f"until {finish:.6f} s")
    for number, time in enumerate(h.merge_times, 1):
        yield LogEntry(time, "", "merged", f"merge {number} of the model")
    for point in h.evals:
        found = f"{h.metric} {point[h.metric]:.4g}"
        yield LogEntry(point["seconds"], "", "evaluation", found)
    for event in h.events:
        yield LogEntry(*event)
    for seconds, checkpoint, _ in h.interruptions:
        yield LogEntry(seconds, "", "continued", f"from checkpoint {checkpoint}")
