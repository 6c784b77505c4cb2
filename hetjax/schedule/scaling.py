"""Batch-size scaling rules (host world): from what workers did to their next sizes."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hetjax.machine.types import Work

BOUNDS = ("skip", "clip")
ScalingRule = Callable[[Sequence[float], Sequence[int]], tuple[float, ...]]


class Scaling(NamedTuple):
    """A rule that also measures.

    init(workers) -> state
    observe(state, worker, work, seconds) -> state
    scale(state, sizes, updates, here) -> the next sizes, of the workers in `here`
    """

    init: Callable[[int], Any]
    observe: Callable[[Any, int, Work, float], Any]
    scale: Callable[..., tuple[float, ...]]


def as_scaling(rule: ScalingRule | Scaling) -> Scaling:
    """A plain function of sizes and updates remembers nothing."""
    if isinstance(rule, Scaling):
        return rule
    return Scaling(
        lambda workers: (),
        lambda state, worker, work, seconds: state,
        lambda state, sizes, updates, here: among(rule, sizes, updates, here),
    )


def among(
    rule: ScalingRule,
    sizes: Sequence[float],
    updates: Sequence[int],
    here: Sequence[int],
) -> tuple[float, ...]:
    """The rule for the workers in `here`; the others' sizes stay."""
    new = list(sizes)
    if here:
        scaled = rule(tuple(sizes[k] for k in here), tuple(updates[k] for k in here))
        for k, size in zip(here, scaled, strict=True):
            new[k] = size
    return tuple(new)


def linear_scaling(
    sizes: Sequence[float],
    updates: Sequence[int],
    *,
    b_min: float,
    b_max: float,
    beta: float,
    bound: str = "skip",
) -> tuple[float, ...]:
    """Larger batches for those who did more updates: Algorithm 1 of Adaptive SGD.

        mu = sum_i u_i / n
        b_i <- b_i + beta (u_i - mu)      if that is within [b_min, b_max]

    Sizes are real-valued [examples]. A step that would leave the bounds is not taken
    at all (bound="skip", the paper's text) or ends at the bound ("clip"). Learning
    rates follow by lr_i / b_i = lr(b_max) / b_max.

    >>> linear_scaling((1024,) * 4, (28, 26, 24, 22), b_min=128, b_max=1024, beta=64)
    (1024, 1024, 960.0, 832.0)
    """
    if bound not in BOUNDS:
        raise ValueError(f"bound={bound!r}: choose one of {BOUNDS}")
    if len(updates) == 0:
        raise ValueError("linear_scaling: there are no workers")
    mean = sum(updates) / len(updates)

    def scaled(b: float, u: int) -> float:
        new = b + beta * (u - mean)
        if b_min <= new <= b_max:
            return new
        return min(max(new, b_min), b_max) if bound == "clip" else b

    return tuple(scaled(b, u) for b, u in zip(sizes, updates, strict=True))


def fixed_scaling(
    sizes: Sequence[float],
    updates: Sequence[int],
    *,
    b_min: float = 32,
    b_max: float = 1024,
    step: float = 32,
) -> tuple[float, ...]:
    """The rule of Adaptive SGD's public code: one fixed step up or down.

        p_i = u_i / sum_j u_j
        b_i <- b_i - step   if p_i < 1/n and b_i > b_min
        b_i <- b_i + step   if p_i > 1/n and b_i < b_max

    Source: ALGORITHMS A.2. A step stops at the bounds (the code's sizes are multiples
    of the step, which cannot pass them).

    >>> fixed_scaling((1024, 512), (10, 20))
    (992, 544)
    """
    n, total = len(updates), sum(updates)

    def scaled(b: float, u: int) -> float:
        if n * u < total:
            return max(b - step, b_min) if b > b_min else b
        if n * u > total:
            return min(b + step, b_max) if b < b_max else b
        return b

    return tuple(scaled(b, u) for b, u in zip(sizes, updates, strict=True))


