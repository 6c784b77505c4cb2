"""Invalid requests: devices, slowdowns, traces, machines of other models."""

import json
import signal
import threading
import time
from functools import partial

import jax
import pytest
from real_runs import DATA, TASK, real, rounds, small_data, three_workers

import hetjax as hj
from hetjax.api.progress import ProgressBar
from hetjax.machine import Cost, Link, Machine, Profile, ScriptedFault


@pytest.mark.parametrize(
    ("devices", "settings", "message"),
    [
        (["cpu:9"], {}, "no device 'cpu:9'; there are: .*cpu:0, cpu:1"),
        (["tpu"], {}, "no device 'tpu'"),
        (["cpu:0", "cpu:0"], {}, "pass every device once"),
        ([], {}, "at least one worker"),
        (["cpu:0"], {"workers_per_device": 0}, "workers_per_device=0"),
        (["cpu:0"], {"slowdown": 0.5}, "slowdown=0.5: pass a number of at least 1"),
        (["cpu:0"], {"slowdown": (1, 2)}, "2 entries for 1 workers"),
        (["cpu:0"], {"slowdown": {"gpu:0": 2}}, "unknown workers gpu:0: the workers"),
        (
            ["cpu:0"],
            {"step_mode": "folded"},
            "step_mode='folded': choose one of dispatch",
        ),
        (
            ["cpu:0"],
            {"faults": (ScriptedFault(1.0, "kill", "cpu:1"),)},
            "a fault names 'cpu:1', but there is no such worker",
        ),
        (
            ["cpu:0"],
            {"faults": (ScriptedFault(1.0, "join", "cpu:0"),)},
            "no worker is active when the run begins",
        ),
    ],
)
def test_invalid_machines(devices, settings, message):
    with pytest.raises(ValueError, match=message):
        hj.local_machine(devices, **settings)


def test_all_devices_are_found():
    """The four CPU devices of the tests, and any accelerators."""
    names = [w.name for w in hj.local_machine().workers]
    assert names[-8:] == [f"cpu:{k}" for k in range(8)]
    assert len(names) >= len(jax.devices())
    learners = hj.local_machine(
        ["cpu:1"], workers_per_device=2, slowdown={"cpu:1/1": 3.0}
    )
    assert [(w.name, w.slowdown) for w in learners.workers] == [
        ("cpu:1/0", 1.0),
        ("cpu:1/1", 3.0),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_nan": "ignore"}, "on_nan='ignore': choose one of"),
        ({"on_lost_worker": "panic"}, "on_lost_worker='panic': choose one of"),
        ({"seconds": 0.0}, "seconds=0.0"),
        ({"num_evals": 0}, "num_evals=0"),
    ],
)
def test_invalid_runs(options, message):
    settings = {"seconds": 0.3, "progress": False, **options}
    with pytest.raises(ValueError, match=message):
        hj.train(TASK, DATA, three_workers(), rounds(), **settings)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "run.jsonl"
    real(rounds(), epochs=1, seconds=60.0, num_evals=1200, trace=path)
    return path


def changed(recorded, tmp_path, change):
    """Change the lines of a trace."""
    lines = recorded.read_text().splitlines()
    path = tmp_path / "changed.jsonl"
    path.write_text("\n".join(change(lines)) + "\n")
    return path


def test_a_file_needs_its_task_and_data(recorded):
    with pytest.raises(ValueError, match="does not hold task and data: pass both"):
        hj.replay(recorded, progress=False)


def test_a_damaged_line_is_named(recorded, tmp_path):
    path = changed(recorded, tmp_path, lambda x: [*x[:4], x[4][:-5], *x[5:]])
    with pytest.raises(ValueError, match=r"changed.jsonl, line 5: damaged"):
        hj.replay(path, TASK, DATA, progress=False)


def test_a_trace_of_another_version(recorded, tmp_path):
    def newer(lines):
        return [json.dumps(json.loads(lines[0]) | {"trace": 99}), *lines[1:]]

    with pytest.raises(ValueError, match="line 1: a trace of version 99"):
        hj.replay(changed(recorded, tmp_path, newer), TASK, DATA, progress=False)


