"""The output of a benchmark, run as its users run it."""

from pathlib import Path

from script_json import printed_by

BENCHMARKS = Path(__file__).parents[2] / "experiments" / "benchmarks"


def printed(script, *flags):
    """Its standard output: one JSON object and nothing else."""
    return printed_by(BENCHMARKS / script, *flags, JAX_PLATFORMS="cpu")
