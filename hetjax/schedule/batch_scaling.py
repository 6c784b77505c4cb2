"""Rules that choose the next batch sizes from the workers' updates (host world)."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hetjax.arguments import checked
from hetjax.machine.types import LocalRound

BOUNDS = ("skip", "clip")
ScalingRule = Callable[[Sequence[float], Sequence[int]], tuple[float, ...]]


class Scaling(NamedTuple):
    """A rule that also observes how long local rounds take.

    init(num_workers) -> state
    observe(state, worker, local_round, seconds) -> state
    scale(state, sizes, updates, here) -> the next sizes; only workers in `here` change
    """

    init: Callable[[int], Any]
    observe: Callable[[Any, int, LocalRound, float], Any]
    scale: Callable[..., tuple[float, ...]]


def as_scaling(rule: ScalingRule | Scaling) -> Scaling:
    """Return a rule as a `Scaling`; a plain function is stateless."""
    if isinstance(rule, Scaling):
        return rule
    return Scaling(
        lambda workers: (),
        lambda state, worker, local_round, seconds: state,
        lambda state, sizes, updates, here: among(rule, sizes, updates, here),
    )


def among(
    rule: ScalingRule,
    sizes: Sequence[float],
    updates: Sequence[int],
    here: Sequence[int],
) -> tuple[float, ...]:
    """Apply the rule to the workers in `here`; all other sizes stay the same."""
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
    min_batch_size: float,
    batch_size: float,
    beta: float,
    bound: str = "skip",
) -> tuple[float, ...]:
    """Assigns larger batches to workers with more updates: Adaptive SGD, Algorithm 1.

        mu = sum_i u_i / n
        b_i <- b_i + beta (u_i - mu)      if that is within [b_min, b_max]

    with b_min the `min_batch_size` and b_max the `batch_size`. Sizes are real-valued
    [examples]. A step that would leave the bounds is skipped (bound="skip", as in the
    paper) or ends at the bound ("clip"). Learning rates follow from
    lr_i / b_i = lr(b_max) / b_max.

    >>> linear_scaling(
    ...     (1024,) * 4, (28, 26, 24, 22), min_batch_size=128, batch_size=1024, beta=64
    ... )
    (1024, 1024, 960.0, 832.0)
    """
    if bound not in BOUNDS:
        raise ValueError(f"bound={bound!r}: choose one of {BOUNDS}")
    if len(updates) == 0:
        raise ValueError("linear_scaling: there are no workers")
    mean = sum(updates) / len(updates)

    def scaled(b: float, u: int) -> float:
        new = b + beta * (u - mean)
        if min_batch_size <= new <= batch_size:
            return new
        return min(max(new, min_batch_size), batch_size) if bound == "clip" else b

    return tuple(scaled(b, u) for b, u in zip(sizes, updates, strict=True))


def fixed_scaling(
    sizes: Sequence[float],
    updates: Sequence[int],
    *,
    min_batch_size: float = 32,
    batch_size: float = 1024,
    step: float = 32,
) -> tuple[float, ...]:
    """Scales by one fixed step up or down: the rule of Adaptive SGD's public code.

        p_i = u_i / sum_j u_j
        b_i <- b_i - step   if p_i < 1/n and b_i > b_min
        b_i <- b_i + step   if p_i > 1/n and b_i < b_max

    with b_min the `min_batch_size` and b_max the `batch_size`. A step stops at the
    bounds (in the code all sizes are multiples of the step and cannot pass them).
    Source: docs/algorithms A.2.

    >>> fixed_scaling((1024, 512), (10, 20))
    (992, 544)
    """
    n, total = len(updates), sum(updates)

    def scaled(b: float, u: int) -> float:
        if n * u < total:
            return max(b - step, min_batch_size) if b > min_batch_size else b
        if n * u > total:
            return min(b + step, batch_size) if b < batch_size else b
        return b

    return tuple(scaled(b, u) for b, u in zip(sizes, updates, strict=True))


class Moments(NamedTuple):
    """Sums over one worker's observations: their number, b, t, b b and b t."""

    n: float = 0.0
    b: float = 0.0
    t: float = 0.0
    bb: float = 0.0
    bt: float = 0.0

    def line(self) -> tuple[float, float]:
        """(a, c) of the least-squares line t = a + c b; (0, t / b) for one size."""
        spread = self.n * self.bb - self.b**2
        # for a single size, repeated, rounding alone may make this difference nonzero
        if spread > 1e-9 * self.b**2:
            c = (self.n * self.bt - self.b * self.t) / spread
            a = (self.t - c * self.b) / self.n
            if a >= 0 and c > 0:
                return a, c
        return 0.0, self.t / self.b


