"""The main script: its files, its exit status, and one line for every user's error."""

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import script_main
from full_disk import full_disk
from matplotlib.figure import Figure
from quick import quick

from experiments.common.strategy_flags import build_strategies
from hetjax.api.session import Session
from hetjax.machine import preset
from hetjax.report import results_folder

ROOT = Path(__file__).parents[2]
jax.random.key(0)  # JAX compiles its own programs for keys once in a process
# batch sizes do not change in runs as short as these
NAMES = [name for name in results_folder.NAMES if name != "batch_sizes.png"]
COMPARE = ROOT / "experiments" / "compare.py"
TINY = ["--seconds=0.1", "--num_evals=2", "--hidden=8", "--batch_size=32"]
BOTH = [*TINY, "--strategies=adaptive_sgd,sma"]


def environment(**more):
    return {**os.environ, "JAX_PLATFORMS": "cpu", **more}


def compare(*arguments, script=(str(COMPARE),), **options):
    """Run the script in a separate process."""
    command = [sys.executable, *script, *arguments]
    options = {"env": environment(), "capture_output": True, "text": True, **options}
    return subprocess.run(command, check=False, timeout=300, **options)


# The results of a valid command.


def document(folder):
    """results.json; NaN and infinity are not JSON."""
    text = (folder / "results.json").read_text()
    return json.loads(text, parse_constant=lambda name: pytest.fail(name))


def test_a_table_and_the_files_with_all_their_fields(tmp_path):
    result = script_main.run(tmp_path, "compare.py", *BOTH, "--seeds=2", "--out=out")
    assert result.returncode == 0, result.stderr
    out = tmp_path / "out"
    assert {p.name for p in out.iterdir()} == {*NAMES, "runs"}
    lines = result.stdout.splitlines()
    assert re.match(
        r"strategy +best accuracy +final accuracy +virtual seconds to", lines[0]
    )
    assert [line.split()[0] for line in lines[2:4]] == ["adaptive_sgd", "sma"]
    assert lines[-1] == "wrote " + ", ".join(f"out/{name}" for name in NAMES)
    assert "\n100 %, sma, " in result.stderr  # of the progress
    assert "Traceback" not in result.stderr
    for name in NAMES[2:4]:
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    assert (out / "report.html").read_text().startswith("<!DOCTYPE html>")
    results = document(out)
    check_results(results)
    for run in results["runs"]:
        check_run(run)
        check_evaluations_and_workers(run)
    check_summary(results["summary"])


def types(record):
    return {name: type(value) for name, value in record.items()}


def check_results(results):
    assert {**types(results), "tuning": None} == {
        "hetjax": str,
        "versions": dict,
        "data": dict,
        "machine": dict,
        "tuning": None,
        "target": float,
        "constant": float,
        "target_is_default": bool,
        "signal": str,
        "metric": str,
        "mode": str,
        "runs": list,
        "summary": list,
    }
    names = [(run["strategy"], run["seed"]) for run in results["runs"]]
    assert names == [(s, k) for s in ("adaptive_sgd", "sma") for k in (0, 1)]
    assert (results["metric"], results["tuning"]) == ("accuracy", None)
    assert results["machine"]["name"] == "v100x3+k80"
    assert results["data"]["train_examples"] > 10_000


def check_run(run):
    assert types(run) == {
        "strategy": str,
        "algorithm": str,
        "parts": dict,
        "parameters": int,
        "command": str,
        "seed": int,
        "schedule_seed": int,
        "settings": dict,
        "output": str,
        "duration": float,
        "evals": list,
        "eval_examples": int,
        "at_end": dict,
        "workers": list,
        "staleness": list,
        "merges": int,
        "root_merges": int,
        "unseen_merge": float,
        "merge_times": list,
        "compilations": int,
        "programs": dict,
        "compile_seconds": float,
        "host_seconds": float,
        "stopped": str,
        "real": bool,
        "placement": str,
        "played": str,
        "estimates_busy": bool,
        "step_modes": dict,
        "events": list,
        "interruptions": list,
        "stuck": list,
    }
    assert [p["seconds"] for p in run["evals"]] == [0.0, 0.05, 0.1]
    assert len(run["workers"]) == len(run["staleness"]) == 4
    assert run["compilations"] == sum(run["programs"].values())


