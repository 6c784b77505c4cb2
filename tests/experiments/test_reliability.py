"""The reliability benchmark on small numbers: nothing is lost, all is noticed."""

import pytest
from benchmark_json import printed

pytestmark = pytest.mark.full  # processes that are killed


@pytest.mark.parametrize(
    ("kind", "flags", "kills"),
    [
        ("clock", ("--killed=adaptive_sgd,easgd", "--kills=4", "--real_kills=0"), 4),
        # a run in real seconds, and its replay
        ("threads", ("--killed=easgd", "--kills=0", "--real_kills=1"), 1),
    ],
)
def test_killed_runs_go_on(kind, flags, kills):
    result = printed("reliability.py", "--parts=kills", *flags)
    assert result["ratios"][f"kills/{kind}/lost"] == 0
    assert result["ratios"][f"kills/{kind}/equal"] == 1
    assert sum(run["kills"] for run in result["numbers"][f"kills/{kind}"]) == kills


def test_damage_is_noticed():
    result = printed("reliability.py", "--parts=damage", "--mutations=25")
    assert result["ratios"] == {"damage/noticed": 1}
    assert sum(result["numbers"]["damage"].values()) == 25


def test_the_fault_matrix_and_its_table(tmp_path):
    flags = ("--strategies=sma,async_sgd", f"--table={tmp_path / 'faults.md'}")
    result = printed("reliability.py", "--parts=faults", *flags)
    assert result["ratios"] == {"faults/go_on": 1}
    text = (tmp_path / "faults.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3 * 2
    assert "| threads | `async_sgd` | goes on | goes on |" in "\n".join(lines)


def test_overhead():
    flags = ("--millions=0.1", "--minutes=0.02", "--every=0.5s", "--turns=1")
    result = printed("reliability.py", "--parts=overhead", *flags)
    assert result["ratios"]["overhead"] > 0
    assert result["numbers"]["overhead"]["parameters"] > 90_000
