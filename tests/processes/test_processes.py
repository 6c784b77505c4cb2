"""Processes of a run: what they tell each other, and how all name one that died."""

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import pytest
from started_processes import PLAIN, WORKER, finish, free_port, names, start

from hetjax.processes import bootstrap, exchange, lifecycle

NAMES = ", ".join(bootstrap.NAMES)
ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "experiments" / "launch.py"


# -- one process, and parts ------------------------------------------------------------


def test_a_process_alone_needs_no_runtime(monkeypatch):
    for name in bootstrap.NAMES:
        monkeypatch.delenv(name, raising=False)
    here = lifecycle.initialize()
    assert (here.index, here.count, exchange.is_first()) == (0, 1, True)
    assert here.gather("a", {"x": (1, 2)}) == [{"x": [1, 2]}]
    assert here.broadcast("a", "b") == "b"
    here.agree({"data": "digits"})
    error = RuntimeError("UNKNOWN: a collective failed")
    assert lifecycle.blame(error) is error
    with pytest.raises(SystemExit) as status:
        lifecycle.end(3, "why")
    assert status.value.code == 3


GIVEN = {
    "coordinator_address": "host:1",
    "num_processes": 2,
    "process_id": 1,
    "cluster_detection_method": "deactivate",
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("host:1 2 1", GIVEN),
        ("host:1 1 0", None),
        ("host:1", f"only {bootstrap.ADDRESS} set, without {bootstrap.COUNT} and"),
        (" 2 1", f"only {bootstrap.COUNT} and {bootstrap.INDEX} set, without"),
        ("host 2 1", "use the form host:port"),
        ("host:0 2 1", "use the form host:port"),
        ("host:65536 2 1", "use the form host:port"),
        ("host:1 two 1", f"{bootstrap.COUNT}=two: use a whole number from 1"),
        ("host:1 0 0", f"{bootstrap.COUNT}=0: use"),
        ("host:1 2 2", f"{bootstrap.INDEX}=2: use a whole number from 0 to 1"),
    ],
)
def test_the_place_in_the_environment(values, message):
    environment = dict(zip(bootstrap.NAMES, values.split(" "), strict=False))
    if not isinstance(message, str):
        assert bootstrap.find_place(environment) == message
        return
    with pytest.raises(ValueError, match=re.escape(message)):
        bootstrap.find_place(environment)


SLURM = {"SLURM_STEP_NODELIST": "node[3-4]", "SLURM_NTASKS": "2"}
MPI = {"OMPI_MCA_orte_hnp_uri": "1;tcp://10.0.0.1:1"}
TPU = {"TPU_WORKER_ID": "0"}
PODS = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}
CLUSTERS = [  # environment, and whether JAX is asked for the place in it
    (SLURM, True),
    ({**SLURM, bootstrap.ADDRESS: "c:1"}, True),
    ({**SLURM, "SLURM_NTASKS": "1"}, False),
    ({"SLURM_NTASKS": "2"}, False),  # the script of a job, without srun
    ({**MPI, "OMPI_COMM_WORLD_SIZE": "3"}, True),
    ({**MPI, "OMPI_COMM_WORLD_SIZE": "1"}, False),
    ({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "0"}, False),  # Open MPI 5
    ({**TPU, "TPU_WORKER_HOSTNAMES": "a-0.svc,a-1.svc"}, True),
    ({**TPU, "TPU_WORKER_HOSTNAMES": "localhost"}, False),
    ({**TPU, "TPU_PROCESS_ADDRESSES": "a-0.svc:1,a-1.svc:1"}, True),
    ({"TPU_WORKER_HOSTNAMES": "a-0.svc,a-1.svc"}, False),
    (PODS, True),
    ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
    ({"JOB_COMPLETION_INDEX": "1"}, False),
]


@pytest.mark.parametrize(("environment", "expected"), CLUSTERS)
def test_the_place_in_a_cluster(environment, expected, monkeypatch):
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: object())
    assert bootstrap.find_place(environment) == ({} if expected else None)


def test_without_the_package_that_jax_needs_a_process_is_alone(monkeypatch):
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None)
    hosts = {**TPU, "TPU_WORKER_HOSTNAMES": "a-0.svc,a-1.svc"}
    assert bootstrap.find_place(hosts) is None
    with pytest.warns(UserWarning, match=r"runs alone, .* pip install 'jax\[k8s\]'"):
        assert bootstrap.find_place(PODS) is None


LOST = """
from hetjax.processes import bootstrap
bootstrap.find_place = lambda environment: {}  # as if JAX could find its processes
try:
    bootstrap.join(timeout=2, heartbeat=10)
except ConnectionError as error:
    print(error)
"""


def test_a_cluster_whose_processes_jax_does_not_find_is_an_error():
    command = [sys.executable, "-c", LOST]
    found = subprocess.run(
        command, env=PLAIN, capture_output=True, text=True, check=True
    )
    message = f"does not find the processes of this cluster .*: set {NAMES}"
    assert re.search(message, found.stdout)


JOIN = """
from hetjax.processes import bootstrap
bootstrap._SILENT = 0.5
bootstrap.join(timeout=2, heartbeat=10)
"""


