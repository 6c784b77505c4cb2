"""Models whose steps take a given time: random data, and the width of an MLP."""

from collections.abc import Sequence
from functools import cache
from statistics import median
from typing import Any

import numpy as np

import hetjax as hj
from experiments.common import bounds
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.engine.job import Job
from hetjax.engine.step_runner import StepSettings
from hetjax.runtimes.real.step_timer import StepTimer

STEPS, BATCH, FEATURES, CLASSES = 8, 32, 64, 10
WIDTHS = [2**k for k in range(4, 23)]  # the widest are for GPUs


def make_data() -> hj.data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4096, FEATURES)).astype(np.float32)
    y = rng.integers(CLASSES, size=4096)
    return hj.data.from_arrays((x, y), (x[:32], y[:32]), num_classes=CLASSES)


def milliseconds(texts: Sequence[str]) -> list[float]:
    """The step times [ms] of --step_ms."""
    wanted = bounds.numbers("step_ms", texts)
    if not all(1e-3 <= ms <= 1e4 for ms in wanted):  # NaN is refused
        raise ValueError(f"--step_ms={','.join(texts)}: pass 0.001 to 10,000")
    return wanted


def rounds_strategy() -> hj.Strategy:
    """Rounds of STEPS steps of BATCH examples, then a merge."""
    return hj.elastic_sgd(batch_size=BATCH, learning_rate=1e-3, local_steps=STEPS)


def job_of(
    task: hj.Task, data: hj.data.Dataset, strategy: hj.Strategy, device: Any
) -> Job:
    """Return the job of a real run of the strategy on one device."""
    machine = hj.local_machine([device])
    return Session(task, data, machine, RunConfig(seconds=1.0, num_evals=1)).job(
        "job", strategy, 0
    )


def width_for(milliseconds: float, device: Any, *, step_mode: str = "dispatch") -> int:
    """The MLP width whose step time is closest to the one given."""
    found = {}
    for width in WIDTHS:
        found[width] = _milliseconds_of(width, device, step_mode)
        if found[width] > 2 * milliseconds:
            break
    return min(found, key=lambda w: abs(np.log(found[w] / milliseconds)))


@cache
def _milliseconds_of(width: int, device: Any, step_mode: str) -> float:
    """The usual milliseconds of a step of an MLP of this width."""
    data, strategy = make_data(), rounds_strategy()
    task = hj.classification(hj.models.mlp(hidden=width), data)
    timer = StepTimer(StepSettings.of(strategy), job_of(task, data, strategy, device))
    seconds = timer.seconds(device, BATCH, local_steps=STEPS, step_mode=step_mode)
    return 1e3 * median(seconds)