def check_evaluations_and_workers(run):
    point = {
        "seconds": float,
        "updates": int,
        "examples": int,
        "merges": int,
        "bytes": int,
        "loss": float,
        "accuracy": float,
    }
    kinds = ("busy", "waiting", "merging", "transfer", "idle")
    seconds = dict.fromkeys(kinds, float)
    counts = ("updates", "examples", "padded", "lost", "nans", "cancelled")
    numbers = dict.fromkeys((*counts, "bytes_received", "bytes_sent"), int)
    texts = {"name": str, "node": str}
    worker = {**texts, **seconds, **numbers, "batch_size_over_time": list}
    worker["cancelled_seconds"] = float  # part of the busy ones
    for p in run["evals"]:
        assert point.items() <= types(p).items()
    for w in run["workers"]:
        assert types(w) == worker
        assert sum(w[name] for name in seconds) == pytest.approx(0.1)
        for when, size in w["batch_size_over_time"]:
            assert (type(when), type(size)) == (float, float)


def check_summary(rows):
    assert [row["strategy"] for row in rows] == ["adaptive_sgd", "sma"]
    for row in rows:
        assert type(row["best"]) is float
        assert type(row["seconds_to_target"]) in (float, type(None))
        assert type(row["waiting_share"]) is float
        assert row["seeds"] == [0, 1]
    assert rows[1]["waiting_share"] > 0.05  # rounds of heterogeneous workers


@pytest.mark.full  # two processes
def test_the_same_command_gives_the_same_files(tmp_path):
    """With strings in sets in another order, except for the host's seconds."""
    for name, hash_seed in (("a", "1"), ("b", "2")):
        (tmp_path / name).mkdir()
        options = {"cwd": tmp_path / name, "env": environment(PYTHONHASHSEED=hash_seed)}
        result = compare(*BOTH, "--seeds=2", "--out=out", **options)
        assert result.returncode == 0, result.stderr
    folders = [tmp_path / name / "out" for name in "ab"]
    texts = [(out / "results.json").read_text() for out in folders]
    host = re.compile(r'^ *"(compile|host)_seconds": .*$', re.MULTILINE)
    assert len(host.findall(texts[0])) == 8
    assert host.sub("", texts[0]) == host.sub("", texts[1])
    for name in NAMES[1:]:
        one, other = ((out / name).read_bytes() for out in folders)
        if name == "report.html":
            wall = re.compile(rb"<dt>wall time</dt><dd>[^<]*")
            assert len(wall.findall(one)) == 1
            one, other = wall.sub(b"", one), wall.sub(b"", other)
        assert one == other, name


# Ctrl-C.


def until(stream, word):
    """Read until a word appears; the output has no line ends."""
    text = ""
    while word not in text:
        character = stream.read(1)
        assert character, f"ended without {word!r}: {text}"
        text += character
    return text


