"""The output of a benchmark, run as its users run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def printed(script, *flags):
    """Its standard output: one JSON object and nothing else."""
    process = subprocess.run(
        [sys.executable, str(ROOT / "experiments" / "benchmarks" / script), *flags],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
