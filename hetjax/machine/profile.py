"""What a simulated machine is made of: workers with a cost of a step, and links.

Everything here is frozen, compares by value, and is checked when it is built; times
are seconds. `Machine.save` and `Machine.load` keep a machine in a JSON file.
"""

import dataclasses
import math
import numbers
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetjax.machine.encoding import read_json, to_json
from hetjax.machine.types import WorkerInfo

MOST_WORKERS = 100_000  # each has a replica of the model
MOST_NOISE = 3.0  # half of all steps then take a hundredth of the expected seconds
TOPOLOGIES = ("ring", "tree", "central")


@dataclass(frozen=True)
class Cost:
    """Seconds of one step: fixed + per_example * b + per_nonzero * nonzeros.

    A work of several steps takes `per_round` besides.
    """

    fixed: float  # [s] of every step: launches, and the update of the parameters
    per_example: float  # [s/example]
    per_nonzero: float = 0.0  # [s/non-zero] of the step's sparse input
    per_round: float = 0.0  # [s] of every work: to hand it over, and wait for its end

    def __post_init__(self):
        _check_at_least_zero("fixed", self.fixed)
        _check_at_least_zero("per_example", self.per_example)
        _check_at_least_zero("per_nonzero", self.per_nonzero)
        _check_at_least_zero("per_round", self.per_round)
        if self.fixed + self.per_example + self.per_nonzero == 0:
            raise ValueError(
                "a Cost of nothing but zeros would keep the clock from moving; "
                "give fixed or per_example a small positive value"
            )

    def seconds(self, batch_size: float, nonzeros: float = 0.0) -> float:
        """Seconds of one step on `batch_size` examples with so many non-zeros."""
        return self.fixed + self.per_example * batch_size + self.per_nonzero * nonzeros


@dataclass(frozen=True)
class Drift:
    """A speed that changes slowly: seconds are multiplied, at the time t, by

    1 + amplitude * sin(2 pi (t / period + phase)),    0 <= amplitude < 1.
    """

    amplitude: float = 0.0
    period: float = 1.0  # [s]
    phase: float = 0.0  # [periods]

    def __post_init__(self):
        _check_at_least_zero("amplitude", self.amplitude)
        if self.amplitude >= 1:
            raise ValueError(
                f"amplitude must be below 1, is {self.amplitude}: "
                "steps would take no time, or less"
            )
        _check_positive("period", self.period)
        _check_finite("phase", self.phase)

    def at(self, time: float) -> float:
        """The multiplier at `time` [s]."""
        angle = 2 * math.pi * (time / self.period + self.phase)
        return 1 + self.amplitude * math.sin(angle)


@dataclass(frozen=True)
class Profile:
    """One worker: its name, its kind of device, where it is, and how fast it is."""

    name: str
    kind: str  # of device: workers of one kind run the same compiled program
    cost: Cost
    factor: float = 1.0  # multiplies the cost: 1.32 is 32 % slower than it says
    place: tuple[str, ...] = ()  # path from the machine's root, as ("node03",)
    drift: Drift | None = None
    device: str = ""  # that it shares with others; "": it has one of its own
    curve: tuple[float, ...] = ()  # the device's throughput with 1, 2, ... of them
    contention: float = 1.0  # its steps take so many times as long while all compute
    duty: float = 1.0  # share of its steps in which it computes, and does not rest
    bursts: bool = (
        False  # does it rest behind a work, and not behind each of its steps?
    )
    per_byte: float = 0.0  # [s/byte] of a model's way to the link and back

    def __post_init__(self):
        _check_positive("factor", self.factor)
        _check_positive("duty", self.duty)
        if self.duty > 1:
            raise ValueError(f"duty is a share of a step, at most 1, is {self.duty}")
        _check_at_least_zero("per_byte", self.per_byte)
        _check_finite("contention", self.contention)
        if self.contention < 1:
            raise ValueError(
                f"contention must be at least 1, is {self.contention}: others that "
                "compute make nobody faster"
            )
        _check_place(self.place)
        for throughput in self.curve:
            _check_positive("curve", throughput)
        if self.curve and self.curve[0] != 1:
            raise ValueError(
                f"curve must begin with 1, is {self.curve}: throughputs are relative "
                "to that of one worker"
            )

    def slowdown(self, workers: int) -> float:
        """How much longer a step takes while so many share the device: m / curve(m).

        Beyond its end the curve is flat; so it is where there is none.
        """
        if workers <= 1:
            return 1.0
        curve = self.curve or (1.0,)
        return workers / curve[min(workers, len(curve)) - 1]

    def seconds(self, batch_size: float, nonzeros: float, time: float) -> float:
        """Seconds, without noise, of a step that starts at `time`."""
        seconds = self.factor * self.cost.seconds(batch_size, nonzeros)
        return seconds if self.drift is None else seconds * self.drift.at(time)