def interrupted_at(text, arguments, **variables):
    """(status, stdout, stderr) of a process that gets SIGINT once it writes a text."""
    with subprocess.Popen(
        [sys.executable, str(COMPARE), *arguments],
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            until(process.stderr, text)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    return process.returncode, out, err


@pytest.mark.full  # a process that waits for a signal
@pytest.mark.parametrize("name", ["local_steps", "merge_replicas"])
def test_ctrl_c_while_a_real_machine_prepares(tmp_path, name):
    """It comes while this program is compiled, in a thread or in the main one."""
    arguments = [*BOTH, "--machine=local", "--cpu_devices=2", f"--out={tmp_path}"]
    status, _, err = interrupted_at(
        f"Compiling jit({name})", arguments, JAX_LOG_COMPILES="1"
    )
    assert status == 130
    assert "Traceback" not in err
    assert "interrupted before there was a result" in err


@pytest.mark.full  # a process that waits for a signal
def test_ctrl_c_writes_the_results_so_far(tmp_path):
    """The run would never end; the progress bar shows that it began."""
    arguments = [*BOTH, "--seconds=10000", "--num_evals=200000", f"--out={tmp_path}"]
    status, out, err = interrupted_at("accuracy", arguments)
    assert status == 130
    assert "Traceback" not in err
    assert "adaptive_sgd, seed 0, stopped early: interrupted" in out
    (run,) = document(tmp_path)["runs"]
    assert (run["strategy"], run["stopped"]) == ("adaptive_sgd", "interrupted")
    assert run["evals"]
    assert {p.name for p in tmp_path.iterdir()} == {*NAMES, "runs"}


@pytest.mark.parametrize("number", quick([1, 2], 1))
def test_a_queue_is_asked_to_start_it_again_after_a_signal_between_two_runs(
    tmp_path, monkeypatch, number
):
    """The first is amid tuning, where there are no results yet."""
    run, made = Session.run, []

    def run_and_send(*args, **kwargs):
        history = run(*args, **kwargs)
        made.append(history)
        if len(made) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return history

    monkeypatch.setattr(Session, "run", run_and_send)
    arguments = [*BOTH, "--seconds=0.02", "--num_evals=2", f"--out={tmp_path}"]
    arguments += ["--learning_rates=0.1"] if number == 1 else []
    found = script_main.run(tmp_path, "compare.py", *arguments)
    assert len(made) == number
    assert "Traceback" not in found.stderr
    assert found.returncode == os.EX_TEMPFAIL


# Errors. {tmp} is the folder of all commands' inputs.

ERRORS = {
    "strategy": (
        ["--strategies=adaptive_sgd,easy_sgd"],
        "--strategies: unknown strategy 'easy_sgd'; known: sequential_sgd, sync_sgd, ",
    ),
    "no strategy": (["--strategies="], "no strategies to compare"),
    "data": (["--data=mnits"], "--data=mnits: neither digits, shifted_digits, mnist"),
    "function": (["--data=mine:none"], "--data=mine:none: mine has no none"),
    "tokens": (["--data=mine:tokens"], "with hetjax.next_token"),
    "empty folder": (["--data={tmp}/empty"], "looked for train.txt or train.txt.gz"),
    "damaged data": (
        ["--data={tmp}/damaged"],
        "damaged/train.txt:3: feature 'x:1' is not index:value",
    ),
    "machine": (
        ["--machine=v100x3"],
        "unknown machine 'v100x3'; known: v100x4, v100x2",
    ),
    "no machine file": (["--machine={tmp}/none.json"], "none.json"),
    "damaged machine": (["--machine={tmp}/damaged.json"], "damaged.json: "),
    "no workers": (["--machine=uniform:0"], "N of at least 1"),
    "negative seconds": (["--seconds=-1"], "seconds=-1.0: pass a number above 0"),
    "no seconds": (["--seconds=nan"], "seconds=nan: pass a number above 0"),
    "seconds in words": (["--seconds=long"], "--seconds=long"),
    "num_evals": (
        ["--num_evals=0"],
        "--num_evals=0: pass a number from 1 to 1,000,000",
    ),
    "seeds": (["--seeds=0"], "--seeds=0: pass a number from 1 to 10,000"),
    "learning_rate": (
        ["--learning_rate=0"],
        "learning_rate=0.0: pass a number above 0 or a function",
    ),
    "learning_rates": (["--learning_rates=0.1,-1"], "learning_rates=[0.1, -1.0]"),
    "rates in words": (["--learning_rates=0.1,low"], "--learning_rates=0.1,low"),
    "tune": (
        ["--tune=all", "--learning_rates=0.1"],
        "tune='all': choose one of common, each",
    ),
    "hidden": (["--hidden=0"], "--hidden=0: pass a number from 1 to 1,000,000"),
    "noise": (["--noise=-0.1"], "noise=-0.1: pass a number from 0 to 3"),
    "batch": (["--batch_size=100000"], "a batch of 100000 is larger than the"),
    "no batch": (["--batch_size=0"], "batch_size=0: pass a whole number of at least 1"),
    "bounds": (
        ["--set=adaptive_sgd.min_batch_size=64.0"],
        "adaptive_sgd: min_batch_size=64.0 is above batch_size=32",
    ),
    "set": (["--set=delta=0.2"], "--set=delta=0.2: write strategy.setting=value"),
    "set nothing": (
        ["--set=sma.local_steps"],
        "--set=sma.local_steps: write strategy.setting=value",
    ),
    "set whose": (
        ["--set=sync_sgd.learning_rate=1.0"],
        "'sync_sgd' is not among --strategies; those are adaptive_sgd, sma",
    ),
    "set name": (
        ["--set=adaptive_sgd.gamma=0.2"],
        "adaptive_sgd has no setting 'gamma'; it has batch_size, learning_rate, "
        "preset, min_batch_size",
    ),
    "set type": (
        ["--set=sma.local_steps=2.5"],
        "'2.5' is not of the setting's type (int)",
    ),
    "set truth": (["--set=sma.blocking=1"], "is not of the setting's type"),
    "set value": (
        ["--set=adaptive_sgd.bound=cut"],
        "adaptive_sgd: bound='cut': choose",
    ),
    # numbers that would exhaust the memory or never end
    "many evals": (["--num_evals=4294967296"], "--num_evals=4294967296: pass a number"),
    "many seeds": (["--seeds=10000000"], "--seeds=10000000: pass a number"),
    "many workers": (
        ["--machine=uniform:100000000000"],
        "uniform:100000000000",
    ),
    "wide": (["--hidden=1000000000000"], "--hidden=1000000000000: pass a number"),
    "dirichlet": (["--dirichlet=0"], "--dirichlet=0.0: pass a number from 1e-06 to"),
    "no devices": (
        ["--machine=local", "--cpu_devices=0"],
        "--cpu_devices=0: pass a number from 1 to 1,024",
    ),
    "no workers on a device": (
        ["--machine=local", "--workers_per_device=0"],
        "--workers_per_device=0: pass a number from 1 to 1,024",
    ),
    "unknown flag": (["--second=1"], "second"),
    "no flag": (["adaptive_sgd"], "'adaptive_sgd' is not a flag"),
    "noise of a real machine": (
        ["--machine=mesh", "--noise=0.1"],
        "--noise is for a simulated machine, not --machine=mesh",
    ),
    "player of a real machine": (
        ["--machine=mesh", "--compiled=false"],
        "--compiled is for a simulated machine, not --machine=mesh",
    ),
    "no player": (["--compiled=yes"], "--compiled=yes: value should be one of <auto|"),
    "seed of a schedule": (
        ["--schedule_seed=-1"],
        "--schedule_seed=-1: pass a number from 0 to",
    ),
    "slowdown of a simulated machine": (
        ["--slowdown=cpu:1=3"],
        "--slowdown is for devices of one's own, not --machine=v100x3+k80",
    ),
    "a flag of other tools": (["--lr=0.1"], "did you mean --learning_rate?"),
    "plan for seconds": (["--plan", "--epochs=1"], "--plan is of all --epochs"),
    "nothing to tune": (["--tune=each"], "--tune chooses among --learning_rates"),
    "all and some": (["--all"], "--all and --strategies: pass one of them"),
    "twice": (["--strategies=sma,sync_sgd,sma"], "--strategies: sma is there twice"),
    "plan of devices": (
        ["--plan", "--epochs=1", "--machine=local"],
        "--plan is for a simulated machine, not --machine=local",
    ),
    "no epochs": (["--epochs=0"], "--epochs=0.0: pass a number from 1e-06 to"),
    "schedule without epochs": (
        ["--schedule=cosine"],
        "--schedule=cosine needs --epochs, at which it ends",
    ),
    "falls of nothing": (
        ["--decay_at=1"],
        "--decay_at is for --schedule=steps, not constant",
    ),
    "schedules to choose from": (
        ["--schedule=steps", "--decay_at=1", "--learning_rates=0.1"],
        "--learning_rates chooses constant rates: pass no schedule",
    ),
    "pipeline": (
        ["--pipeline=imagenet"],
        "--pipeline=imagenet is for images [N, H, W, C] of uint8, but x of ",
    ),
    "dtype of a model": (["--dtype=bfloat16"], "--dtype: the model mlp has no such"),
    "remat of a model": (
        ["--model=lenet", "--remat"],
        "--remat: the model lenet has no such",
    ),
    "no weights": (
        ["--pretrained={tmp}/none.safetensors"],
        "none.safetensors': no such file or folder; pass a .safetensors file",
    ),
    "levels": (
        ["--strategies=hier_sgd", "--set=hier_sgd.local_steps=(4,16,64)"],
        "local_steps=(4, 16, 64) with levels=None: pass 2 numbers",
    ),
    "rows": (["--data=synthetic_xmc", "--rows=0"], "rows=0: pass a whole number"),
    "labels of classes": (
        ["--commonest_labels=5"],
        "--commonest_labels: shifted digits has one class for each example",
    ),
    "more labels than there are": (
        ["--data={tmp}/xmc", "--commonest_labels=5"],
        "--commonest_labels=5: xmc has 4 labels",
    ),
    "a machine that is not scaled": (
        ["--scale_machine"],
        "--scale_machine is for a machine whose name ends in -amazon670k, not --machi",
    ),
    "labels of other data": (
        ["--labels=5"],
        "--labels is for --data=synthetic_xmc, not for --data=shifted_digits",
    ),
}

XMC = "40 6 4\n" + "".join(
    f"{i % 4},{(i + 1) % 4} {i % 3}:1.0 {3 + i % 3}:0.5\n" for i in range(39)
)

GOOD = {
    "settings": [
        *BOTH,
        "--set=adaptive_sgd.delta=0.2",
        "--set=adaptive_sgd.scaling=none",
        "--set=sma.local_steps=2",
        "--set=sma.alpha=None",
    ],
    "sparse": [
        *TINY,
        "--data={tmp}/xmc",
        "--strategies=sma",
        "--batch_size=4",
        "--compiled=true",
        "--data_on=host",
    ],
    "tuned": [
        *TINY,
        "--data=synthetic_xmc",
        "--rows=64",
        "--test_rows=16",
        "--features=30",
        "--labels=7",
        "--nonzeros=5",
        "--labels_per_row=2",
        "--strategies=sync_sgd",
        "--batch_size=4",
        "--learning_rates=0.01,0.1",
        "--tune=each",
    ],
    "linear": [
        *("--data=synthetic_xmc", "--rows=64", "--test_rows=16", "--features=30"),
        *("--labels=7", "--nonzeros=5", "--labels_per_row=2", "--commonest_labels=3"),
        *("--model=linear", "--strategies=sync_sgd", "--batch_size=4", "--noise=0"),
        *("--machine=v100x1-amazon670k", "--scale_machine", "--seconds=0.4"),
        "--num_evals=2",
    ],
    "epochs": [
        *TINY[1:],
        "--num_evals=40",
        "--strategies=sync_sgd,async_sgd",
        "--epochs=0.5",
        "--schedule=cosine",
        "--warmup_epochs=0.1",
    ],
    "overwrite": [
        *TINY,
        "--strategies=sync_sgd",
        "--machine={tmp}/two.json",
        "--overwrite",
        "--compiled=False",
        "--schedule_seed=3",
    ],
}

MINE = """
import numpy as np
import hetjax as hj

def numbers():
    x = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    return hj.data.from_arrays((x, x.sum(1)), (x[:20], x[:20].sum(1)), name="sums")

def tokens():
    return hj.data.from_tokens(np.arange(99), np.arange(99), length=4)
"""
# Without --out, one after the other in the same folder, and where the results go.
OWN = ["--data=mine:numbers", *TINY, "--batch_size=4", "--seconds=0.02"]
NUMBERED = {
    "first": ([*OWN, "--strategies=sma"], "results"),
    # the first strategy is not there, but the second one has another setting
    "other setting": (
        [*OWN, "--strategies=async_sgd,sma", "--set=sma.local_steps=2"],
        "results-2",
    ),
    "one more strategy": ([*OWN, "--strategies=sma,sync_sgd"], "results"),
    "fewer strategies": ([*OWN, "--strategies=sync_sgd"], "results-3"),
    "tuned": ([*OWN, "--strategies=sma,sync_sgd", "--learning_rates=0.1"], "results-4"),
    "as before": ([*OWN, "--strategies=sma,sync_sgd"], "results"),
}


def prepare(folder):
    """The inputs of the commands, and a result to overwrite."""
    (folder / "overwrite").mkdir()
    (folder / "overwrite" / "results.json").write_text("of long ago")
    for name in ("empty", "damaged", "xmc"):
        (folder / name).mkdir()
    for name in ("train.txt", "test.txt"):
        (folder / "xmc" / name).write_text(XMC + " 0:1.0\n")  # a row without labels
        (folder / "damaged" / name).write_text(XMC)
    (folder / "damaged" / "train.txt").write_text("2 6 4\n0 1:1\n1 x:1\n")
    (folder / "mine.py").write_text(MINE)
    preset("v100x2", noise=0.0).save(folder / "two.json")
    (folder / "damaged.json").write_text('{"name": "two", "workers": []')


@pytest.fixture
def folder(tmp_path):
    """Where the commands find their inputs."""
    prepare(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder, monkeypatch):
    """Run it without drawing, which takes most of the time of short runs."""
    monkeypatch.setattr(Figure, "savefig", draw_nothing)

    def run(*arguments):
        filled = [a.replace("{tmp}", str(folder)) for a in arguments]
        return script_main.run(folder, "compare.py", *filled)

    return run


def draw_nothing(figure, file, **options):
    file.write_bytes(b"") if isinstance(file, Path) else file.write(b"")


@pytest.mark.parametrize("name", ERRORS)
def test_a_users_error_is_one_line_and_status_2(command, folder, name):
    arguments, message = ERRORS[name]
    result = command(*BOTH, *arguments, "--out={tmp}/no")
    assert (result.returncode, result.stdout, result.compiled) == (2, "", 0)
    assert result.stderr.startswith("compare.py: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not (folder / "no").exists()


def test_a_full_disk_leaves_the_table_and_names_the_files(command, folder):
    """Neither the runs nor all of the results can be written."""
    with (
        full_disk(1),
        pytest.warns(
            UserWarning, match=r"runs/sma_0/checkpoint-0\d*\.npz could not be"
        ),
    ):
        result = command("--data=mine:numbers", *OWN[1:], "--strategies=sma", "--out=o")
    assert result.returncode == 2
    assert [line.split()[0] for line in result.stdout.splitlines()[:3:2]] == [
        *("strategy", "sma")
    ]
    *_, last = result.stderr.splitlines()
    assert last.startswith("compare.py: [Errno 27] File too large: 'o/results.json'; ")
    assert last.endswith("; written: " + ", ".join(f"o/{n}" for n in NAMES[2:4]))


def test_a_folder_that_cannot_be_made_leaves_the_table_of_the_runs_before(
    command, folder
):
    (folder / "o" / "runs").mkdir(parents=True)
    (folder / "o" / "runs" / "sync_sgd_0").write_text("in the way")
    strategies = "--strategies=sma,sync_sgd"
    result = command("--data=mine:numbers", *OWN[1:], strategies, "--out=o")
    assert result.returncode == 2
    assert "sync_sgd_0" in result.stderr.splitlines()[-1]
    assert result.stdout.splitlines()[2].split()[0] == "sma"


@pytest.mark.parametrize("script", [[str(COMPARE)], ["-m", "experiments.compare"]])
def test_an_error_in_a_separate_process(tmp_path, script):
    """From any folder, as a file and as a module."""
    result = compare("--machine=v100x3", script=script, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("compare.py: unknown machine 'v100x3'; known: ")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def good(command, folder):
    """(the run, results.json) of a command that must succeed."""

    def run(name):
        result = command(*GOOD[name], f"--out={{tmp}}/{name}")
        assert result.returncode == 0, result.stderr
        assert {p.name for p in (folder / name).iterdir()} == {*NAMES, "runs"}
        return result, document(folder / name)

    return run


@pytest.mark.full  # half a pass over all data
def test_epochs_end_a_run(good):
    """Each strategy has as many evaluations in the time that it needs."""
    runs = good("epochs")[1]["runs"]
    for run in runs:
        examples = sum(worker["examples"] for worker in run["workers"])
        assert 0.5 * 12_942 <= examples <= 0.55 * 12_942
        assert len(run["evals"]) >= 39
    sync, other = (run["evals"][-1]["seconds"] for run in runs)
    assert sync > 2 * other


@pytest.mark.parametrize("epochs", [("--epochs=2",), ()])
def test_a_plan_writes_nothing(command, folder, epochs):
    """Without --epochs, it is of one."""
    strategies = "--strategies=sync_sgd,sma"
    result = command("--hidden=8", strategies, *epochs, "--plan", "--out={tmp}/no")
    assumed = "" if epochs else "--plan without --epochs: of one pass over the data\n"
    assert (result.returncode, result.stderr) == (0, assumed)
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["strategy", "virtual", "hours"]
    assert [line.split()[0] for line in lines[2:4]] == ["sync_sgd", "sma"]
    text = "2 epochs" if epochs else "1 epoch"
    assert f"{text} on v100x3+k80" in result.stdout
    assert not (folder / "no").exists()


def test_a_flag_file_may_set_more_than_is_compared(monkeypatch, capsys):
    """What the command itself sets of other strategies is a mistake."""
    of_file = ["sma.local_steps=2", "easgd_sync.momentum=0.5", "hogwild.x=1"]
    monkeypatch.setattr(sys, "argv", ["compare.py", "--flagfile=settings.flags"])
    built = build_strategies(["sma"], of_file, 8, 0.1)
    assert built["sma"].settings["local_steps"] == 2
    left_out = "left out, since --strategies does not name them: "
    assert capsys.readouterr().err == f"{left_out}{of_file[1]}, {of_file[2]}\n"
    for argument in ("--set=easgd_sync.momentum=0.5", "easgd_sync.momentum=0.5"):
        monkeypatch.setattr(sys, "argv", ["compare.py", argument])
        with pytest.raises(ValueError, match="'easgd_sync' is not among --strategies"):
            build_strategies(["sma"], of_file, 8, 0.1)
    with pytest.raises(ValueError, match="'smaa' is not among --strategies"):
        build_strategies(["sma"], ["smaa.local_steps=2"], 8, 0.1)


def test_epochs_on_devices_need_seconds(command):
    result = command("--strategies=local_sgd", "--epochs=1", "--machine=mesh")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--epochs: on --machine=mesh pass --seconds, too" in result.stderr


def test_settings_of_one_strategy_and_what_is_kept_of_them(command, good):
    first, results = good("settings")
    adaptive, sma = results["runs"]
    assert adaptive["settings"]["delta"] == 0.2
    assert adaptive["settings"]["scaling"] == "none"
    assert (sma["settings"]["local_steps"], sma["settings"]["alpha"]) == (2, None)
    # the others are as given by the common flags and the factory
    assert adaptive["settings"]["batch_size"] == sma["settings"]["batch_size"] == 32
    assert adaptive["settings"]["learning_rate"] == 0.3
    assert sma["settings"]["merge_momentum"] == 0.9
    sizes = [w["batch_size_over_time"] for w in adaptive["workers"]]
    assert sizes == [[[0.0, 32.0]]] * 4  # scaling is off
    # results are never overwritten silently
    other = command(*BOTH, "--out={tmp}/settings")
    assert (other.returncode, other.stdout, other.compiled) == (2, "", 0)
    assert "delta is 0.2 there, and 0.1 here" in other.stderr
    assert "--overwrite" in other.stderr
    # the same command takes the kept runs
    again, _ = good("settings")
    assert again.stdout == first.stdout
    # no stretches and evaluations of two strategies: the models alone
    assert again.compiled <= first.compiled - 4


@pytest.mark.parametrize("number", quick([2, len(NUMBERED)], 2))
def test_other_settings_go_to_the_next_folder(command, folder, number):
    """The first commands, or all, each after those before it."""
    runs = {}
    for name, (arguments, out) in list(NUMBERED.items())[:number]:
        runs[name] = result = command(*arguments)
        assert result.returncode == 0, (name, result.stderr)
        last = result.stdout.splitlines()[-1]
        assert last.startswith(f"wrote {out}/results.json"), name
        assert ("taking the next one" in result.stderr) == (out != "results"), name
    # a setting is compared before any run begins
    err = runs["other setting"].stderr
    assert "strategy.local_steps is 1 there, and 2 here: taking the next one" in err
    kept = {p.name for p in (folder / "results" / "runs").iterdir()}
    # a data set of one's own with numbers
    results = document(folder / "results")
    assert (results["data"]["name"], results["metric"]) == ("sums", "rmse")
    assert results["summary"][0]["best"] < results["runs"][0]["evals"][0]["rmse"]
    if number == 2:
        assert kept == {"sma_0"}
        return
    assert kept == {"sma_0", "sync_sgd_0"}
    # the runs in a numbered folder are taken again
    before, again = runs["one more strategy"], runs["as before"]
    assert again.stdout == before.stdout
    assert again.compiled < before.compiled


def test_a_users_own_machine_and_results_that_are_overwritten_on_request(good):
    _, results = good("overwrite")
    assert [r["strategy"] for r in results["runs"]] == ["sync_sgd"]
    assert results["runs"][0]["played"] == "reference player: compiled=False"
    assert [w["factor"] for w in results["machine"]["workers"]] == [1.0, 1.32]
    assert results["machine"]["noise"] == 0.0
    assert len(results["runs"][0]["workers"]) == 2


def test_a_folder_of_sparse_text(good):
    made, results = good("sparse")
    assert results["metric"] == "p@1"
    assert results["data"]["sparse"]
    assert results["data"]["train_examples"] == 40
    (run,) = results["runs"]
    assert run["played"] == "compiled"
    assert {"p@1", "p@3"} <= set(run["evals"][0])  # of four labels
    assert "without labels" in made.stderr
    assert any("without labels" in note for note in results["data"]["notes"])


def test_a_linear_model_of_few_labels_on_a_machine_scaled_to_it(good):
    result, results = good("linear")
    assert results["data"]["classes"] == 3
    assert results["data"]["name"].endswith(", 3 labels")
    # 31 x 3 numbers; a step takes as long as that of 1,024 examples there
    assert results["machine"]["name"] == "v100x1-amazon670k, batch 4, 0.000372 MB"
    said = "merges of 412 MB, scaled to batch 4, 0.000372 MB\n"
    assert said in result.stderr
    step = preset("v100x1-amazon670k").workers[0].cost.seconds(1024)
    (run,) = results["runs"]
    assert run["evals"][-1]["updates"] == int(0.4 / step) > 1


def test_synthetic_sparse_data_and_a_learning_rate_that_is_chosen(good, folder):
    result, results = good("tuned")
    sizes = ("train_examples", "test_examples", "features", "classes")
    assert [results["data"][name] for name in sizes] == [64, 16, 30, 7]
    (run,) = results["runs"]
    for point in run["evals"]:
        counts = {"seconds", "updates", "examples", "merges", "bytes"}
        metrics = {"loss", "p@1", "p@3", "p@5"}
        assert set(point) - {"train_loss"} == counts | metrics
    tuning = results["tuning"]
    assert (tuning["tune"], set(tuning["scores"]["sync_sgd"])) == (
        "each",
        {"0.01", "0.1"},
    )
    assert run["settings"]["learning_rate"] == tuning["chosen"]["sync_sgd"]
    best = max(tuning["scores"]["sync_sgd"], key=tuning["scores"]["sync_sgd"].get)
    assert float(best) == run["settings"]["learning_rate"]
    held = tuning["held_out"]
    said = f"learning rates, chosen on {held} held-out examples: sync_sgd {best}"
    assert said in result.stdout.splitlines()
    page = html.unescape((folder / "tuned" / "report.html").read_text())
    command = [a.replace("{tmp}", str(folder)) for a in GOOD["tuned"]]
    command.append(f"--out={folder}/tuned")
    assert shlex.join(["python", "experiments/compare.py", *command]) in page
