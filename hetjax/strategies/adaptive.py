"""Adaptive SGD (HeteroGPU): dynamic dispatch, batch scaling, normalised merging."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hetjax import local, merge, sampling, schedule
from hetjax.schedule import START, Rate, RateLike, Scaling, rate_at
from hetjax.strategies.types import (
    Strategy,
    fraction,
    not_negative,
    positive,
    settings,
)

SCALINGS = ("paper", "hgpu_code", "measured", "none")
# what the authors' public code does where the paper says otherwise
HGPU_CODE: dict[str, Any] = {
    "weights": "updates",
    "scaling": "hgpu_code",
    "rule": "hgpu_code",
    "warmup_epochs": 10.0,
    "order": "sequential",
}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "weights": "paper",
        "scaling": "paper",
        "rule": "dispatched",
        "warmup_epochs": 0.0,
        "order": "shuffled",
    },
    "hgpu_code": HGPU_CODE,
}


def adaptive_sgd(
    *,
    b_max: int,
    rate: RateLike,
    preset: str = "paper",
    b_min: float | None = None,
    beta: float | None = None,
    mega_batch: int | None = None,
    delta: float = 0.1,
    pert_thr: float = 0.1,
    momentum: float = 0.9,
    weights: str | None = None,
    reg_measure: str = "l2_over_dim",
    scaling: str | None = None,
    bound: str = "skip",
    scale_every: int = 1,
    rule: str | None = None,
    warmup_epochs: float | None = None,
    time_decay: float = 0.0,
    order: str | None = None,
) -> Strategy:
    """Fast workers get more and larger batches until all do equally many updates.

    Within a mega-batch of `mega_batch` examples (default 100 b_max) whoever is idle
    gets a batch of its size b_i, at rate eta b_i / b_max. Then

        w' = sum_i alpha_i w_i + gamma (w - w_p)                    (`merge.normalized`)
        b_i <- b_i + beta (u_i - mean u), within [b_min, b_max]   (`linear_scaling`)

    Defaults: b_min = b_max / 8, beta = b_min / 2, gamma = `momentum` = 0.9. `scaling`:
    "paper"; "hgpu_code", the public code's fixed steps of b_max / 32 from b_min =
    b_max / 32; "measured", hetjax's own (`schedule.measured_scaling`); "none".
    `order` is `sampling.uniform`'s. `preset="hgpu_code"` sets `scaling`, `rule`,
    `weights`, the sequential `order` and 10 `warmup_epochs` as in the code: while it
    warms up all sizes are b_max / 32 and the rate rises from a hundredth to eta / 32;
    afterwards it is eta / (1 + time_decay e) in the e-th epoch since then.
    Source: Adaptive SGD, Algorithms 1 and 2; ALGORITHMS A.
    """
    given = settings(locals())
    if preset not in PRESETS:
        raise ValueError(f"preset={preset!r}: choose one of {tuple(PRESETS)}")
    chosen = {"weights": weights, "scaling": scaling, "rule": rule, "order": order}
    chosen["warmup_epochs"] = warmup_epochs  # pyright: ignore[reportArgumentType]
    own = {name: value for name, value in chosen.items() if value is not None}
    chosen = {**PRESETS[preset], **own}
    not_negative(warmup_epochs=chosen["warmup_epochs"], time_decay=time_decay)
    positive(b_max=b_max, mega_batch=mega_batch, scale_every=scale_every)
    examples = mega_batch or 100 * b_max
    policy = schedule.mega_batch(
        examples=examples,
        b_max=b_max,
        scaling=_scaling(chosen["scaling"], b_max, b_min, beta, bound, examples),
        scale_every=scale_every,
        rule=chosen["rule"],
        warmup_epochs=chosen["warmup_epochs"],
        warmup_size=max(1, b_max / 32),
    )
    fraction(momentum=momentum, delta=delta)
    not_negative(pert_thr=pert_thr)
    merging = merge.normalized(
        delta=delta,
        pert_thr=pert_thr,
        momentum=momentum,
        weights=chosen["weights"],
        reg_measure=reg_measure,
    )
    return Strategy(
        policy,
        local.sgd(),
        merging,
        b_max,
        _warmed(rate, chosen["warmup_epochs"], time_decay),
        sampling.uniform(chosen["order"]),
        settings=given,
        name="adaptive_sgd",
    )


def _scaling(
    name: str,
    b_max: float,
    b_min: float | None,
    beta: float | None,
    bound: str,
    examples: int,
) -> Callable | Scaling | None:
    if name not in SCALINGS:
        raise ValueError(f"scaling={name!r}: choose one of {SCALINGS}")
    if bound not in schedule.BOUNDS:
        raise ValueError(f"bound={bound!r}: choose one of {schedule.BOUNDS}")
    smallest = max(1, b_max / (32 if name == "hgpu_code" else 8))
    b_min = smallest if b_min is None else b_min
    beta = b_min / (1 if name == "hgpu_code" else 2) if beta is None else beta
    positive(b_min=b_min)
    not_negative(beta=beta)
    if b_min > b_max:
        raise ValueError(f"b_min={b_min} is above b_max={b_max}: give a smaller b_min")
    bounds = {"b_min": b_min, "b_max": b_max}
    if name == "measured":
        return schedule.measured_scaling(**bounds, examples=examples)
    if name == "hgpu_code":
        return partial(schedule.fixed_scaling, **bounds, step=beta)
    if name == "paper":
        return partial(schedule.linear_scaling, **bounds, beta=beta, bound=bound)
    return None


def _warmed(rate: RateLike, warmup_epochs: float, time_decay: float) -> RateLike:
    """The rate at b_max with the code's warm-up and decay, over epochs."""
    if not warmup_epochs and not time_decay:
        return rate
    if not isinstance(rate, int | float):
        raise ValueError(
            "adaptive_sgd: warmup_epochs and time_decay are a schedule of their own: "
            "give a number as the rate, or a schedule and neither of them"
        )
    base = rate_at(rate, START)

    def schedule_fn(epochs: float) -> float:
        if epochs < warmup_epochs:
            return base * (0.01 + 0.99 * epochs / warmup_epochs)
        return base / (1 + time_decay * (1 + int(epochs - warmup_epochs)))

    return Rate(schedule_fn, over="epochs")
