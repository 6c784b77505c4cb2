"""The benchmark of the host code runs every policy; its numbers are not tested."""

import json

import pytest
from script_main import run

pytestmark = pytest.mark.full  # a benchmark


def events(folder, *arguments):
    return run(folder, "benchmarks/events.py", *arguments)


def test_every_policy_is_simulated(tmp_path):
    result = events(tmp_path, "--workers=16", "--events=50")
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
        ("--workers=6", "--workers=6: pass a number from 16 to 100,000"),
        ("--workers=18", "--workers=18: pass a multiple of 4"),
    ],
)
def test_errors_are_one_line(tmp_path, argument, message):
    result = events(tmp_path, argument)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
