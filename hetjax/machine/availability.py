"""Availability: workers that come and go by a trace or by chance, or fail (host).

Each function returns a machine with more scripted faults, a "kill" where an absence of
a worker begins and a "join" where it ends. A worker that is switched off loses its
round and its unmerged updates, as any killed worker does. The functions combine with
each other and with the machine's own faults: a worker takes part while all of them let
it.
"""

import bisect
import csv
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hetjax.arguments import HostSeed, NotNegative, Positive, checked
from hetjax.machine.faults import ScriptedFault, absent_at_first
from hetjax.machine.simulated_machine import Machine

MOST_DRAWN = 1_000_000  # faults: each is stored, and written to results.json
COLUMNS = ["worker", "on", "off"]
_PRESENCE, _FAILURES = 0, 1  # what is drawn: each has generators of its own

Presence = Mapping[str, Sequence[tuple[float, float | None]]]
# [begin, end) of an absence [s]: from -inf if absent at first, to inf if forever
_Absence = tuple[float, float]


class _Interval(NamedTuple):
    """A worker's presence from `on` to `off` [s], and its place in the input."""

    where: str
    worker: str
    on: float
    off: float


@checked
def with_presence(machine: Machine, presence: Presence | str | Path) -> Machine:
    """Return the machine with workers that are on and off at these times.

    `presence` maps names of workers to (on, off) intervals [s] in order, or is the path
    of a CSV file with the columns worker, on, off and a header. An `off` of infinity,
    None, or empty in a file, is the end of the run. Workers that are not named are
    always present. An interval that begins where the previous
    one ends is a restart: the round is lost, and the worker joins again at once.

    Errors: a ValueError that names the entry, or the file and line, of an unknown
    worker or an overlapping interval; or a worker that is never present.

    >>> from hetjax.machine import preset
    >>> machine = with_presence(preset("v100x2"), {"gpu1": [(0, 2), (5, None)]})
    >>> [(fault.seconds, fault.what) for fault in machine.faults]
    [(2.0, 'kill'), (5.0, 'join')]
    """
    names = [worker.name for worker in machine.workers]
    if isinstance(presence, Mapping):
        found: dict[str, list[_Interval]] = {name: [] for name in presence}
        intervals = _of_mapping(presence)
    else:
        found, intervals = {}, _of_file(Path(presence))
    _check_names(found, names, "presence")
    for interval in intervals:
        _check_names([interval.worker], names, interval.where)
        before = found.setdefault(interval.worker, [])
        _check_order(interval, before)
        before.append(interval)
    return _with_absences(machine, {name: _gaps(found[name]) for name in found})


@checked
def with_drawn_presence(
    machine: Machine,
    *,
    mean_on: Positive,
    mean_off: Positive,
    seconds: Positive,
    seed: HostSeed,
) -> Machine:
    """Return the machine with workers that are on and off for exponential times.

    Times on and off have the means `mean_on` and `mean_off` [s]. At 0 s a worker is
    present with probability mean_on / (mean_on + mean_off), as at any other time. Each
    worker's times are drawn from (seed, worker), independent of the other workers, with
    one exception: if none is present at 0 s, the one that would join first is, until
    its first time on ends. Absences that would begin after `seconds` are not drawn:
    from then on workers come back, and stay.
    """
    _check_number(len(machine.workers) * seconds / (mean_on + mean_off))
    present = {worker.name for worker in machine.workers}
    present -= absent_at_first(machine.faults)
    drawn = {
        worker.name: _drawn_absences(
            _generator(seed, index, _PRESENCE), mean_on, mean_off, seconds
        )
        for index, worker in enumerate(machine.workers)
    }
    first_ends = {name: _end_of_first(drawn[name]) for name in drawn if name in present}
    if min(first_ends.values()) > 0:  # all of them are absent at first
        del drawn[min(first_ends, key=first_ends.__getitem__)][0]
    return _with_absences(machine, drawn)


