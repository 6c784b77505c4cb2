"""The reliability benchmark on small numbers: nothing is lost, all is noticed."""

import pytest
from benchmark_json import printed

pytestmark = pytest.mark.full  # processes that are killed


@pytest.mark.parametrize(
    ("kind", "killed", "flags", "kills"),
    [
        ("clock", "adaptive_sgd", ("--kills=2", "--real_kills=0"), 2),
        # in real seconds, and replayed
        ("threads", "easgd", ("--kills=0", "--real_kills=1"), 1),
    ],
)
def test_killed_runs_go_on(kind, killed, flags, kills):
    short = ("--clock_seconds=8", "--real_seconds=5")
    flags = (f"--killed={killed}", *short, *flags)
    result = printed("reliability.py", "--parts=kills", *flags)
    assert result["ratios"][f"kills/{kind}/lost"] == 0
    assert result["ratios"][f"kills/{kind}/equal"] == 1
    assert sum(run["kills"] for run in result["numbers"][f"kills/{kind}"]) == kills


def test_damage_is_noticed():
    result = printed("reliability.py", "--parts=damage", "--mutations=25")
    assert result["ratios"] == {"damage/noticed": 1}
    assert sum(result["numbers"]["damage"].values()) == 25


@pytest.mark.parametrize(
    ("machine", "strategies", "row"),
    [
        ("clock", "sma,async_sgd", "`async_sgd` | continues | - | continues |"),
        ("threads", "async_sgd", "`async_sgd` | continues | continues | continues |"),
        ("mesh", "sma", "`sma` | - | - | - | continues |"),
    ],
)
def test_the_fault_matrix_and_its_table(machine, strategies, row, tmp_path):
    flags = (f"--strategies={strategies}", f"--table={tmp_path / 'faults.md'}")
    result = printed(
        "reliability.py", "--parts=faults", f"--machines={machine}", *flags
    )
    assert result["ratios"] == {"faults/continue": 1}
    text = (tmp_path / "faults.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(strategies.split(","))
    assert f"| {machine} | {row}" in "\n".join(lines)


def test_overhead():
    flags = ("--millions=0.1", "--minutes=0.02", "--every=0.5s", "--turns=1")
    result = printed("reliability.py", "--parts=overhead", *flags)
    assert result["ratios"]["overhead"] > 0
    assert result["numbers"]["overhead"]["parameters"] > 90_000