FAULTS = ("kill", "slow", "join")
AS_SCRIPTED = "as scripted"  # why an incident's event took place


@dataclass(frozen=True)
class ScriptedFault:
    """Something that happens to a worker at a time that a machine's script says.

    "kill": it is lost, with what it did not merge. "slow": its steps take `factor`
    times as long from then on (1 ends it). "join": it takes part from then on; who
    was not killed before is absent until then.
    """

    seconds: float
    what: str  # one of INCIDENTS
    worker: str  # its name
    factor: float = 1.0

    def __post_init__(self):
        _check_at_least_zero("seconds", self.seconds)
        _check_positive("factor", self.factor)
        if self.what not in FAULTS:
            known = ", ".join(FAULTS)
            raise ValueError(f"unknown incident {self.what!r}; known: {known}")


def absent_at_first(faults: Sequence[ScriptedFault]) -> set[str]:
    """Names of the workers whose first incident, but for slowness, is to join."""
    first: dict[str, str] = {}
    for fault in sorted(faults, key=lambda i: i.seconds):
        if fault.what != "slow":
            first.setdefault(fault.worker, fault.what)
    return {worker for worker, what in first.items() if what == "join"}


def check_faults(faults: Sequence[ScriptedFault], names: Sequence[str]) -> None:
    """A ValueError for an incident of nobody, or a run without anybody."""
    for fault in faults:
        if fault.worker not in names:
            known = ", ".join(names[:8])
            raise ValueError(
                f"an incident of {fault.worker!r}, who is no worker; those are {known}"
            )
    if absent_at_first(faults) >= set(names):
        raise ValueError("no worker is there when the run begins: let one not join")


def check_chosen(chosen: Sequence[str], names: Sequence[str]) -> None:
    """A ValueError for a chosen worker who is none of these."""
    for name in chosen:
        if name not in names:
            raise ValueError(f"there is no worker {name!r}; there are {list(names)}")


@dataclass(frozen=True)
class Link:
    """What connects the workers below one place, and what a merge over it takes.

    A merge of n devices whose models have S bytes, over a link of latency L [s] and
    bandwidth B [bytes/s], takes

        ring       2 (n - 1) L + 2 (n - 1) / n * S / B
        tree       2 ceil(log2 n) (L + S / B)
        central    2 L + 2 n S / B

    seconds: two trips, there and back; one trip is half of it. One device alone sends
    to a server and fetches from it, 2 (L + S / B), whatever the topology.
    """

    latency: float  # [s]
    bandwidth: float  # [bytes/s]
    topology: str = "ring"  # one of TOPOLOGIES

    def __post_init__(self):
        _check_at_least_zero("latency", self.latency)
        _check_positive("bandwidth", self.bandwidth)
        if self.topology not in TOPOLOGIES:
            known = ", ".join(TOPOLOGIES)
            raise ValueError(f"unknown topology {self.topology!r}; known: {known}")

    def seconds(self, members: int, num_bytes: float) -> float:
        """Seconds of a merge of so many members, `num_bytes` each."""
        if members < 1:
            raise ValueError(f"a merge needs at least one member, not {members}")
        _check_at_least_zero("num_bytes", num_bytes)
        n, latency, copy = members, self.latency, num_bytes / self.bandwidth
        if n == 1:
            return 2 * (latency + copy)
        if self.topology == "ring":
            return 2 * (n - 1) * latency + 2 * (n - 1) / n * copy
        if self.topology == "tree":
            depth = (n - 1).bit_length()  # = ceil(log2 n), without rounding
            return 2 * depth * (latency + copy)
        return 2 * latency + 2 * n * copy