@pytest.mark.full
@pytest.mark.parametrize("index", [0, 1])
def test_a_process_whose_others_do_not_come(index):
    found = subprocess.run(
        [sys.executable, "-c", JOIN],
        env={
            **PLAIN,
            bootstrap.ADDRESS: f"localhost:{free_port()}",
            bootstrap.COUNT: "2",
            bootstrap.INDEX: str(index),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert f"-c: process {index} waits for all others at the coord" in found.stderr
    last = found.stderr.splitlines()[-1]
    assert re.fullmatch(r"-c: not all processes came to .*within 2 s: start .*", last)


def test_a_disagreement_is_shown_where_it_begins():
    same = "path/" * 50
    values = [same + "one", same + "two\n", same + "one", "none"]
    found = exchange._disagreement("data", values)
    assert re.fullmatch(
        r"the processes disagree about the data: process 1 has \.\.\..*path/two , "
        r"processes 0, 2 have \.\.\..*path/one, and 1 more values: start all .*",
        found,
    )
    assert len(found) < 300


class Store(dict):
    """As the key-value store of JAX's runtime, for threads."""

    def key_value_set(self, key, value):
        assert key not in self
        self[key] = value

    def blocking_key_value_get(self, key, milliseconds):
        end = time.monotonic() + milliseconds / 1000
        while key not in self:
            if time.monotonic() > end:
                raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
            time.sleep(0.001)
        return self[key]


def test_process_0_raises_a_disagreement_after_the_others_have_read_it():
    store, done = Store(), []
    first, second = (exchange.Processes(store, index, 2) for index in range(2))

    def differ():
        with pytest.raises(ValueError, match="process 1 has two, process 0 has one"):
            first.agree({"data": "one"})
        done.append("first")

    thread = threading.Thread(target=differ)
    thread.start()
    store.key_value_set("hetjax/agree/1/1", '{"data": "two"}')  # it has not yet read
    thread.join(0.2)
    assert not done
    del store["hetjax/agree/1/1"]
    with pytest.raises(ValueError, match="process 1 has two, process 0 has one"):
        second.agree({"data": "two"})
    thread.join()
    assert done == ["first"]


# -- several processes -----------------------------------------------------------------


@pytest.fixture(scope="module")
def exchanged():
    return finish(start(3, "exchange"))


def said(found, word):
    """What each process printed after a word."""
    return [
        [line[len(word) + 1 :] for line in out if line.startswith(f"{word} ")]
        for _, out, _ in found
    ]


@pytest.mark.full
def test_values_go_around(exchanged):
    gathered = [f"[[{i}, 0], [{i}, 1], [{i}, 2]]" for i in range(2)]
    assert said(exchanged, "gather") == [gathered] * 3
    assert said(exchanged, "broadcast") == [["of 0"]] * 3
    assert said(exchanged, "is first") == [["True"], ["False"], ["False"]]


@pytest.mark.full
def test_every_process_tells_what_they_disagree_about(exchanged):
    found = said(exchanged, "unequal")
    assert found == [found[0]] * 3
    data, settings = found[0]
    assert re.fullmatch(
        r"the processes disagree about the data: process 2 has \.\.\.x+y, processes "
        r"0, 1 have \.\.\.x+z: start all with the same files and flags",
        data,
    )
    assert "process 1 has 1, process 0 has 0, and 1 more values" in settings


@pytest.mark.full
def test_a_late_process_is_named(exchanged):
    late = said(exchanged, "late")
    assert late[2] == []
    for line in (*late[0], *late[1]):
        assert line.startswith('process 2 did not come to "late" in time: it hangs')
    assert len(late[0]) == len(late[1]) == 1


@pytest.mark.full
def test_a_process_that_has_ended_is_not_waited_for(exchanged):
    first, second, third = exchanged
    assert second[0] == 2
    assert second[2][-1] == "process_worker.py: its file is missing"
    for status, _, err in (first, third):
        assert status != 0
        assert names(1, err)


def stop_while_summing(victim, number):
    """Send a signal to one of three processes amid collectives; how the others end."""
    children = start(3, "sum")
    for child in children:
        assert child.stdout is not None
        while not child.stdout.readline().startswith("summing"):
            assert child.poll() is None
    time.sleep(0.3)
    children[victim].send_signal(number)
    others = [child for i, child in enumerate(children) if i != victim]
    found = finish(others)
    children[victim].kill()
    finish([children[victim]])
    return found


@pytest.mark.full
@pytest.mark.parametrize("victim", [1, 0])
def test_all_name_a_process_that_was_killed(victim):
    """Also the coordinator, without which JAX aborts the others at once."""
    for status, _, err in stop_while_summing(victim, signal.SIGKILL):
        assert status != 0
        assert names(victim, err), "\n".join(err)


@pytest.mark.full
def test_all_name_a_process_that_hangs():
    """It is noticed when the heartbeat's time is over: 5 s in these tests."""
    for status, _, err in stop_while_summing(1, signal.SIGSTOP):
        assert status != 0
        assert names(1, err)


@pytest.mark.full
def test_an_exception_of_one_process_ends_all():
    first, second = finish(start(2, "fail"))
    assert second[0] == 1
    assert second[2][-1] == "RuntimeError: no memory left"
    assert first[0] != 0
    assert names(1, first[2])


@pytest.mark.full
def test_a_process_that_blames_others_in_error_ends_all():
    first, second = finish(start(2, "mistake"))
    assert second[0] == 4
    assert first[0] != 0
    assert names(1, first[2])


@pytest.mark.full
def test_a_process_that_still_works_is_waited_for():
    first, second = finish(start(2, "linger"))
    assert (first[0], second[0]) == (0, 0), "\n".join(second[2])
    assert first[1][-1] == "written"


# -- launch.py -------------------------------------------------------------------------

SCRIPT = """
import os, sys, time
index = int(os.environ["JAX_PROCESS_ID"])
names = ("JAX_NUM_PROCESSES", "JAX_NUM_CPU_DEVICES", "JAX_LOCAL_DEVICE_IDS")
print("out", index, *(os.environ[name] for name in names), flush=True)
print("err", index, *sys.argv[1:], file=sys.stderr, flush=True)
"""


def launch(folder, ending, *flags, arguments=()):
    """Launch a script that prints, and ends in some way."""
    script = folder / "script.py"
    script.write_text(SCRIPT + ending)
    command = [sys.executable, str(LAUNCH), *flags, "--", str(script), *arguments]
    return subprocess.Popen(
        command, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_launch_starts_processes_and_marks_their_lines(tmp_path):
    flags = ("--processes=3", "--devices_per_process=2")
    [(status, out, err)] = finish([launch(tmp_path, "", *flags, arguments=["--x=1"])])
    assert (status, out) == (0, ["out 0 3 2 0,1"])
    expected = ["err 0 --x=1", "[1] err 1 --x=1", "[1] out 1 3 2 2,3"]
    expected += ["[2] err 2 --x=1", "[2] out 2 3 2 4,5"]
    assert sorted(err) == sorted(expected)


def test_launch_exits_with_the_first_failure_after_a_grace_time(tmp_path):
    ending = """
if index == 1:
    sys.exit(5)
time.sleep([0.5, 0, 60][index])
sys.exit(index + 1)
"""
    began = time.monotonic()
    flags = ("--processes=3", "--grace=1.5")
    [(status, _, err)] = finish([launch(tmp_path, ending, *flags)])
    assert status == 5
    assert time.monotonic() - began < 30
    assert "launch.py: process 1 ended with status 5, before the others" in err
    assert "launch.py: stops process 2: SIGTERM" in err  # 0 had ended by itself
    assert "launch.py: process 2 was ended by SIGTERM" in err


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 7), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
)
def test_launch_passes_signals_on(tmp_path, number, status):
    ending = """
try:
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(7)
"""
    launcher = launch(tmp_path, ending, "--processes=2")
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    launcher.stdout.readline()  # process 0 runs
    lines = [launcher.stderr.readline() for _ in range(3)]
    assert any(line.startswith("[1] err") for line in lines)  # process 1, too
    time.sleep(0.2)
    launcher.send_signal(number)
    assert finish([launcher])[0][0] == status


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no script: write launch.py --processes=2 -- SCRIPT FLAGS"),
        (["--", "nosuch.py"], "there is no script nosuch.py, nor /"),
        (["--processes=0", "--", "a.py"], "flag --processes=0: 0 is not a positive"),
    ],
)
def test_launch_says_what_is_wrong(arguments, message):
    command = [sys.executable, str(LAUNCH), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr.startswith(f"launch.py: {message}")
    assert found.stderr.count("\n") == 1


@pytest.mark.full
def test_processes_that_the_user_has_joined():
    """JAX knows their places; the environment knows nothing."""
    found = finish(start(3, "joined"))
    assert [status for status, _, _ in found] == [0, 0, 0], found[0][2]
    assert said(found, "place") == [["0 3 True"], ["1 3 False"], ["2 3 False"]]


@pytest.mark.full
def test_all_processes_of_a_launch_end_with_their_disagreement():
    command = [sys.executable, str(LAUNCH), "--processes=3", "--", str(WORKER)]
    found = subprocess.run(
        [*command, "disagree"],
        env=PLAIN,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 2
    message = "process_worker.py: the processes disagree about the data: process 2 has "
    lines = [line for line in found.stderr.splitlines() if message in line]
    assert sorted(line[:4] for line in lines) == ["[1] ", "[2] ", "proc"]


@pytest.mark.full
def test_a_script_prints_and_writes_once(tmp_path):
    command = [sys.executable, str(LAUNCH), "--processes=2", "--", "compare.py"]
    flags = ["--strategies=sma", "--seconds=0.02", "--num_evals=2", f"--out={tmp_path}"]
    found = subprocess.run(
        [*command, *flags],
        env={**PLAIN, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("strategy  best accuracy") == 1
    assert found.stdout.startswith("strategy")
    assert "[1] " not in found.stderr
    assert (tmp_path / "results.json").exists()
