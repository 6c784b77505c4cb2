"""Runs on a CPU and a GPU, as a script: records or replays traces in a process.

Usage: cuda_process.py record|replay FOLDER DEVICE; prints {strategy: what came of it}.
The flag of XLA that makes a GPU's sums repeatable has to be set before JAX starts.
"""

import json
import sys
from pathlib import Path

import cuda_cases as cases

import hetjax as hj
from hetjax.tracing.fingerprint import digest


def record(folder: Path, device: str) -> dict[str, str]:
    """Record a real run of each strategy; "virtual": the bits of a simulated one."""
    machine = hj.local_machine(["cpu:0", device], workers_per_device=2)
    for name, strategy in cases.RECORDED.items():
        path = folder / f"{name}.jsonl"
        cases.real(machine, strategy, cases.problem_of(name), trace=path)
    return {"virtual": virtual(device)}


def replay(folder: Path, device: str) -> dict[str, str]:
    """Replay what another process recorded."""
    found = {"virtual": virtual(device)}
    for name in cases.RECORDED:
        problem = cases.problem_of(name)
        path = folder / f"{name}.jsonl"
        again = hj.replay(path, problem.task, problem.data, progress=False)
        found[name] = again.replayed
    return found


def virtual(device: str) -> str:
    """The bits of a sparse run on the virtual clock."""
    strategy = cases.RECORDED["sparse"]
    history = cases.simulated(strategy, device, cases.sparse())
    return digest(history.params)


if __name__ == "__main__":
    task = {"record": record, "replay": replay}[sys.argv[1]]
    print(json.dumps(task(Path(sys.argv[2]), sys.argv[3])))
