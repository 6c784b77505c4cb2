"""Presence and failures from flags: the machine's scripted faults."""

import pytest
from absl import flags
from absl.testing import flagsaver
from script_main import run

import hetjax as hj
from experiments.common import availability_flags

MACHINE = hj.machine.preset("v100x4")
DRAWN = {"mean_on": 0.3, "mean_off": 0.1}


@pytest.fixture(autouse=True)
def _parsed():
    flags.FLAGS.mark_as_parsed()


def available(seconds=2.0, **values):
    """The machine with these flags, as if they were on the command line."""
    with flagsaver.as_parsed(**{name: str(value) for name, value in values.items()}):
        return availability_flags.with_availability(MACHINE, seconds)


def test_without_flags_the_machine_stays():
    assert available(None) == MACHINE
    assert available(None, failure_rate=0) == MACHINE


def test_a_file_of_presence(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("worker,on,off\ngpu1,0,0.5\n")
    expected = hj.machine.with_presence(MACHINE, {"gpu1": [(0, 0.5)]})
    assert available(None, presence=path) == expected


def test_drawn_presence_and_failures_combine(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("worker,on,off\ngpu1,0,0.5\n")
    expected = hj.machine.with_presence(MACHINE, path)
    expected = hj.machine.with_drawn_presence(expected, seconds=2.0, seed=3, **DRAWN)
    expected = hj.machine.with_failures(
        expected, rate=0.5, repair=0.2, seconds=2.0, seed=3
    )
    more = {"failure_rate": 0.5, "repair": 0.2, "availability_seed": 3}
    assert available(presence=path, **DRAWN, **more) == expected
    assert available(**DRAWN, **more) != available(**DRAWN, failure_rate=0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mean_on": 1}, "--mean_on and --mean_off: pass both, or neither"),
        ({"mean_off": 1}, "--mean_on and --mean_off: pass both, or neither"),
        ({"repair": 1}, "--repair is of failures: pass --failure_rate, too"),
        ({"availability_seed": 1}, "--availability_seed: nothing is drawn"),
        (DRAWN, "--mean_on: absences are drawn for the seconds of a run"),
        ({"failure_rate": 1}, "--failure_rate: absences are drawn for the seconds of"),
    ],
)
def test_flags_that_need_others(values, message):
    with pytest.raises(ValueError, match=message):
        available(None, **values)


@pytest.mark.parametrize(
    ("script", "given", "message"),
    [
        ("compare.py", ["--mean_on=0"], "--mean_on=0.0: pass a number from 1e-09 to"),
        ("compare.py", ["--failure_rate=-1"], "--failure_rate=-1.0: pass a number fro"),
        ("compare.py", ["--repair=nan"], "--repair=nan: pass a number from 1e-09 to"),
        (
            "compare.py",
            ["--machine=mesh", "--failure_rate=1"],
            "--failure_rate is for a simulated machine, not --machine=mesh",
        ),
        (
            "compare.py",
            ["--epochs=1", "--failure_rate=1"],
            "--failure_rate: absences are drawn for the seconds of a run, so pass --s",
        ),
        ("compare.py", ["--presence=none.csv"], "none.csv"),
        (
            "advise.py",
            ["--presence=none.csv"],
            "--presence is for a simulated machine, not --machine=local",
        ),
    ],
)
def test_refused_in_one_line(tmp_path, script, given, message):
    result = run(tmp_path, script, *given)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
