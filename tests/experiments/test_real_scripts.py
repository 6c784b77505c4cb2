"""Scripts on this machine's own devices: calibrate, advise, compare --machine=local."""

import json

import pytest
import script_main
from script_runs import run

from hetjax.machine import load_machine
from hetjax.tracing.trace import Trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def calibrated(folder):
    found = run(
        folder,
        "calibrate.py",
        *("--cpu_devices=2", "--slowdown=cpu:1=3", "--hidden=8", "--out=two.json"),
        *("--batch_sizes=8,16", "--local_steps=1,2", "--repeats=2"),
    )
    assert found.returncode == 0, found.stderr
    return found


@pytest.mark.full
def test_calibrate_prints_its_fit_and_writes_a_machine(calibrated, folder):
    assert "error of the fit: median" in calibrated.stdout
    machine = load_machine(folder / "two.json")
    assert [(w.name, w.factor) for w in machine.workers] == [("cpu:0", 1), ("cpu:1", 3)]


@pytest.mark.full
def test_advise_ranks_on_that_machine(calibrated, folder):
    arguments = ("--machine=two.json", "--hidden=8", "--batch_size=16")
    found = run(folder, "advise.py", *arguments)
    assert found.returncode == 0, found.stderr
    assert "cpu:0 (8 x 16) + cpu:1" in found.stdout
    assert "worth it" in found.stdout
    other = run(folder, "advise.py", "--machine=two.json", "--hidden=9")
    assert other.returncode == 2
    assert "was calibrated with another model" in other.stderr


@pytest.mark.full
def test_compare_on_this_machine_leaves_traces(folder):
    found = run(
        folder,
        "compare.py",
        *("--machine=local", "--cpu_devices=2", "--slowdown=cpu:1=2", "--hidden=8"),
        *("--strategies=elastic_sgd,async_sgd", "--seconds=0.3", "--num_evals=2"),
    )
    assert found.returncode == 0, found.stderr
    assert "virtual" not in found.stdout
    results = json.loads((folder / "results" / "results.json").read_text())
    assert all(run["real"] for run in results["runs"])
    for name in ("elastic_sgd", "async_sgd"):
        trace = Trace.load(folder / "results" / "traces" / f"{name}_0.jsonl")
        assert trace.header["name"] == name
        assert trace.end["params"]


@pytest.mark.parametrize(
    ("machine", "flag", "message"),
    [
        ("local", "--slowdown=cpu:1", "--slowdown=cpu:1: write worker=factor"),
        ("local", "--devices=gpu:7", "there is no device 'gpu:7'"),
        ("v100x4", "--devices=gpu:7", "there is no device 'gpu:7'"),
    ],
)
def test_wrong_devices_are_a_one_line_error(tmp_path, machine, flag, message):
    command = (f"--machine={machine}", flag, "--out=other")
    found = script_main.run(tmp_path, "compare.py", *command)
    assert found.returncode == 2
    assert message in found.stderr
    assert "Traceback" not in found.stderr
