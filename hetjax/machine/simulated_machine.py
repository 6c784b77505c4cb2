"""A simulated machine: workers, links, noise and scripted faults, checked when built.

`Machine.save` and `Machine.load` use JSON files.
"""

import dataclasses
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hetjax.arguments import Bounds, Count, HostSeed, NotNegative, Positive, checked
from hetjax.atomic_files import naming
from hetjax.machine.faults import ScriptedFault, absent_at_first, check_faults
from hetjax.machine.json_records import read_json, to_json
from hetjax.machine.types import WorkerInfo
from hetjax.machine.workers_and_links import Link, Profile
from hetjax.summaries import counted, html_of, two_lines

MAX_WORKERS = 100_000  # each has a replica of the model
MAX_NOISE = 3.0  # half of all steps then take at most a hundredth of the mean


@checked
@dataclass(frozen=True)
class Calibration:
    """The source of a calibrated machine, and the errors of its fit."""

    model: str  # paths, shapes and dtypes of the parameters
    data: str
    batch_sizes: tuple[int, ...]
    error: float  # median |fitted / measured - 1| over the local rounds
    worst: float  # the 90th percentile
    local_rounds: int  # number that was measured
    versions: str


@checked
@dataclass(frozen=True, repr=False)
class Machine:
    """Workers, the links between them, and the noise of their steps.

    The keys of `links` are places, joined by "/"; "" is the root, which every machine
    has. A step's seconds are multiplied by exp(noise * z - noise^2 / 2) with a standard
    normal z: lognormal with mean one.
    """

    name: str
    workers: tuple[Profile, ...]
    links: dict[str, Link]
    noise: Annotated[float, Bounds(low=0, high=MAX_NOISE)] = 0.0
    seed: HostSeed = 0
    faults: tuple[ScriptedFault, ...] = ()
    calibration: Calibration | None = None  # of a measured machine

    _example = "hetjax.machine.preset('v100x4')"

    def __post_init__(self):
        self._check_workers()
        self._check_links()
        check_faults(self.faults, [worker.name for worker in self.workers])

    _repr_html_ = html_of

    def __repr__(self) -> str:
        kinds = Counter((w.kind, w.factor) for w in self.workers)
        workers = ", ".join(
            f"{n} x {kind}" + f" ({factor:.3g} times as slow)" * (factor != 1)
            for (kind, factor), n in kinds.items()
        )
        links = ", ".join(
            f"{place or 'root'} {_bandwidth(link)}"
            for place, link in self.links.items()
        )
        return two_lines(
            f"Machine {self.name}: {counted(len(self.workers), 'simulated worker')}",
            (
                workers,
                f"links {links}",
                f"steps vary by {self.noise:.0%}" * bool(self.noise),
                counted(len(self.faults), "scripted fault") * bool(self.faults),
                "measured" * (self.calibration is not None),
            ),
        )

    @checked
    def worker_infos(self, nonzeros_per_example: NotNegative) -> tuple[WorkerInfo, ...]:
        """Return the workers as policies see them: without drift and noise."""
        absent = absent_at_first(self.faults)
        infos = (
            _worker_info(index, worker, nonzeros_per_example)
            for index, worker in enumerate(self.workers)
        )
        return tuple(i._replace(present=i.name not in absent) for i in infos)

    def link_of(self, members: Sequence[int]) -> str:
        """Return the key of the deepest link whose place has all members below it."""
        if not members:
            raise ValueError("a merge needs at least one member")
        places = [self.workers[member].place for member in members]
        # all places share the common prefix of the smallest and the largest place
        place = _common_prefix(min(places), max(places))
        while "/".join(place) not in self.links:  # ends at "", the root
            place = place[:-1]
        return "/".join(place)

    @checked
    def with_workers_per_device(
        self, number: Count, curve: Sequence[Positive] | None = None
    ) -> "Machine":
        """Return the same devices with `number` workers on each.

        `curve` is a device's throughput with 1, 2, ... workers relative to one worker,
        by default the device's own curve. It is flat beyond its end; without a curve
        the workers share the speed of one. Transfers between workers of one device take
        no time.
        """
        check_num_workers("with_workers_per_device", number * len(self.workers))
        workers = tuple(
            dataclasses.replace(
                worker,
                name=f"{worker.name}/{index}" if number > 1 else worker.name,
                device=worker.device or worker.name,
                curve=tuple(map(float, worker.curve if curve is None else curve)),
            )
            for worker in self.workers
            for index in range(number)
        )
        return dataclasses.replace(self, workers=workers)

    def subset(self, names: Sequence[str]) -> "Machine":
        """Return the machine with these workers only, and with less contention.

        contention' = 1 + (contention - 1) (n' - 1) / (n - 1) for n' of n workers.
        """
        check_chosen(names, [w.name for w in self.workers])
        chosen = set(names)
        share = (len(chosen) - 1) / max(1, len(self.workers) - 1)

        def less(contention: float) -> float:
            return 1 + (contention - 1) * share

        workers = tuple(
            dataclasses.replace(
                w,
                contention=less(w.contention),
                contention_range=tuple(map(less, w.contention_range)),
            )
            for w in self.workers
            if w.name in chosen
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
            faults=tuple(f for f in self.faults if f.worker in chosen),
        )

    def device_of(self, worker: int) -> str:
        """Return the name of a worker's device."""
        return self.workers[worker].device or self.workers[worker].name

    def without_noise(self) -> "Machine":
        """Return the machine without noise, whose steps take the expected seconds."""
        return dataclasses.replace(self, noise=0.0)

    def extremes(self) -> "tuple[Machine, Machine] | None":
        """Return the machine with the least and with the most contention measured.

        None if one speed is possible: then contention hardly varied, or there is none.
        """
        if all(len(set(w.contention_range)) < 2 for w in self.workers):
            return None

        def at(end: int) -> Machine:
            workers = tuple(
                dataclasses.replace(
                    w,
                    contention=w.contention_range[end]
                    if w.contention_range
                    else w.contention,
                    contention_range=(),
                )
                for w in self.workers
            )
            return dataclasses.replace(self, workers=workers)

        return at(0), at(1)

    def record(self) -> dict[str, Any]:
        """Return the machine as a nested dict, for results.json."""
        return dataclasses.asdict(self)

    def save(self, path: str | Path) -> None:
        """Write the machine to a JSON file."""
        text = to_json(self)
        with naming(path):
            Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Machine":
        """Read a machine from a JSON file, written by `save` or manually."""
        return read_json(cls, path)

    def _check_workers(self) -> None:
        if not self.workers:
            raise ValueError("a machine needs at least one worker")
        names = set()
        for worker in self.workers:
            if worker.name in names:
                raise ValueError(f"two workers have the name {worker.name!r}")
            names.add(worker.name)

    def _check_links(self) -> None:
        if not isinstance(self.links, dict):
            raise ValueError(
                f"links={self.links!r}: pass a dictionary, {{'': Link(...)}}"
            )
        if "" not in self.links:
            raise ValueError('links has no root link: add one with the key ""')
        places = {
            "/".join(worker.place[:depth])
            for worker in self.workers
            for depth in range(len(worker.place) + 1)
        }
        for key in self.links:
            if key not in places:  # probably misspelled: no merge would use it
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


def _bandwidth(link: Link) -> str:
    if link.bandwidth >= 1e15:  # of a fit, which charges bytes to the workers
        return "of any bandwidth"
    return f"{link.bandwidth / 1e9:.3g} GB/s"


def _common_prefix(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    same = map(operator.eq, a, b)
    return a[: next((depth for depth, equal in enumerate(same) if not equal), len(a))]


def check_chosen(chosen: Sequence[str], names: Sequence[str]) -> None:
    """Raise for a chosen worker that is not one of `names`."""
    for name in chosen:
        if name not in names:
            raise ValueError(
                f"there is no worker {name!r}; the workers are {list(names)}"
            )


def check_num_workers(what: str, number: int) -> None:
    """Raise for more workers than memory can hold."""
    if number > MAX_WORKERS:
        raise ValueError(
            f"{what}: {number} workers are too many, use at most {MAX_WORKERS:,}: "
            "each has a replica of the model"
        )
