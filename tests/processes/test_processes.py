"""Processes of a run: what they tell each other, and how all name one that died."""

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from started_processes import PLAIN, WORKER, finish, start

from hetjax.processes import abort_handler, bootstrap, exchange, lifecycle, liveness
from hetjax.processes.liveness import Peer, Peers

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
    error = RuntimeError("a collective failed")
    assert lifecycle.blame(error) is error
    with pytest.raises(SystemExit) as status:
        lifecycle.end(3, "why")
    assert status.value.code == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("host:1 2 1", bootstrap.ProcessPlace("host:1", 2, 1)),
        ("host:1 1 0", None),
        ("host:1", f"{bootstrap.ADDRESS} is set, but {bootstrap.COUNT} and"),
        (" 2 1", f"{bootstrap.COUNT} and {bootstrap.INDEX} are set, but"),
        ("host 2 1", "use the form host:port"),
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


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[3-4]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
TPU = {"TPU_WORKER_HOSTNAMES": "a-0.svc,a-1.svc", "TPU_WORKER_ID": "1"}
SLICES = {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}
SLICES |= {"MEGASCALE_COORDINATOR_ADDRESS": "b-0.svc:99"}
PODS = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}
PLACES = [  # environment, (count, index, host of the coordinator) or None
    (SLURM, (2, 1, "node3")),
    ({**SLURM, "SLURM_STEP_NODELIST": "node[001,007-015],b"}, (2, 1, "node001")),
    ({**SLURM, "SLURM_STEP_NODELIST": "a,b"}, (2, 1, "a")),
    ({**SLURM, bootstrap.ADDRESS: "c:1"}, (2, 1, "c")),
    ({**SLURM, "SLURM_NTASKS": "1"}, None),
    ({k: SLURM[k] for k in SLURM if k != "SLURM_STEP_NODELIST"}, None),
    (OPEN_MPI, (3, 2, "10.96.0.1")),
    ({**SLURM, **OPEN_MPI}, (3, 2, "10.96.0.1")),
    (
        {**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": "7.0;tcp6://[fe80::b,26::2]:433"},
        (3, 2, "fe80::b"),
    ),
    ({k: OPEN_MPI[k] for k in OPEN_MPI if "uri" not in k}, None),
    (TPU, (2, 1, "a-0.svc")),
    ({**TPU, **SLICES}, (4, 3, "b-0.svc")),
    ({**TPU, "TPU_WORKER_HOSTNAMES": "localhost"}, None),
    (PODS, (0, 1, "")),
    ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
    ({"JOB_COMPLETION_INDEX": "1"}, None),
]


@pytest.mark.parametrize(("environment", "expected"), PLACES)
def test_the_place_in_a_cluster(monkeypatch, environment, expected):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    place = bootstrap.find_place(environment)
    assert place == (expected and bootstrap.ProcessPlace("", *expected))
    if place is not None:
        assert place.coordinator == place.host


def test_clusters_that_jax_cannot_use_are_not_joined(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert bootstrap.find_place(TPU) is None
    with pytest.warns(match="needs the package kubernetes"):
        assert bootstrap.find_place(PODS) is None


def test_own_address_without_a_known_coordinator(monkeypatch):
    host = socket.gethostname()
    assert liveness._own_address(0, "a") == "a"
    for index in (0, 1):
        assert liveness._own_address(index, "") not in ("", "localhost", "127.0.0.1")
    monkeypatch.setattr(liveness, "_ANYWHERE", ())
    assert liveness._own_address(1, "") == host
    assert liveness._own_address(1, "localhost") == "localhost"


def test_a_coordinator_that_does_not_answer():
    place = bootstrap.ProcessPlace("localhost:1", 2, 1)
    with pytest.raises(TimeoutError, match=r"localhost:1 did not answer within 0.1 s"):
        bootstrap.join(place, timeout=0.1, heartbeat=10)


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


def silent_port():
    """A socket that accepts, as of a process that hangs."""
    return socket.create_server(("localhost", 0))


def test_peers_tell_who_is_alive_silent_or_dead(monkeypatch):
    monkeypatch.setattr("hetjax.processes.liveness._ANSWER", 0.2)
    one, two, other_run = (
        Peers(i, "localhost", t) for i, t in ((0, "a"), (1, "a"), (0, "b"))
    )
    everyone = [one.me, two.me]
    for peers in (one, two):
        peers.connect(everyone)
    other_run.connect([other_run.me, two.me])
    assert (one.check(1), other_run.check(1)) == ("alive", "dead")
    assert one.diagnose(0) == ""
    with silent_port() as hung:
        one._watched = [two.me, Peer(2, "h", 5, "localhost", hung.getsockname()[1])]
        one._all[2] = one._watched[1]
        assert one.check(2) == "silent"
        expected = "process 2 (h, pid 5) hangs, or can no longer be reached"
        assert one.diagnose(0) == expected
    assert two.end_reason == expected  # it was told
    assert one.check(2) == "dead"  # the port is closed
    assert two.diagnose(0) == expected  # what is known already stays


def test_the_dead_are_named_before_the_silent(monkeypatch):
    monkeypatch.setattr("hetjax.processes.liveness._ANSWER", 0.2)
    peers = Peers(0, "localhost", "a")
    with silent_port() as hung, silent_port() as closed:
        ports = [s.getsockname()[1] for s in (hung, closed)]
        peers._watched = [Peer(i, "h", 5, "localhost", p) for i, p in enumerate(ports)]
        peers._all = {p.index: p for p in peers._watched}
        closed.close()
        assert peers.diagnose(9).startswith("process 1 (h, pid 5) died")


@pytest.mark.parametrize(("words", "status"), [("gone", 4), ("", -signal.SIGABRT)])
def test_an_abort_prints_a_message(words, status):
    """In a process of its own, which does not import the whole library."""
    code = (
        f"import os, runpy; m = runpy.run_path({abort_handler.__file__!r})\n"
        f"with m['message_on_abort'](lambda: {words!r}, status=4): os.abort()"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == status
    assert found.stderr == (f"-c: {words}\n" if words else "")


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
        assert re.match(r"process 2 \(.*, pid \d+\) did not come to \"late\"", line)
        assert "it is alive" in line
    assert len(late[0]) == len(late[1]) == 1


@pytest.mark.full
def test_a_process_that_has_ended_is_not_waited_for(exchanged):
    assert [status for status, _, _ in exchanged] == [1, 2, 1]
    ended = r"process 1 \(.*, pid \d+\) has ended: its file is missing"
    for process in (0, 2):
        seconds, reason = said(exchanged, "died")[process][0].split(" ", 1)
        assert int(seconds) < 10
        assert re.fullmatch(ended, reason)
        assert exchanged[process][2][-1] == f"process_worker.py: {reason}"


def kill_while_summing(victim, number):
    """Send a signal to one of three processes amid collectives; how the others end."""
    children = start(3, "sum", "1")
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
    return children[victim].pid, found


@pytest.mark.full
@pytest.mark.parametrize("victim", [1, 0])
def test_all_name_a_process_that_was_killed(victim):
    """Also the coordinator, without which JAX aborts the others at once."""
    pid, found = kill_while_summing(victim, signal.SIGKILL)
    for status, _, err in found:
        assert status == 1
        assert f"process {victim} ({socket.gethostname()}, pid {pid}) died" in err[-1]


@pytest.mark.full
def test_all_name_a_process_that_hangs():
    """It is noticed when the heartbeat's time is over: 5 s in these tests."""
    pid, found = kill_while_summing(1, signal.SIGSTOP)
    for status, _, err in found:
        assert status == 1
        assert f"process 1 ({socket.gethostname()}, pid {pid}) hangs" in err[-1]


@pytest.mark.full
def test_an_exception_of_one_process_ends_all():
    found = finish(start(2, "fail"))
    assert [status for status, _, _ in found] == [1, 1]
    assert found[1][2][-1] == "RuntimeError: no memory left"
    assert "process 1 (" in found[0][2][-1]
    assert "has ended: RuntimeError: no memory left" in found[0][2][-1]


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
    assert said(found, "watched") == [["1 2"], ["0 2"], ["0 1"]]


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
