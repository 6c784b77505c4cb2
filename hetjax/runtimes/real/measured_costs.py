"""The costs of a step on real devices, measured before a run."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hetjax.runtimes.real.real_machine import RealMachine
from hetjax.runtimes.real.step_timer import StepTimer


def measure_costs(
    machine: RealMachine, timer: StepTimer, batch_size: int
) -> dict[str, tuple[float, float]]:
    """Measure (fixed, per example) seconds of a step by worker.

    Each device is measured at `batch_size`, and the first device of each kind also at a
    smaller batch size, which determines the fixed share.
    """
    devices = dict.fromkeys(w.device for w in machine.workers)
    kinds = {w.kind: w.device for w in reversed(machine.workers)}
    small = max(1, batch_size // 4)
    pairs = [(device, batch_size) for device in devices]
    if small < batch_size:
        pairs += [(device, small) for device in kinds.values()]
    with ThreadPoolExecutor(min(4, len(pairs))) as pool:  # compile in parallel
        list(pool.map(lambda pair: timer.seconds(*pair, samples=1, shortest=0), pairs))
    seconds = {pair: first_quartile(timer.seconds(*pair)) for pair in pairs}
    fixed = {
        kind: fixed_share(
            batch_size, seconds[device, batch_size], small, seconds[device, small]
        )
        for kind, device in kinds.items()
    }
    costs = {}
    for worker in machine.workers:
        total = seconds[worker.device, batch_size]
        share = fixed[worker.kind]
        costs[worker.name] = share * total, (1 - share) * total / batch_size
    return costs


def fixed_share(size: int, seconds: float, small: int, small_seconds: float) -> float:
    """Return the share of a step's seconds that does not depend on its examples.

    It is computed from steps of two sizes; with only one size it is 0.
    """
    if small == size:
        return 0.0
    slope = (seconds - small_seconds) / (size - small)
    return min(max(1 - slope * size / seconds, 0.0), 1.0)  # noise may exceed both


def first_quartile(seconds: list[float]) -> float:
    """Return a step's typical time: a busy host makes steps slower, never faster."""
    return float(np.quantile(seconds, 0.25))
