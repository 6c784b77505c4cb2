"""The mesh over several processes on this host: starts `mesh_process.py` in them.

See `mesh.py`, which runs this.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

EXPERIMENTS = Path(__file__).parents[1]
SCRIPT = EXPERIMENTS / "benchmarks" / "mesh_process.py"
LAUNCH = EXPERIMENTS / "launch.py"
LONGEST = 1800  # [s]


def measure(
    processes: int, hidden: int, workers: int, seconds: float, number: int
) -> dict[str, Any]:
    """The output of `mesh_process.py` in `n` processes, or why it failed."""
    sizes = [f"--hidden={hidden}", f"--workers={workers}"]
    command = [str(SCRIPT), *sizes, f"--seconds={seconds}", f"--turns={number}"]
    if processes > 1:  # one process needs no launcher
        command = [str(LAUNCH), f"--processes={processes}", "--", *command]
    # the script's standard error is shown
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True
    )
    try:
        printed, _ = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        process.terminate()  # which the launcher passes on
        process.communicate()
        return {"failed": f"{processes} processes took more than {LONGEST} s"}
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        return {"failed": f"{processes} processes ended with {process.returncode}"}
    return json.loads(lines[-1])


def ratios(found: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """Rounds per second of several processes over those of one, by hidden units."""
    chosen: dict[str, float | None] = {}
    for key, row in found.items():
        hidden, _, processes = key.partition("/")
        alone = found.get(f"{hidden}/1", {})
        if processes != "1":
            known = "failed" not in row and "rounds_per_s" in alone
            chosen[f"processes/{key}"] = (
                round(row["rounds_per_s"] / alone["rounds_per_s"], 3) if known else None
            )
    return chosen