class Moments(NamedTuple):
    """Sums over one worker's steps: number, b, t, b b, b t."""

    n: float = 0.0
    b: float = 0.0
    t: float = 0.0
    bb: float = 0.0
    bt: float = 0.0

    def line(self) -> tuple[float, float]:
        """(a, c) of the least-squares t = a + c b; (0, t / b) from a single size."""
        spread = self.n * self.bb - self.b**2
        # one size, repeated: the difference of two sums that rounding makes unequal
        if spread > 1e-9 * self.b**2:
            c = (self.n * self.bt - self.b * self.t) / spread
            a = (self.t - c * self.b) / self.n
            if a >= 0 and c > 0:
                return a, c
        return 0.0, self.t / self.b


def measured_scaling(*, b_min: float, b_max: float, examples: int) -> Scaling:
    """Sizes by which all workers need equally long, from their measured seconds.

        t_i = a_i + c_i b                      least squares over all steps of worker i
        T = min_i (a_i + c_i b_max)            so that nobody exceeds b_max
        b_i = (T - a_i) / c_i                  within [b_min, b_max]

    and T is lowered until a whole number R of such rounds is one mega-batch, or its end
    would give somebody an update more: sizes are whole numbers with the sum
    ceil(examples / R). After one mega-batch, of one size, steps are taken as
    proportional to it (a_i = 0); after two the line is known, so that from the third on
    all do equally many updates, where no bound is in the way: without the feedback
    through u_i that makes `linear_scaling` swing (ALGORITHMS A.3). A rule of hetjax's
    own.
    """

    def init(workers: int) -> tuple[Moments, ...]:
        return (Moments(),) * workers

    def observe(
        state: tuple[Moments, ...], worker: int, work: Work, seconds: float
    ) -> tuple[Moments, ...]:
        b, t = work.size, seconds / work.steps
        new = (1.0, b, t, b * b, b * t)
        moments = Moments(*(x + y for x, y in zip(state[worker], new, strict=True)))
        return (*state[:worker], moments, *state[worker + 1 :])

    def scale(
        state: tuple[Moments, ...],
        sizes: Sequence[float],
        updates: Sequence[int],
        here: Sequence[int],
    ) -> tuple[float, ...]:
        def rule(sizes: Sequence[float], updates: Sequence[int]) -> tuple[float, ...]:
            del updates
            return measured([state[k] for k in here], sizes)

        return among(rule, sizes, updates, here)

    def measured(state: Sequence[Moments], sizes: Sequence[float]) -> tuple[float, ...]:
        if not all(moments.n for moments in state):
            return tuple(sizes)  # somebody got no batch yet: nothing to compare
        lines = [moments.line() for moments in state]
        longest = min(a + c * b_max for a, c in lines)
        total = sum(_within(longest, line, b_min, b_max) for line in lines)
        rounds = math.ceil(examples / total)
        wanted = math.ceil(examples / rounds)
        time = _seconds_for(wanted, lines, longest, b_min, b_max)
        whole = _whole([_within(time, line, b_min, b_max) for line in lines], wanted)
        return tuple(float(min(max(b, b_min), b_max)) for b in whole)

    return Scaling(init, observe, scale)


def _whole(sizes: Sequence[float], total: int) -> list[int]:
    """Rounded so that the sum is `total`: up for the largest fractions."""
    whole = [math.floor(b) for b in sizes]
    up = sorted(range(len(sizes)), key=lambda k: whole[k] - sizes[k])
    for k in up[: max(0, total - sum(whole))]:
        whole[k] += 1
    return whole


def _within(
    time: float, line: tuple[float, float], b_min: float, b_max: float
) -> float:
    a, c = line
    return min(max((time - a) / c, b_min), b_max)


def _seconds_for(
    wanted: float,
    lines: Sequence[tuple[float, float]],
    longest: float,
    b_min: float,
    b_max: float,
) -> float:
    """The step time, up to `longest`, at which sizes sum to `wanted` (bisection)."""
    low, high = 0.0, longest
    for _ in range(60):
        middle = (low + high) / 2
        total = sum(_within(middle, line, b_min, b_max) for line in lines)
        low, high = (middle, high) if total < wanted else (low, middle)
    return high