@checked
def measured_scaling(
    *, min_batch_size: float, batch_size: float, examples: int
) -> Scaling:
    """Chooses sizes from measurements so that all workers' steps take the same time.

        t_i = a_i + c_i b                      least squares over all steps of worker i
        T = min_i (a_i + c_i b_max)            so that no worker exceeds b_max
        b_i = (T - a_i) / c_i                  within [b_min, b_max]

    with b_min the `min_batch_size` and b_max the `batch_size`. T is then lowered until
    a whole number R of such rounds is one mega-batch of `examples`, since otherwise
    some workers would do one more update at its end: sizes are whole numbers that sum
    to ceil(examples / R). After the first mega-batch, in which each worker has only one
    size, step times are assumed to be proportional to the size (a_i = 0). After the
    second mega-batch the line is known, so from the third on all workers do the same
    number of updates unless a bound prevents it. There is no feedback through u_i,
    which makes `linear_scaling` oscillate (docs/algorithms A.2). This rule is hetjax's
    own.
    """

    def init(workers: int) -> tuple[Moments, ...]:
        return (Moments(),) * workers

    def observe(
        state: tuple[Moments, ...], worker: int, local_round: LocalRound, seconds: float
    ) -> tuple[Moments, ...]:
        b, t = local_round.size, seconds / local_round.local_steps
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
            return tuple(sizes)  # a worker that has had no batch cannot be compared
        lines = [moments.line() for moments in state]
        longest = min(a + c * batch_size for a, c in lines)
        total = sum(
            _within(longest, line, min_batch_size, batch_size) for line in lines
        )
        rounds = math.ceil(examples / total)
        wanted = math.ceil(examples / rounds)
        time = _seconds_for(wanted, lines, longest, min_batch_size, batch_size)
        whole = _whole(
            [_within(time, line, min_batch_size, batch_size) for line in lines], wanted
        )
        return tuple(float(min(max(b, min_batch_size), batch_size)) for b in whole)

    return Scaling(init, observe, scale)


def _whole(sizes: Sequence[float], total: int) -> list[int]:
    """The sizes rounded so that they sum to `total`: the largest fractions go up."""
    whole = [math.floor(b) for b in sizes]
    up = sorted(range(len(sizes)), key=lambda k: whole[k] - sizes[k])
    for k in up[: max(0, total - sum(whole))]:
        whole[k] += 1
    return whole


def _within(
    time: float, line: tuple[float, float], min_batch_size: float, batch_size: float
) -> float:
    a, c = line
    return min(max((time - a) / c, min_batch_size), batch_size)


def _seconds_for(
    wanted: float,
    lines: Sequence[tuple[float, float]],
    longest: float,
    min_batch_size: float,
    batch_size: float,
) -> float:
    """The step time, up to `longest`, at which sizes sum to `wanted` (bisection)."""
    low, high = 0.0, longest
    for _ in range(60):
        middle = (low + high) / 2
        total = sum(_within(middle, line, min_batch_size, batch_size) for line in lines)
        low, high = (middle, high) if total < wanted else (low, middle)
    return high
