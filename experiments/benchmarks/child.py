"""A Python process that prints one JSON object within a time limit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GRACE = 5.0  # [s] for a process to end before it is killed


def output_of(arguments: list[str], seconds: float) -> dict[str, Any]:
    """The JSON object that a Python process prints, or the reason for none ("failed").

    It runs in a session of its own, so that its own processes end with it.
    """
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {seconds:.0f} s"}
    finally:
        _end(process)
    if process.returncode:
        return {"failed": f"ended with {process.returncode}; see standard error"}
    try:
        return json.loads(printed)
    except json.JSONDecodeError as error:
        return {"failed": f"printed no JSON: {error}"}


def _end(process: subprocess.Popen) -> None:
    """End a process that still runs, and all processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue
