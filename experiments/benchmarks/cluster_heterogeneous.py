"""Heterogeneous workers on a cluster, and the machine that is calibrated there.

See `cluster.py`, which runs this.
"""

import sys
from statistics import median
from typing import Any

import hetjax as hj
from experiments.common import named_data

SLOWDOWN = (1.0, 1.0, 4.0)
BATCH, RATE, STEPS, TARGET = 64, 0.1, 8, 0.95


def strategies() -> dict[str, hj.Strategy]:
    """Equal rounds, and two that take account of the workers' speeds."""
    common: dict[str, Any] = {"batch_size": BATCH, "learning_rate": RATE}
    return {
        "equal_rounds": hj.local_sgd(**common, local_steps=STEPS, momentum=0.0),
        "biased_local_sgd": hj.biased_local_sgd(
            **common, local_steps=f"measured:{STEPS}", momentum=0.0
        ),
        "adaptive_sgd": hj.adaptive_sgd(**common, mega_batch=3 * STEPS * BATCH),
    }


def measure(seconds: float, seeds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ratios and medians over the seeds."""
    data = named_data.load("shifted_digits")
    task = hj.classification(hj.models.mlp(hidden=1024), data)
    with hj.cluster_machine(local_workers=3, slowdown=SLOWDOWN) as machine:
        sizes = (BATCH // 4, BATCH // 2, BATCH)
        profile = hj.calibrate(
            task, data, machine, batch_sizes=sizes, local_steps=(1, 4, STEPS)
        )
        found: dict[str, dict[str, list[float]]] = {}
        for seed in range(seeds):
            for name, strategy in strategies().items():
                row = found.setdefault(name, {})
                for where, m in (("measured", machine), ("predicted", profile)):
                    history = hj.train(
                        task,
                        data,
                        m,
                        strategy,
                        seconds=seconds,
                        num_evals=200,
                        seed=seed,
                        progress=False,
                    )
                    print(f"{name}, {where}: {history!r}", file=sys.stderr)
                    numbers = {
                        "round_ms": 1e3 * gap(history),
                        "waiting": history.waiting_share(),
                        "target": history.seconds_to(TARGET, interpolated=True),
                    }
                    for key, value in numbers.items():
                        row.setdefault(f"{where}_{key}", []).append(value)
    assert profile.calibration is not None
    raw: dict[str, Any] = {
        name: {key: round(median(values), 4) for key, values in row.items()}
        for name, row in found.items()
    }
    equal = raw["equal_rounds"]["measured_target"]
    ratios = {}
    for name, row in raw.items():
        ratio = row["predicted_round_ms"] / row["measured_round_ms"]
        ratios[f"heterogeneous/{name}/round"] = round(ratio, 3)
        ratios[f"heterogeneous/{name}/target"] = round(
            row["measured_target"] / equal, 3
        )
    raw["error_of_fit"] = profile.calibration.error
    return ratios, raw


def gap(history: hj.History) -> float:
    """Median seconds between merges of the model."""
    times = history.merge_times
    return median(b - a for a, b in zip(times, times[1:], strict=False))