@checked
def with_failures(
    machine: Machine,
    *,
    rate: NotNegative,
    seconds: Positive,
    seed: HostSeed,
    repair: Positive | None = None,
) -> Machine:
    """Return the machine with workers that fail at random times until `seconds`.

    A present worker fails with probability rate dt in each dt seconds (a Poisson
    process), drawn from (seed, worker), independent of the other workers. It joins
    again after `repair` seconds; with None it is lost for good.
    """
    if rate == 0:
        return machine
    if repair is not None:
        _check_number(len(machine.workers) * seconds / (1 / rate + repair))
    own = _own_absences(machine)
    failures = {
        worker.name: _drawn_failures(
            _generator(seed, index, _FAILURES),
            rate,
            math.inf if repair is None else repair,
            seconds,
            own.get(worker.name, []),
        )
        for index, worker in enumerate(machine.workers)
    }
    return _with_absences(machine, failures)


# --- intervals ------------------------------------------------------------------------


def _of_mapping(presence: Presence) -> Iterator[_Interval]:
    """Yield the intervals of a mapping."""
    for name, pairs in presence.items():
        if not isinstance(pairs, Iterable):
            raise ValueError(
                f"presence[{name!r}]={pairs!r}: pass a sequence of (on, off) intervals"
            )
        for number, pair in enumerate(pairs):
            where = f"presence[{name!r}][{number}]"
            try:
                on, off = pair
                end = math.inf if off is None else float(off)
                yield _Interval(where, name, float(on), end)
            except (TypeError, ValueError):
                raise ValueError(
                    f"{where}={pair!r}: pass a pair of numbers, (on, off) in seconds"
                ) from None


def _of_file(path: Path) -> Iterator[_Interval]:
    """Yield the intervals of a CSV file; errors name the file and line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, strict=True)
        try:
            for fields in lines:
                where = f"{path}, line {lines.line_num}"
                fields = [field.strip() for field in fields]
                if lines.line_num == 1 and fields != COLUMNS:
                    raise ValueError(
                        f"{where}: begin the file with the header {','.join(COLUMNS)}"
                    )
                if lines.line_num > 1 and any(fields):
                    yield _of_line(where, fields)
        except UnicodeDecodeError:
            raise ValueError(f"{path}: not a text file in UTF-8") from None
        except csv.Error as error:
            raise ValueError(f"{path}, line {lines.line_num}: {error}") from None


def _of_line(where: str, fields: list[str]) -> _Interval:
    try:
        worker, on, off = fields
        return _Interval(where, worker, float(on), float(off or math.inf))
    except ValueError:
        raise ValueError(
            f"{where}: {','.join(fields)!r} is not a worker and two times in seconds"
        ) from None


def _check_names(given: Sequence[str] | Mapping, names: list[str], where: str) -> None:
    """Raise a ValueError for a worker that the machine does not have."""
    for name in given:
        if name not in names:
            known = ", ".join(names[:8])
            raise ValueError(
                f"{where}: there is no worker {name!r}; the workers are {known}"
            )


def _check_order(interval: _Interval, before: list[_Interval]) -> None:
    """Raise a ValueError unless an interval comes after the worker's previous ones."""
    where, worker, on, off = interval
    if not 0 <= on < off:  # also refuses NaN
        raise ValueError(f"{where}: on={on:g}, off={off:g}: pass 0 <= on < off [s]")
    if before and on < before[-1].off:
        raise ValueError(
            f"{where}: {worker} is on from {on:g} s, but also from "
            f"{before[-1].on:g} to {before[-1].off:g} s: pass its intervals in order, "
            "without overlaps"
        )


def _gaps(intervals: list[_Interval]) -> list[_Absence]:
    """Return the absences before, between and after intervals of presence."""
    begins = [-math.inf, *(i.off for i in intervals if i.off < math.inf)]
    ends = [i.on for i in intervals]
    if not intervals or intervals[-1].off < math.inf:
        ends.append(math.inf)
    return [gap for gap in zip(begins, ends, strict=True) if gap[1] > 0]


# --- draws ----------------------------------------------------------------------------


