"""Scripts on a cluster: --machine=cluster, and the benchmark's JSON."""

import json
import os
import subprocess
import sys

import pytest
import script_main
from benchmark_json import printed
from once import alone
from script_runs import run as run_script

from hetjax.machine import load_machine

TINY = ("--seconds=1", "--num_evals=2", "--strategies=local_sgd,async_sgd")


@pytest.fixture(autouse=True)
def _one_cluster(tmp_path_factory):
    with alone(tmp_path_factory, "ray"):
        yield


def run(folder, script, *arguments):
    """As of a user who never used Ray, which makes a token in the home folder."""
    mine = {"RAY_ADDRESS": None, "RAY_AUTH_MODE": None, "HOME": str(folder)}
    return run_script(folder, script, *arguments, **mine)


@pytest.mark.full
def test_compare_on_a_cluster_that_it_starts(tmp_path):
    pytest.importorskip("ray")
    cluster = ("--machine=cluster", "--local_workers=2", "--slowdown=HOST/cpu:1=2")
    host = os.uname().nodename
    cluster = [flag.replace("HOST", host) for flag in cluster]
    found = run(tmp_path, "compare.py", *cluster, *TINY)
    assert found.returncode == 0, found.stderr
    assert "a cluster of 1 node" in found.stdout
    assert "MB per worker" in found.stdout
    document = json.loads((tmp_path / "results/results.json").read_text())
    assert document["machine"]["name"] == "cluster"
    assert [w["slowdown"] for w in document["machine"]["workers"]] == [1.0, 2.0]
    for made in document["runs"]:
        assert made["real"]
        assert all(w["bytes_sent"] > 0 for w in made["workers"])
    traces = list((tmp_path / "results/traces").iterdir())
    assert len(traces) == 2
    again = run(tmp_path, "compare.py", *cluster, *TINY, "--out=results")
    assert again.returncode == 0, again.stderr  # everything was kept


@pytest.mark.full
def test_calibrate_on_a_cluster(tmp_path):
    pytest.importorskip("ray")
    found = run(
        tmp_path,
        "calibrate.py",
        *("--machine=cluster", "--local_workers=2", "--hidden=8", "--out=two.json"),
        *("--batch_sizes=8,16", "--local_steps=1,2", "--repeats=2"),
    )
    assert found.returncode == 0, found.stderr
    machine = load_machine(tmp_path / "two.json")
    assert [w.name.split("/")[1] for w in machine.workers] == ["cpu:0", "cpu:1"]
    assert all(w.latency > 0 for w in machine.workers)


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--machine=cluster", "--address=127.0.0.1:1"), "no Ray cluster answers at"),
        (("--machine=cluster", "--address=here"), "must be host:port"),
        (("--machine=cluster", "--resources=CPU"), "write resource=number"),
        (
            ("--machine=cluster", "--local_workers=2", "--address=1.2.3.4:5"),
            "pass the address of a running cluster, or local_workers",
        ),
        (("--machine=cluster", "--cpu_devices=2"), "--cpu_devices is for devices of"),
        (("--local_workers=2",), "--local_workers is for --machine=cluster"),
        (("--slowdown=cpu:1=2",), "--slowdown is for devices of one's own"),
    ],
)
def test_what_cannot_be_meant_is_one_line(flags, message, tmp_path):
    pytest.importorskip("ray")
    # what asks Ray is a process of its own
    start = run if "no Ray cluster" in message else script_main.run
    found = start(tmp_path, "compare.py", *flags)
    assert (found.returncode, found.stdout) == (2, "")
    last = found.stderr.strip().splitlines()[-1]
    assert message in last


@pytest.mark.full
def test_a_stale_address_is_told_from_a_cluster(tmp_path):
    """Ray notes the address of a cluster in a file, which outlives it."""
    pytest.importorskip("ray")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("127.0.0.1:1")
    code = "import hetjax as hj; hj.cluster_machine()"
    environment = {**os.environ, "RAY_TMPDIR": str(tmp_path)}
    environment.pop("RAY_ADDRESS", None)
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert "from Ray's file; the cluster may have died" in found.stderr
    environment["RAY_TMPDIR"] = str(tmp_path / "empty")
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert "no Ray cluster is running on this machine" in found.stderr


@pytest.mark.full
def test_the_benchmark_of_clusters():
    pytest.importorskip("ray")
    found = printed(
        "cluster.py",
        "--parts=overhead,steps,many",
        *("--megabytes=0.1", "--step_ms=20", "--workers=2,3"),
        *("--seconds=0.3", "--turns=1"),
    )
    row = found["medians"]["overhead"]["0.1MB"]
    for kind in ("round", "arrival"):
        ratio = row[f"{kind}_cluster_ms"] / row[f"{kind}_threads_ms"]
        assert found["ratios"][f"overhead/0.1MB/{kind}"] == pytest.approx(
            ratio, rel=1e-2
        )
    for kind in ("round", "arrival", "sma", "easgd"):
        assert row[f"{kind}_moved"] == pytest.approx([1.0, 1.0], abs=0.1)
    steps = found["medians"]["steps"]["0.1MB/20ms"]
    share = 1 - steps["step_ms"] / steps["round_ms"]
    assert found["ratios"]["steps/0.1MB/20ms"] == pytest.approx(share, abs=1e-3)
    assert set(found["medians"]["many"]) == {"2", "3"}
