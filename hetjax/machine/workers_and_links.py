"""The parts of a simulated machine: workers, the costs of their steps, and links.

All of them are frozen, compare by value, and are checked when built; times are seconds.
"""

import math
import numbers
from dataclasses import KW_ONLY, dataclass
from typing import Any

TOPOLOGIES = ("ring", "tree", "central")


@dataclass(frozen=True)
class Cost:
    """Seconds of one step: fixed + per_example * b + per_nonzero * nonzeros.

    Every local round takes another `per_round` seconds.
    """

    fixed: float  # [s] of every step: kernel launches, the update of the parameters
    per_example: float  # [s/example]
    per_nonzero: float = 0.0  # [s/non-zero] of the step's sparse input
    per_round: float = 0.0  # [s] of every local round: its start and its end

    def __post_init__(self):
        check_at_least_zero("fixed", self.fixed)
        check_at_least_zero("per_example", self.per_example)
        check_at_least_zero("per_nonzero", self.per_nonzero)
        check_at_least_zero("per_round", self.per_round)
        if self.fixed + self.per_example + self.per_nonzero == 0:
            raise ValueError(
                "a Cost of zeros would stop the clock: "
                "set fixed or per_example to a small positive value"
            )

    def seconds(self, batch_size: float, nonzeros: float = 0.0) -> float:
        """Return the seconds of a step of `batch_size` examples with `nonzeros`."""
        return self.fixed + self.per_example * batch_size + self.per_nonzero * nonzeros


@dataclass(frozen=True)
class Drift:
    """A slowly changing speed: at time t, seconds are multiplied by

    1 + amplitude * sin(2 pi (t / period + phase)),    0 <= amplitude < 1.
    """

    amplitude: float = 0.0
    period: float = 1.0  # [s]
    phase: float = 0.0  # [periods]

    def __post_init__(self):
        check_at_least_zero("amplitude", self.amplitude)
        if self.amplitude >= 1:
            raise ValueError(
                f"amplitude must be below 1, got {self.amplitude}: "
                "steps would take no time, or less"
            )
        check_positive("period", self.period)
        _check_finite("phase", self.phase)

    def at(self, time: float) -> float:
        """Return the multiplier at `time` [s]."""
        angle = 2 * math.pi * (time / self.period + self.phase)
        return 1 + self.amplitude * math.sin(angle)


@dataclass(frozen=True)
class Profile:
    """One worker: its name, its kind of device, its place and its speed."""

    name: str
    kind: str  # of device: workers of one kind run the same programs
    cost: Cost
    _: KW_ONLY
    factor: float = 1.0  # multiplies the cost: 1.32 is 32 % slower
    place: tuple[str, ...] = ()  # path from the machine's root, as ("node03",)
    drift: Drift | None = None
    device: str = ""  # that it shares with other workers; "": its own
    curve: tuple[float, ...] = ()  # the device's throughput with 1, 2, ... workers
    contention: float = 1.0  # its steps take this many times as long while all compute
    duty: float = 1.0  # share of a step in which it computes; it sleeps for the rest
    bursts: bool = False  # whether it sleeps after a local round, not after each step
    per_byte: float = 0.0  # [s/byte] to send a model to the link and back
    latency: float = 0.0  # [s] from the dispatch of a round to its begin

    def __post_init__(self):
        for name, kind in {"name": str, "kind": str, "cost": Cost}.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ValueError(f"{name} must be a {kind.__name__}, got {value!r}")
        check_positive("factor", self.factor)
        check_positive("duty", self.duty)
        if self.duty > 1:
            raise ValueError(
                f"duty must be a share of a step, at most 1, got {self.duty}"
            )
        check_at_least_zero("per_byte", self.per_byte)
        check_at_least_zero("latency", self.latency)
        _check_finite("contention", self.contention)
        if self.contention < 1:
            raise ValueError(
                f"contention must be at least 1, got {self.contention}: a worker is "
                "not faster while other workers compute"
            )
        _check_place(self.place)
        for throughput in self.curve:
            check_positive("curve", throughput)
        if self.curve and self.curve[0] != 1:
            raise ValueError(
                f"curve must begin with 1, got {self.curve}: throughputs are relative "
                "to that of one worker"
            )

    def slowdown(self, workers: int) -> float:
        """Return the factor on a step while m workers share the device: m / curve(m).

        The curve is flat beyond its end; without a curve the throughput stays 1.
        """
        if workers <= 1:
            return 1.0
        curve = self.curve or (1.0,)
        return workers / curve[min(workers, len(curve)) - 1]

    def seconds(self, batch_size: float, nonzeros: float, time: float) -> float:
        """Return the seconds, without noise, of a step that starts at `time`."""
        seconds = self.factor * self.cost.seconds(batch_size, nonzeros)
        return seconds if self.drift is None else seconds * self.drift.at(time)


@dataclass(frozen=True, kw_only=True)  # swapped numbers would pass the checks
class Link:
    """The connection of the workers below a place, and the seconds of a merge.

    A merge of n devices whose models have S bytes, over a link of latency L [s] and
    bandwidth B [bytes/s], takes

        ring       2 (n - 1) L + 2 (n - 1) / n * S / B
        tree       2 ceil(log2 n) (L + S / B)
        central    2 L + 2 n S / B

    seconds for both transfers, to the merge and back; one transfer takes half as long.
    A single device sends to a server and fetches from it: 2 (L + S / B) for every
    topology.
    """

    latency: float  # [s]
    bandwidth: float  # [bytes/s]
    topology: str = "ring"  # one of TOPOLOGIES

    def __post_init__(self):
        check_at_least_zero("latency", self.latency)
        check_positive("bandwidth", self.bandwidth)
        if self.topology not in TOPOLOGIES:
            known = ", ".join(TOPOLOGIES)
            raise ValueError(f"unknown topology {self.topology!r}; known: {known}")

    def seconds(self, members: int, num_bytes: float) -> float:
        """Return the seconds of a merge of `members` members with `num_bytes` each."""
        if members < 1:
            raise ValueError(f"a merge needs at least one member, not {members}")
        check_at_least_zero("num_bytes", num_bytes)
        n, latency, copy = members, self.latency, num_bytes / self.bandwidth
        if n == 1:
            return 2 * (latency + copy)
        if self.topology == "ring":
            return 2 * (n - 1) * latency + 2 * (n - 1) / n * copy
        if self.topology == "tree":
            depth = (n - 1).bit_length()  # = ceil(log2 n), without rounding
            return 2 * depth * (latency + copy)
        return 2 * latency + 2 * n * copy


def check_seed(seed: Any) -> None:
    """Raise a ValueError unless `seed` is a whole number of at least 0."""
    if not isinstance(seed, numbers.Integral) or int(seed) < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")


def _check_finite(name: str, value: Any) -> None:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def check_at_least_zero(name: str, value: Any) -> None:
    """Raise a ValueError unless `value` is a finite number of at least 0."""
    _check_finite(name, value)
    if value < 0:
        raise ValueError(f"{name} must be at least 0, got {value!r}")


def check_positive(name: str, value: Any) -> None:
    """Raise a ValueError unless `value` is a finite number above 0."""
    _check_finite(name, value)
    if value <= 0:
        raise ValueError(f"{name} must be above 0, got {value!r}")


def _check_place(place: Any) -> None:
    """Raise unless a place is a tuple of names; ("node03") is a string."""
    names = place if isinstance(place, tuple) else (None,)
    if not all(isinstance(name, str) and name and "/" not in name for name in names):
        raise ValueError(
            f"place must be a tuple of non-empty names without '/', got {place!r}"
        )
