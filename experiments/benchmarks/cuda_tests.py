"""The tests on CUDA (tests/runtimes/test_cuda.py), counted: see `cuda.py`.

    python -m experiments.benchmarks.cuda_tests

They run workers on threads, on a mesh and on the virtual clock, on a GPU and on CPUs
beside it, in several test processes. One JSON object on standard output: the number of
tests that "passed", were "skipped" and failed, the names of those ("failures"), and
seconds. What pytest prints goes to standard error.
"""

import contextlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import pytest

# before JAX is imported, here and in the test processes
_PROCESSES = min(8, os.cpu_count() or 1)
os.environ.setdefault("JAX_PLATFORMS", "cuda,cpu")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # they share the GPU
_EXACT = "--xla_gpu_deterministic_ops=true"
if "cuda" in os.environ["JAX_PLATFORMS"]:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_EXACT}"

TESTS = Path(__file__).parents[2] / "tests" / "runtimes" / "test_cuda.py"


class Counted:
    """A plugin of pytest that counts outcomes."""

    def __init__(self) -> None:
        self.passed = self.skipped = 0
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: its call, or a failure or skip around it."""
        if report.failed:
            self.failures.append(report.nodeid)
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            self.passed += 1


def main() -> None:
    counted, began = Counted(), time.monotonic()
    arguments = ["-q", "-m", "", "-p", "no:cacheprovider", str(TESTS)]
    if importlib.util.find_spec("xdist"):
        arguments += ["-n", str(_PROCESSES)]
    with contextlib.redirect_stdout(sys.stderr):
        status = pytest.main(arguments, plugins=[counted])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"pytest ended with {status}")
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({**vars(counted), "seconds": seconds}))


if __name__ == "__main__":
    main()
