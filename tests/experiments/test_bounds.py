"""Meaningless or excessive numbers: a one-line error names the flag at once."""

import re
from pathlib import Path

import pytest
from script_main import run

CASES = [  # the message after "--flag=value: "
    ("papers/batch_scaling.py", "--mega_batches=0", "pass a number from 1 to 10,000"),
    ("papers/batch_scaling.py", "--nonzeros=inf", "pass a number from 0 to"),
    ("papers/batch_scaling.py", "--nonzeros=nan", "pass a number from 0 to"),
    ("papers/biased_local_sgd.py", "--batch_size=1", "pass a number from 2 to"),
    ("papers/crossbow.py", "--epochs=inf", "pass a number from 5 to 10,000"),
    ("papers/async_sgd.py", "--add_ms=0.0", "pass a number from 1e-06 to"),
    ("papers/hier_sgd.py", "--learning_rate=0.0", "pass a number from 1e-30 to"),
    ("papers/biased_local_sgd.py", "--momentum=1.0", "pass a number from 0 to"),
    ("papers/async_sgd.py", "--seconds=nan", "pass a number from 1e-09 to"),
    ("calibrate.py", "--batch_sizes=inf", "pass whole numbers, as 1,8"),
    ("calibrate.py", "--batch_sizes=", "pass whole numbers, as 1,8"),
    ("papers/diloco.py", "--periods=0", "pass numbers from 1: a round has"),
    ("advise.py", "--hidden=1000000000000", "pass a number from 1 to 1,000,000"),
]
BY_THE_LIBRARY = [
    ("compare.py", "--noall=1", "--noall=1 does not take an argument"),
    ("papers/hier_sgd.py", "--data=nothing", "--data=nothing: "),
    ("papers/adaptive_sgd.py", "--learning_rates=1,x", "pass numbers from 1e-30 to"),
    ("papers/batch_scaling.py", "--machine=uniform:100000000000", "uniform:1000000000"),
    (
        "calibrate.py",
        "--local_steps=1000000",
        "local_steps=(1000000,): pass",
    ),
]


@pytest.mark.parametrize(
    ("script", "flag", "message"),
    [(script, flag, f"{flag}: {said}") for script, flag, said in CASES]
    + BY_THE_LIBRARY,
)
def test_a_number_out_of_bounds_is_refused_at_once(tmp_path, script, flag, message):
    result = run(tmp_path, script, flag)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{Path(script).name}: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_every_number_of_a_papers_script_has_bounds():
    """Without them the library refuses it, perhaps when sections have run already."""
    papers = Path(__file__).parents[2] / "experiments" / "papers"
    for script in papers.glob("*.py"):
        text = script.read_text()
        named = re.findall(r"DEFINE_(?:float|integer)\(\s*\"(\w+)\"", text)
        listed = re.findall(r"bounded(?:_list)?\(\"(\w+)\"", text)
        every = "for name in" in text  # magma_threads.py bounds its flags in a loop
        assert every or set(named) <= set(listed), script.name
