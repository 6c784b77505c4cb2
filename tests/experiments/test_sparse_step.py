"""The benchmark of one sparse step, on tiny sizes: the promised JSON."""

import sys

import pytest
from benchmark_json import printed
from once import once

pytestmark = pytest.mark.full  # every script imports JAX and compiles
TINY = ["--features=200", "--labels=4", "--batch=8", "--nonzeros=5", "--batches=2"]
CASES = ["4/zipf", "4/uniform"]
OTHERS = (
    "full",
    "sampled",
    "slide",
    "bcoo_dense_gradient",
    "torch_sparse",
    "torch_dense",
    "slide_with_rebuilds",
)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """The standard output: one JSON object and nothing else."""
    return once(tmp_path_factory, "sparse_step", made)


def made():
    """Each memory is measured in a process of its own: those of one case are."""
    flags = [*TINY, "--repeats=1"]
    found = printed("sparse_step.py", *flags, "--ids=zipf")
    more = printed("sparse_step.py", *flags, "--ids=uniform", "--nomemory")
    for part in ("cases", "ratios"):
        found[part] |= more[part]
    return found


def test_the_standard_output(result):
    assert set(result) == {"ratios", "cases", "jax", "platform"}
    assert result["platform"] == "cpu"
    assert list(result["cases"]) == CASES
    assert list(result["ratios"]) == [
        f"{case}/{other}_over_chunked" for case in CASES for other in OTHERS
    ]


@pytest.mark.parametrize("case", CASES)
def test_a_case(result, case):
    measured = result["cases"][case]
    assert measured["nonzeros"] == 40
    assert 5 <= measured["unique_rows"] <= 40
    assert measured["slide_rebuild_s"] > 0
    seconds = measured["seconds"]
    assert list(seconds) == ["chunked", *OTHERS]
    missing = [name for name, value in seconds.items() if value is None]
    assert missing in ([], ["torch_sparse", "torch_dense"])  # if it is not installed
    assert all(value > 0 for value in seconds.values() if value is not None)
    memory = measured.get("memory") or {}
    assert list(memory) == (list(seconds)[:-1] if case == "4/zipf" else [])
    # of the first 1,000 steps 11 rebuild the tables
    with_rebuilds = seconds["slide"] + 0.011 * measured["slide_rebuild_s"]
    assert seconds["slide_with_rebuilds"] == pytest.approx(with_rebuilds)
    for name, needed in memory.items():
        if needed is None:
            assert name in missing or not sys.platform.startswith("linux")
            continue
        # 200 x 128 + 128 + 4 x 129 weights, and 40 non-zeros of 12 bytes
        megabytes = 0.105
        if name == "slide":  # 50 tables: where 2^18 buckets begin, and all rows
            megabytes += 4e-6 * 50 * (2**18 + 1 + 4)
        assert needed["at_rest_mb"] == pytest.approx(megabytes, abs=0.051)
        assert needed["peak_over_rest"] >= 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("other", OTHERS)
def test_ratios_are_of_the_seconds(result, case, other):
    seconds = result["cases"][case]["seconds"]
    ratio = result["ratios"][f"{case}/{other}_over_chunked"]
    if seconds[other] is None:
        assert ratio is None
    else:
        wanted = seconds[other] / seconds["chunked"]
        assert ratio == pytest.approx(wanted, abs=5e-5, rel=1e-6)  # four decimals


def test_uniform_ids_touch_more_rows(result):
    rows = {case: m["unique_rows"] for case, m in result["cases"].items()}
    assert rows["4/zipf"] < rows["4/uniform"]
