"""The benchmark of one sparse step, on tiny sizes: the promised JSON."""

import pytest
from benchmark_json import printed

pytestmark = pytest.mark.slow  # every script imports JAX and compiles
TINY = ["--features=200", "--labels=4", "--batch=8", "--nonzeros=5", "--batches=2"]
CASES = ["4/zipf", "4/uniform"]
OTHERS = ("bcoo_dense_gradient", "torch_sparse")


@pytest.fixture(scope="module")
def result():
    """The standard output: one JSON object and nothing else."""
    return printed("sparse_step.py", *TINY, "--repeats=1")


def test_the_standard_output(result):
    assert set(result) == {"ratios", "medians", "jax", "platform"}
    assert result["platform"] == "cpu"
    assert list(result["medians"]) == CASES
    assert list(result["ratios"]) == [
        f"{case}/{other}_over_hetjax" for case in CASES for other in OTHERS
    ]


@pytest.mark.parametrize("case", CASES)
def test_a_case(result, case):
    measured = result["medians"][case]
    assert measured["nonzeros"] == 40
    assert 5 <= measured["unique_rows"] <= 40
    seconds = measured["seconds"]
    assert list(seconds) == ["hetjax", *OTHERS]
    missing = [name for name, value in seconds.items() if value is None]
    assert missing in ([], ["torch_sparse"])  # if it is not installed
    assert all(value > 0 for value in seconds.values() if value is not None)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("other", OTHERS)
def test_ratios_are_of_the_seconds(result, case, other):
    seconds = result["medians"][case]["seconds"]
    ratio = result["ratios"][f"{case}/{other}_over_hetjax"]
    if seconds[other] is None:
        assert ratio is None
    else:
        wanted = seconds[other] / seconds["hetjax"]
        assert ratio == pytest.approx(wanted, abs=5e-4, rel=1e-6)  # three decimals


def test_uniform_ids_touch_more_rows(result):
    rows = {case: m["unique_rows"] for case, m in result["medians"].items()}
    assert rows["4/zipf"] < rows["4/uniform"]