def test_a_file_that_is_not_a_trace(recorded):
    other = hj.adaptive_sgd(batch_size=4, learning_rate=0.1, mega_batch=40)
    with pytest.raises(ValueError, match="recorded with another strategy: local_sgd"):
        hj.replay(recorded, TASK, DATA, other, progress=False)
    wide = hj.classification(hj.models.mlp(hidden=6), DATA)
    with pytest.raises(ValueError, match="recorded with another model"):
        hj.replay(recorded, wide, DATA, progress=False)
    data = small_data(examples=61)
    with pytest.raises(ValueError, match="recorded with another data"):
        hj.replay(recorded, TASK, data, progress=False)


def test_a_strategy_with_other_settings_is_refused(recorded):
    """A replay ignores its policy, which would decide differently."""
    with pytest.raises(ValueError, match="with another local_steps: 2, not 3"):
        hj.replay(recorded, TASK, DATA, rounds(local_steps=3), progress=False)


def test_a_truncated_trace_is_replayed_as_far_as_it_goes(recorded, tmp_path):
    path = changed(recorded, tmp_path, lambda lines: lines[: len(lines) // 2])
    history = hj.replay(path, TASK, DATA, progress=False)
    assert history.stopped == "the trace was cut off here"
    assert history.merges > 0
    assert (
        history.replayed == "up to the end of the trace: the recorded run was cut off"
    )


def test_a_machine_of_another_model_gives_no_advice(tmp_path):
    path = tmp_path / "profile.json"
    hj.calibrate(
        TASK,
        DATA,
        three_workers(),
        batch_sizes=(2, 4),
        local_steps=(1, 2),
        repeats=2,
        path=path,
        progress=False,
    )
    machine = hj.machine.load_machine(path)
    assert [w.name for w in machine.workers] == ["cpu:0", "cpu:1", "cpu:2"]
    assert machine.calibration is not None
    assert machine.calibration.local_rounds > 0
    assert all(w.cost.seconds(4) > 0 for w in machine.workers)
    advice = hj.advise(TASK, DATA, machine, batch_size=4, seconds=0.05, progress=False)
    sets = {c.workers for c in advice.choices}
    assert len(sets) == 5  # one, two, three workers; and each of the others alone
    speeds = [c.examples_per_second for c in advice.choices]
    assert speeds == sorted(speeds, reverse=True)
    assert advice.verdict in str(advice)
    timed = hj.advise(
        TASK,
        DATA,
        machine,
        strategies={"rounds": rounds()},
        subsets=[("cpu:0",), ("cpu:0", "cpu:1")],
        target=0.2,
        seconds=0.1,
        progress=False,
    )
    assert all(c.best > 0 for c in timed.choices)
    with pytest.raises(ValueError, match="no worker 'cpu:7'"):
        hj.advise(
            TASK, DATA, machine, batch_size=4, subsets=[("cpu:7",)], progress=False
        )
    wide = hj.classification(hj.models.mlp(hidden=6), DATA)
    with pytest.raises(ValueError, match="was calibrated with another model"):
        hj.advise(wide, DATA, machine, batch_size=4, progress=False)
    with pytest.raises(ValueError, match="was calibrated with another model"):
        hj.train(wide, DATA, machine, rounds(), seconds=0.1, progress=False)


def test_advice_counts_whole_rounds():
    """Eight steps of 100 s beside eight of 1 s: one round is longer than the run."""
    machine = Machine(
        "m",
        (
            Profile("fast", "gpu", Cost(1.0, 0.0)),
            Profile("slow", "cpu", Cost(1e2, 0.0)),
        ),
        {"": Link(latency=0.0, bandwidth=1e18)},
    )
    advice = hj.advise(
        TASK,
        DATA,
        machine,
        strategies={
            "alone": hj.sequential_sgd(batch_size=4, learning_rate=0.1),
            "rounds": rounds(local_steps=8),
        },
        subsets=[("fast",), ("fast", "slow")],
        seconds=10.0,
        progress=False,
    )
    alone, both = advice.choices  # 4 examples per step
    assert alone.examples_per_second == pytest.approx(4.0)
    assert alone.waiting == pytest.approx(0.0, abs=1e-9)
    assert both.round_seconds == pytest.approx(800.0)
    assert both.examples_per_second == pytest.approx(2 * 8 * 4 / 800)
    assert both.waiting == pytest.approx((800 - 8) / 1600)


def test_only_a_real_run_is_recorded(tmp_path):
    machine = hj.machine.preset("v100x2")
    with pytest.raises(ValueError, match="trace='.*': only real runs are recorded"):
        hj.train(TASK, DATA, machine, rounds(), seconds=0.1, trace=tmp_path / "t.jsonl")


def test_a_part_of_a_local_machine():
    script = (
        ScriptedFault(0.1, "kill", "cpu:2"),
        ScriptedFault(0.1, "slow", "cpu:0", 2.0),
    )
    machine = three_workers(faults=script)
    part = machine.subset(["cpu:0"])
    assert [w.name for w in part.workers] == ["cpu:0"]
    assert part.faults == script[1:]
    with pytest.raises(ValueError, match="there is no worker 'cpu:7'"):
        machine.subset(["cpu:7"])


def test_ctrl_c_ends_a_calibration():
    """An interrupted calibration returns nothing."""

    def press():
        while not any(
            t.name.startswith("hetjax worker") for t in threading.enumerate()
        ):
            time.sleep(1e-3)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        hj.calibrate(
            TASK,
            DATA,
            hj.local_machine(["cpu:0", "cpu:1"]),
            batch_sizes=(2, 4),
            repeats=10**4,
            progress=False,
        )


def test_a_strategy_of_many_is_not_ranked_on_one_worker():
    """Nor sequential SGD on several workers; without any candidate an error says so."""
    advised = partial(hj.advise, TASK, DATA, hj.machine.preset("v100x2"), seconds=0.1)
    alone = hj.sequential_sgd(batch_size=4, learning_rate=0.1)
    advice = advised(strategies={"alone": alone, "rounds": rounds()})
    ranked = {(c.strategy, len(c.workers)) for c in advice.choices}
    assert ranked == {("alone", 1), ("rounds", 2)}
    with pytest.raises(ValueError, match="there is nothing to advise on: sequential_s"):
        advised(strategies={"rounds": rounds()}, subsets=[("gpu0",)])


def test_ctrl_c_keeps_the_advice_so_far(monkeypatch):
    """An interrupted candidate is left out; before the first one there is no advice."""
    machine = hj.machine.preset("v100x2")
    bar = ProgressBar.advance
    pressed = []

    def advance(self, *about, **more):
        bar(self, *about, **more)
        pressed.append(about)
        if len(pressed) == after:
            signal.raise_signal(signal.SIGINT)

    def advise():
        return hj.advise(
            TASK,
            DATA,
            machine,
            strategies={"one": rounds(), "two": rounds(local_steps=3)},
            subsets=[("gpu0", "gpu1")],
            target=2.0,  # is never reached
            seconds=0.1,
            progress=False,
        )

    monkeypatch.setattr(ProgressBar, "advance", advance)
    after = 10**9
    assert not advise().interrupted
    looks = len(pressed) // 2
    pressed, after = [], looks + 5
    advice = advise()
    assert advice.interrupted
    assert [c.strategy for c in advice.choices] == ["one"]
    assert "interrupted: not all choices were tried" in str(advice)
    pressed, after = [], 5
    with pytest.raises(KeyboardInterrupt):
        advise()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: hj.calibrate(TASK, DATA, hj.machine.preset("v100x2")),
            "'v100x2' is a simulated one: pass real devices, or local_machine()",
        ),
        (
            lambda: hj.calibrate(TASK, DATA, three_workers(), path="no/folder/m.json"),
            "path='no/folder/m.json': there is no folder no/folder",
        ),
        (lambda: hj.replay(None, TASK, DATA), "None is not a trace: pass the trace of"),
    ],
)
def test_runs_that_cannot_be_measured_or_replayed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_binary_file_is_not_a_trace(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"t\.jsonl: not a trace, as it is not"):
        hj.replay(path, TASK, DATA)