@dataclass(frozen=True)
class Calibration:
    """What a machine was measured with, and how well its numbers fit."""

    model: str  # paths, shapes and dtypes of the parameters
    data: str
    batch_sizes: tuple[int, ...]
    error: float  # median |fitted / measured - 1| over the measured works
    worst: float  # the 90th percentile
    local_rounds: int  # that were measured
    versions: str


@dataclass(frozen=True)
class Machine:
    """Workers, the links between them, and how noisy their steps are.

    The keys of `links` are places, joined by "/"; "" is the root, which every machine
    has. A step's seconds are multiplied by exp(noise * z - noise^2 / 2), z a standard
    normal number: lognormal with mean one.
    """

    name: str
    workers: tuple[Profile, ...]
    links: dict[str, Link]
    noise: float = 0.0
    seed: int = 0
    faults: tuple[ScriptedFault, ...] = ()  # what happens to workers, and when
    calibration: Calibration | None = None  # of a measured machine

    def __post_init__(self):
        _check_at_least_zero("noise", self.noise)
        if self.noise > MOST_NOISE:
            raise ValueError(
                f"noise must be at most {MOST_NOISE:g}, is {self.noise!r}: steps are "
                "lognormal with mean one, and with more noise nearly all take no time"
            )
        check_seed(self.seed)
        self._check_workers()
        self._check_links()
        check_faults(self.faults, [worker.name for worker in self.workers])

    def worker_infos(self, nonzeros_per_example: float) -> tuple[WorkerInfo, ...]:
        """What policies may know: expected seconds, without drift and noise."""
        _check_at_least_zero("nonzeros_per_example", nonzeros_per_example)
        absent = absent_at_first(self.faults)
        infos = (
            _worker_info(index, worker, nonzeros_per_example)
            for index, worker in enumerate(self.workers)
        )
        return tuple(i._replace(present=i.name not in absent) for i in infos)

    def link_of(self, members: Sequence[int]) -> str:
        """The key of the deepest link with all the members below its place."""
        if not members:
            raise ValueError("a merge needs at least one member")
        places = [self.workers[member].place for member in members]
        # What the smallest and the largest have in common, all have.
        place = _common_prefix(min(places), max(places))
        while "/".join(place) not in self.links:  # ends at "", the root
            place = place[:-1]
        return "/".join(place)

    def with_workers_per_device(
        self, number: int, curve: Sequence[float] = ()
    ) -> "Machine":
        """The same devices with so many workers on each of them.

        `curve` is a device's throughput with 1, 2, ... of them, relative to one (flat
        behind its end; without one they share the speed of one). What the workers of
        a device send each other is free.
        """
        if not isinstance(number, numbers.Integral) or number < 1:
            raise ValueError(
                f"with_workers_per_device({number!r}): give a whole number, at least 1"
            )
        check_num_workers("with_workers_per_device", number * len(self.workers))
        workers = tuple(
            dataclasses.replace(
                worker,
                name=f"{worker.name}/{index}" if number > 1 else worker.name,
                device=worker.device or worker.name,
                curve=tuple(float(throughput) for throughput in curve),
            )
            for worker in self.workers
            for index in range(number)
        )
        return dataclasses.replace(self, workers=workers)

    def subset(self, names: Sequence[str]) -> "Machine":
        """The same machine with these workers only, which contend accordingly less."""
        check_chosen(names, [w.name for w in self.workers])
        share = (len(set(names)) - 1) / max(1, len(self.workers) - 1)
        workers = tuple(
            dataclasses.replace(w, contention=1 + (w.contention - 1) * share)
            for w in self.workers
            if w.name in names
        )
        places = {
            "/".join(w.place[:depth])
            for w in workers
            for depth in range(len(w.place) + 1)
        }
        return dataclasses.replace(
            self,
            workers=workers,
            links={key: link for key, link in self.links.items() if key in places},
            faults=tuple(i for i in self.faults if i.worker in names),
        )

    def device_of(self, worker: int) -> str:
        """The name of the device that a worker runs on."""
        return self.workers[worker].device or self.workers[worker].name

    def without_noise(self) -> "Machine":
        """The same machine with steps of exactly the expected length."""
        return dataclasses.replace(self, noise=0.0)

    def record(self) -> dict[str, Any]:
        """The machine in words, for the record."""
        return dataclasses.asdict(self)

    def save(self, path: str | Path) -> None:
        """Writes the machine to a JSON file."""
        Path(path).write_text(to_json(self), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Machine":
        """Reads a machine that `save`, or a person, wrote."""
        return read_json(cls, path)

    def _check_workers(self) -> None:
        if not isinstance(self.workers, tuple):
            raise ValueError("workers must be a tuple of Profile")
        if not self.workers:
            raise ValueError("a machine needs at least one worker")
        names = set()
        for worker in self.workers:
            if worker.name in names:
                raise ValueError(f"two workers have the name {worker.name!r}")
            names.add(worker.name)

    def _check_links(self) -> None:
        if "" not in self.links:
            raise ValueError('links has no root link: give one with the key ""')
        places = {
            "/".join(worker.place[:depth])
            for worker in self.workers
            for depth in range(len(worker.place) + 1)
        }
        for key in self.links:
            if key not in places:  # most likely misspelt: it would never be used
                known = ", ".join(repr(place) for place in sorted(places)[:8])
                raise ValueError(
                    f"no worker is below the link {key!r}; places are: {known}"
                )


def _worker_info(index: int, worker: Profile, nonzeros_per_example: float):
    cost = worker.cost
    per_example = cost.per_example + cost.per_nonzero * nonzeros_per_example
    return WorkerInfo(
        index=index,
        name=worker.name,
        kind=worker.kind,
        place=worker.place,
        fixed=worker.factor * cost.fixed,
        per_example=worker.factor * per_example,
        device=worker.device or worker.name,
    )


def _common_prefix(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    same = map(operator.eq, a, b)
    return a[: next((depth for depth, equal in enumerate(same) if not equal), len(a))]


def check_num_workers(what: str, number: int) -> None:
    """Raises where so many workers are too many to hold."""
    if number > MOST_WORKERS:
        raise ValueError(
            f"{what}: {number} workers are too many, give at most {MOST_WORKERS:,}: "
            "each has a replica of the model"
        )


def check_seed(seed: Any) -> None:
    """Raises where `seed` is no whole number of at least 0."""
    if not isinstance(seed, numbers.Integral) or int(seed) < 0:
        raise ValueError(f"seed must be a whole number of at least 0, is {seed!r}")


def _check_finite(name: str, value: Any) -> None:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, is {value!r}")


def _check_at_least_zero(name: str, value: Any) -> None:
    _check_finite(name, value)
    if value < 0:
        raise ValueError(f"{name} must be at least 0, is {value!r}")


def _check_positive(name: str, value: Any) -> None:
    _check_finite(name, value)
    if value <= 0:
        raise ValueError(f"{name} must be above 0, is {value!r}")


def _check_place(place: Any) -> None:
    """A place is a tuple of names; ("node03") without its comma is a string."""
    names = place if isinstance(place, tuple) else (None,)
    if not all(isinstance(name, str) and name and "/" not in name for name in names):
        raise ValueError(
            f"place must be a tuple of non-empty names without '/', is {place!r}"
        )
