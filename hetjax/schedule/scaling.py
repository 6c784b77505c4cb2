"""Batch-size scaling rules (host world): pure functions of sizes and update counts."""

from collections.abc import Sequence

BOUNDS = ("skip", "clip")


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
