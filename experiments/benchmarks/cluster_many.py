"""Many workers with tiny rounds: the driver's limit. See `cluster.py`."""

import sys
import time
from typing import Any

import hetjax as hj
from experiments.benchmarks import turns
from experiments.benchmarks.cluster_overhead import run_once, setting, strategy


def measure(
    numbers: list[int], seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrivals per second of `n` workers, and the driver's seconds for each."""
    raw: dict[str, Any] = {}
    task, data = setting(0.01)
    for number in numbers:
        with hj.cluster_machine(local_workers=number, step_mode="dispatch") as machine:
            session = turns.session(task, data, machine)
            run_once(session, strategy("arrival"), 1.0)  # compiles
            began = time.process_time()
            history = run_once(session, strategy("arrival"), seconds)
            used = time.process_time() - began
            arrivals = sum(sum(w.staleness.values()) for w in history.workers)
            busy = sum(w.busy for w in history.workers)
        raw[str(number)] = {
            "arrivals_per_second": round(arrivals / history.duration, 1),
            "driver_ms_per_arrival": round(1e3 * used / arrivals, 3),
            "driver_share_of_a_core": round(used / history.duration, 3),
            "steps_ms_per_arrival": round(1e3 * busy / arrivals, 3),
        }
        print(f"{number} workers: {raw[str(number)]}", file=sys.stderr)
    rates = {k: row["arrivals_per_second"] for k, row in raw.items()}
    first = rates[str(numbers[0])]
    return {f"many/{k}": round(v / first, 3) for k, v in rates.items()}, raw
