"""Requests that cannot be meant: devices, slowdowns, traces, other models' machines."""

import json

import jax
import pytest
from real_runs import DATA, TASK, real, rounds, small_data, three_workers

import hetjax as hj
from hetjax.machine import Incident


@pytest.mark.parametrize(
    ("devices", "settings", "message"),
    [
        (["cpu:9"], {}, "no device 'cpu:9'; there are: cpu:0, cpu:1"),
        (["tpu"], {}, "no device 'tpu'"),
        (["cpu:0", "cpu:0"], {}, "give every device once"),
        ([], {}, "at least one worker"),
        (["cpu:0"], {"learners": 0}, "learners=0"),
        (["cpu:0"], {"slowdown": 0.5}, "slowdown=0.5 of cpu:0"),
        (["cpu:0"], {"slowdown": (1, 2)}, "2 entries for 1 workers"),
        (["cpu:0"], {"slowdown": {"gpu:0": 2}}, "slowdown of gpu:0: the workers are"),
        (["cpu:0"], {"form": "folded"}, "form='folded': choose one of dispatch"),
        (
            ["cpu:0"],
            {"incidents": (Incident(1.0, "kill", "cpu:1"),)},
            "an incident of 'cpu:1', who is no worker",
        ),
        (
            ["cpu:0"],
            {"incidents": (Incident(1.0, "join", "cpu:0"),)},
            "no worker is there when the run begins",
        ),
    ],
)
def test_machines_that_cannot_be(devices, settings, message):
    with pytest.raises(ValueError, match=message):
        hj.local_machine(devices, **settings)


def test_all_devices_are_found():
    """The four CPU devices of the tests, and whatever accelerators there are."""
    names = [w.name for w in hj.local_machine().workers]
    assert names[-4:] == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert len(names) >= len(jax.devices())
    learners = hj.local_machine(["cpu:1"], learners=2, slowdown={"cpu:1/1": 3.0})
    assert [(w.name, w.slowdown) for w in learners.workers] == [
        ("cpu:1/0", 1.0),
        ("cpu:1/1", 3.0),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_nan": "ignore"}, "on_nan='ignore': choose one of"),
        ({"on_loss": "panic"}, "on_loss='panic': choose one of"),
        ({"seconds": 0.0}, "seconds=0.0"),
        ({"points": 0}, "points=0"),
    ],
)
def test_runs_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        real(rounds(), **options)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "run.jsonl"
    real(rounds(), seconds=0.1, trace=path)
    return path


def changed(recorded, tmp_path, change):
    """The trace with its lines changed."""
    lines = recorded.read_text().splitlines()
    path = tmp_path / "changed.jsonl"
    path.write_text("\n".join(change(lines)) + "\n")
    return path


def test_a_file_needs_its_task_and_data(recorded):
    with pytest.raises(ValueError, match="needs its task and data: give both"):
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


def test_a_trace_of_something_else(recorded):
    other = hj.adaptive_sgd(b_max=4, rate=0.1, mega_batch=40)
    with pytest.raises(ValueError, match="recorded with another strategy: local_sgd"):
        hj.replay(recorded, TASK, DATA, other, progress=False)
    wide = hj.classification(hj.models.mlp(hidden=6), DATA)
    with pytest.raises(ValueError, match="recorded with another model"):
        hj.replay(recorded, wide, DATA, progress=False)
    data = small_data(examples=61)
    with pytest.raises(ValueError, match="recorded with another data"):
        hj.replay(recorded, TASK, data, progress=False)


def test_a_strategy_with_other_settings_is_found_out_where_it_differs(recorded):
    with pytest.raises(ValueError, match=r"trace of local_sgd, line \d+: the strategy"):
        hj.replay(recorded, TASK, DATA, rounds(steps=3), progress=False)


def test_a_trace_that_was_cut_off_is_replayed_as_far_as_it_goes(recorded, tmp_path):
    path = changed(recorded, tmp_path, lambda lines: lines[: len(lines) // 2])
    history = hj.replay(path, TASK, DATA, progress=False)
    assert history.stopped == "the trace was cut off here"
    assert history.merges > 0


def test_a_machine_of_another_model_gives_no_advice(tmp_path):
    path = tmp_path / "profile.json"
    hj.calibrate(
        TASK,
        DATA,
        three_workers(),
        batch_sizes=(2, 4),
        steps=(1, 2),
        repeats=2,
        path=path,
        progress=False,
    )
    machine = hj.machine.load_machine(path)
    assert [w.name for w in machine.workers] == ["cpu:0", "cpu:1", "cpu:2"]
    assert machine.calibration is not None
    assert machine.calibration.works > 0
    assert all(w.cost.seconds(4) > 0 for w in machine.workers)
    advice = hj.advise(TASK, DATA, machine, batch_size=4, seconds=0.05, progress=False)
    sets = {c.workers for c in advice.choices}
    assert len(sets) == 5  # one, two, three; and each of the others alone
    rates = [c.examples_per_second for c in advice.choices]
    assert rates == sorted(rates, reverse=True)
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
        hj.advise(TASK, DATA, machine, subsets=[("cpu:7",)], progress=False)
    wide = hj.classification(hj.models.mlp(hidden=6), DATA)
    with pytest.raises(ValueError, match="was calibrated with another model"):
        hj.advise(wide, DATA, machine, progress=False)