def _generator(seed: int, worker: int, what: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence((seed, worker, what)))


def _drawn_absences(
    rng: np.random.Generator, mean_on: float, mean_off: float, seconds: float
) -> list[_Absence]:
    absences, time = [], 0.0
    if rng.random() >= mean_on / (mean_on + mean_off):
        # what is left of an exponential time is exponential, too
        time = rng.exponential(mean_off)
        absences.append((-math.inf, time))
    while (begin := time + rng.exponential(mean_on)) < seconds:
        time = begin + rng.exponential(mean_off)
        absences.append((begin, time))
    return absences


def _drawn_failures(
    rng: np.random.Generator,
    rate: float,
    repair: float,
    seconds: float,
    own: list[_Absence],
) -> list[_Absence]:
    """Return the repairs of a worker; only while it is present it fails."""
    repairs, time = [], 0.0
    begins = [begin for begin, _ in own]
    while (time := time + rng.exponential(1 / rate)) < seconds:
        before = bisect.bisect_right(begins, time) - 1
        if before >= 0 and time < own[before][1]:
            time = own[before][1]  # then the process begins anew: it has no memory
        else:
            repairs.append((time, time + repair))
            time += repair
    return repairs


def _end_of_first(absences: list[_Absence]) -> float:
    """Return the time at which a worker joins that is absent at first; else -inf."""
    absent = absences and absences[0][0] == -math.inf
    return absences[0][1] if absent else -math.inf


def _check_number(absences: float) -> None:
    """Raise a ValueError if drawn absences would be too many."""
    if 2 * absences > MOST_DRAWN:
        raise ValueError(
            f"this draws about {2 * absences:.2g} faults, at most {MOST_DRAWN:,}: pass "
            "fewer seconds, longer times on, or a lower rate"
        )


# --- absences and faults --------------------------------------------------------------


def _own_absences(machine: Machine) -> dict[str, list[_Absence]]:
    """Return the absences of workers that the machine's faults cause, in order."""
    found: dict[str, list[_Absence]] = {}
    since = dict.fromkeys(absent_at_first(machine.faults), -math.inf)
    for fault in sorted(machine.faults, key=lambda fault: fault.seconds):
        if fault.what == "kill":
            since.setdefault(fault.worker, fault.seconds)
        elif fault.what == "join" and fault.worker in since:
            absence = since.pop(fault.worker), fault.seconds
            found.setdefault(fault.worker, []).append(absence)
    for worker, begin in since.items():
        found.setdefault(worker, []).append((begin, math.inf))
    return found


def _with_absences(machine: Machine, absences: Mapping[str, list[_Absence]]) -> Machine:
    """Return the machine whose workers are absent at these times, too."""
    own = _own_absences(machine)
    absences = {
        name: _union([*own.get(name, []), *more])
        for name, more in absences.items()
        if more
    }
    faults = [f for f in machine.faults if f.what == "slow" or f.worker not in absences]
    for name, spans in absences.items():
        if spans[0] == (-math.inf, math.inf):
            raise ValueError(
                f"worker {name!r} is never present: let it join, or leave it out "
                "(Machine.subset); for drawn times, try another seed"
            )
        faults += _faults(name, spans)
    if absent_at_first(faults) >= {worker.name for worker in machine.workers}:
        raise ValueError(
            "no worker is present at 0 s, where the run begins: let an interval begin "
            "at 0"
        )
    faults.sort(key=lambda fault: fault.seconds)
    return dataclasses.replace(machine, faults=tuple(faults))


def _union(absences: list[_Absence]) -> list[_Absence]:
    """Return the same times as disjoint absences in order; empty ones are restarts."""
    merged: list[_Absence] = []
    for begin, end in sorted(absences):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def _faults(name: str, absences: list[_Absence]) -> Iterator[ScriptedFault]:
    for begin, end in absences:
        if begin > -math.inf:
            yield ScriptedFault(begin, "kill", name)
        if end < math.inf:
            yield ScriptedFault(end, "join", name)
