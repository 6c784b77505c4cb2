"""The benchmark of reading, on a small text: the promised JSON."""

import pytest
from benchmark_json import printed

pytestmark = pytest.mark.full  # every reading is a process that imports JAX
CONTENDERS = ["hetjax", "sklearn", "first_start", "second_start"]


@pytest.fixture(scope="module")
def result():
    return printed("reading.py", "--megabytes=0.2", "--repeats=1")


def test_the_standard_output(result):
    assert set(result) == {"ratios", "medians", "megabytes"}
    assert list(result["medians"]) == CONTENDERS
    assert result["megabytes"] == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_contender(result, name):
    found = result["medians"][name]
    assert found["mb_per_s"] == pytest.approx(
        result["megabytes"] / found["wall_s"], abs=0.06
    )
    assert found["mb_per_core_s"] == pytest.approx(
        result["megabytes"] / found["cpu_s"], abs=0.06
    )
    if found["peak_mb"] is not None:
        assert found["peak_over_arrays"] == pytest.approx(
            found["peak_mb"] / found["arrays_mb"], rel=0.02, abs=0.02
        )


def test_all_starts_have_the_same_arrays(result):
    sizes = {n: found["arrays_mb"] for n, found in result["medians"].items()}
    assert sizes["hetjax"] == sizes["first_start"] == sizes["second_start"]
    assert sizes["hetjax"] > 0


def test_ratios_are_of_the_medians(result):
    found, ratios = result["medians"], result["ratios"]
    own, first, second = (
        found[name]["wall_s"] for name in ("hetjax", "first_start", "second_start")
    )
    assert ratios["first_over_reading"] == pytest.approx(first / own, abs=1e-3)
    assert ratios["second_over_first"] == pytest.approx(second / first, abs=1e-3)
    cpu = found["sklearn"]["cpu_s"] / found["hetjax"]["cpu_s"]
    assert ratios["hetjax_over_sklearn"] == pytest.approx(cpu, rel=0.02)
