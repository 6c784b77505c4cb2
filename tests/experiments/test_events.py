"""The benchmark of the host code runs every policy; its numbers are not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # every script imports JAX and compiles
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "benchmarks" / "events.py"


def events(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        text=True,
        timeout=300,
    )


def test_every_policy_is_simulated():
    result = events("--workers=16", "--events=50")
    assert result.returncode == 0, result.stderr
    table = json.loads(result.stdout)
    assert {"rounds", "mega_batch", "asynchronous", "downpour", "hierarchical"} < set(
        table
    )
    for numbers in table.values():
        assert set(numbers) == {"events", "seconds", "events_per_s"}
        assert numbers["events"] == 50


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--policies=rounds,guess", "unknown guess; known: rounds"),
        ("--workers=6", "--workers=6: give a number from 16 to 100,000"),
        ("--workers=18", "--workers=18: give a multiple of 4"),
    ],
)
def test_errors_are_one_line(argument, message):
    result = events(argument)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
