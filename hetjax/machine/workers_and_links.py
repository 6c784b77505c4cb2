"""The parts of a simulated machine: workers, the costs of their steps, and links.

All of them are frozen, compare by value, and are checked when built; times are seconds.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from hetjax.arguments import (
    Bounds,
    Fraction,
    NotNegative,
    Positive,
    PositiveShare,
    checked,
)

Topology = Literal["ring", "tree", "central"]


@checked
@dataclass(frozen=True)
class Cost:
    """Seconds of one step: fixed + per_example * b + per_nonzero * nonzeros.

    Every local round takes another `per_round` seconds.
    """

    fixed: NotNegative  # [s] of every step: its launches and the parameters' update
    per_example: NotNegative  # [s/example]
    per_nonzero: NotNegative = 0.0  # [s/non-zero] of the step's sparse input
    per_round: NotNegative = 0.0  # [s] of every local round: its start and its end

    def __post_init__(self):
        if self.fixed + self.per_example + self.per_nonzero == 0:
            raise ValueError(
                "a Cost of zeros would stop the clock: "
                "set fixed or per_example to a small positive value"
            )

    def seconds(self, batch_size: float, nonzeros: float = 0.0) -> float:
        """Return the seconds of a step of `batch_size` examples with `nonzeros`."""
        return self.fixed + self.per_example * batch_size + self.per_nonzero * nonzeros


@checked
@dataclass(frozen=True)
class Drift:
    """A slowly changing speed: at time t, seconds are multiplied by

    1 + amplitude * sin(2 pi (t / period + phase)),    0 <= amplitude < 1.
    """

    amplitude: Fraction = 0.0
    period: Positive = 1.0  # [s]
    phase: float = 0.0  # [periods]

    def at(self, time: float) -> float:
        """Return the multiplier at `time` [s]."""
        angle = 2 * math.pi * (time / self.period + self.phase)
        return 1 + self.amplitude * math.sin(angle)


@checked
@dataclass(frozen=True)
class Profile:
    """One worker: its name, its kind of device, its place and its speed."""

    name: str
    kind: str  # of device: workers of one kind run the same programs
    cost: Cost
    _: KW_ONLY
    factor: Positive = 1.0  # multiplies the cost: 1.32 is 32 % slower
    place: tuple[str, ...] = ()  # path from the machine's root, as ("node03",)
    drift: Drift | None = None
    device: str = ""  # that it shares with other workers; "": its own
    curve: tuple[Positive, ...] = ()  # the device's throughput with 1, 2, ... workers
    # its steps take this many times as long while all compute
    contention: Annotated[float, Bounds(low=1)] = 1.0
    # (least, most): the middle half of the measured rounds; () if it hardly varied
    contention_range: tuple[Positive, ...] = ()
    duty: PositiveShare = 1.0  # of a step in which it computes; then it sleeps
    bursts: bool = False  # whether it sleeps after a local round, not after each step
    per_byte: NotNegative = 0.0  # [s/byte] to send a model to the link and back
    latency: NotNegative = 0.0  # [s] from the dispatch of a round to its begin

    def __post_init__(self):
        if not all(name and "/" not in name for name in self.place):
            raise ValueError(
                f"place={self.place}: pass a tuple of non-empty names without '/'"
            )
        ends = self.contention_range
        between = [1.0, *ends[:1], self.contention, *ends[1:]]
        if len(ends) not in (0, 2) or sorted(between) != between:
            raise ValueError(
                f"contention_range={self.contention_range}: pass two numbers from 1, "
                f"with contention={self.contention} between them"
            )
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


@checked
@dataclass(frozen=True, kw_only=True)  # swapped numbers would pass the checks
class Link:
    """The connection of the workers below a place, and the seconds of a merge.

    A merge of n devices whose models have S bytes, over a link of latency L [s] and
    bandwidth B [bytes/s], takes

        ring       2 (n - 1) L + 2 (n - 1) / n * S / B
        tree       2 ceil(log2 n) (L + S / B)
        central    2 L + 2 n S / B

    seconds for both transfers, to the merge and back; one transfer takes half as long.
    With another `down_bandwidth`, the half of the way back is that at this bandwidth.
    A single device sends to a server and fetches from it: 2 (L + S / B) for every
    topology.
    """

    latency: NotNegative  # [s]
    bandwidth: Positive  # [bytes/s]
    topology: Topology = "ring"
    # [bytes/s] to the workers; None: the same in both directions
    down_bandwidth: Positive | None = None

    def one_way(self, members: int, num_bytes: float, *, down: bool) -> float:
        """Return the seconds of one transfer of a merge, to it or (`down`) back."""
        bandwidth = self.bandwidth
        if down and self.down_bandwidth is not None:
            bandwidth = self.down_bandwidth
        return self._seconds(members, num_bytes, bandwidth) / 2

    def seconds(self, members: int, num_bytes: float) -> float:
        """Return the seconds of a merge of `members` members with `num_bytes` each."""
        there = self.one_way(members, num_bytes, down=False)
        return there + self.one_way(members, num_bytes, down=True)

    def _seconds(self, members: int, num_bytes: float, bandwidth: float) -> float:
        """Return the seconds of both transfers at this bandwidth."""
        if members < 1:
            raise ValueError(f"a merge needs at least one member, not {members}")
        n, latency, copy = members, self.latency, num_bytes / bandwidth
        if n == 1:
            return 2 * (latency + copy)
        if self.topology == "ring":
            return 2 * (n - 1) * latency + 2 * (n - 1) / n * copy
        if self.topology == "tree":
            depth = (n - 1).bit_length()  # = ceil(log2 n), without rounding
            return 2 * depth * (latency + copy)
        return 2 * latency + 2 * n * copy
