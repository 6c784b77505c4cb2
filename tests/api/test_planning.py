"""`plan`: predictions against runs, counts by hand and XLA's own numbers."""

import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hetjax as hj

# the attribute `plan` of the package is the function
module = importlib.import_module("hetjax.api.plan")

BATCH = 16


@pytest.fixture(scope="module")
def problem():
    data = hj.data.digits()
    return hj.classification(hj.models.mlp(hidden=8), data), data


def planned(problem, machine="v100x2", epochs=2.0, strategies=None, **options):
    task, data = problem
    strategies = strategies or {
        "sync": hj.sync_sgd(batch_size=BATCH, learning_rate=0.1)
    }
    if isinstance(machine, str):
        machine = hj.machine.preset(machine)
    return hj.plan(task, data, machine, strategies, epochs=epochs, steps=3, **options)


@pytest.mark.parametrize("name", ["sync_sgd", "hier_sgd", "async_sgd", "adaptive_sgd"])
def test_a_run_of_so_long_makes_so_many_epochs(problem, name):
    """The plan's virtual seconds, given to a run, are just enough."""
    task, data = problem
    machine = hj.machine.preset("v100x3+k80", noise=0.0)
    given = {"batch_size": BATCH, "learning_rate": 0.01}
    if name == "adaptive_sgd":
        given["mega_batch"] = 1024
    if name == "hier_sgd":
        given["levels"] = ()
        given["local_steps"] = (4,)
    strategy = hj.STRATEGIES[name](**given)
    (run,) = planned(problem, machine, 2.0, {name: strategy}).runs
    history = hj.train(
        task,
        data,
        machine,
        strategy,
        seconds=1.001 * run.virtual_seconds,
        num_evals=1,
        progress=False,
    )
    done = sum(w.examples for w in history.workers)
    per_round = 1024 if name == "adaptive_sgd" else 4 * 4 * BATCH
    assert 2 * len(data.train) <= done + per_round
    assert done <= 2 * len(data.train) + per_round


def test_sizes_are_those_of_the_model_and_of_xla(problem):
    found = planned(problem)
    (run,) = found.runs
    parameters = 64 * 8 + 8 + 8 * 10 + 10
    assert found.parameters == parameters
    assert found.num_bytes == 4 * parameters
    assert run.replica_bytes >= 4 * parameters
    assert run.device_bytes == run.replica_bytes + run.step_bytes
    assert run.step_bytes > 4 * BATCH * 8  # the hidden layer's activations
    assert run.timed == 3
    assert run.host_seconds == pytest.approx(run.updates * run.step_seconds)
    assert run.updates == math.ceil(2 * 1438 / BATCH)  # none is partly counted


def test_an_optimizer_s_state_counts(problem):
    adam = hj.local_sgd(batch_size=BATCH, optimizer=optax.adam(1e-3), local_steps=2)
    plain = hj.local_sgd(
        batch_size=BATCH, learning_rate=0.1, momentum=0.0, local_steps=2
    )
    found = planned(problem, strategies={"adam": adam, "sgd": plain})
    sizes = {run.strategy: run.replica_bytes for run in found.runs}
    assert sizes["adam"] - sizes["sgd"] >= 2 * found.num_bytes


def test_a_long_plan_says_how_far_it_is(problem, capsys, monkeypatch):
    common = {"batch_size": BATCH, "learning_rate": 0.1}
    two = {"a": hj.sync_sgd(**common), "b": hj.sma(**common)}
    planned(problem, strategies=two)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(module, "SILENCE", 0.0)
    planned(problem, strategies=two)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "planning a (1/2), 0 of 8 steps"
    assert lines[-1] == "planning b (2/2), 8 of 8 steps"
    planned(problem, strategies=two, progress=False)
    assert capsys.readouterr().err == ""


def test_larger_batches_need_more(problem, cpu_alone):  # not what a GPU has besides
    strategies = {
        str(size): hj.sync_sgd(batch_size=size, learning_rate=0.1) for size in (16, 256)
    }
    small, large = planned(problem, strategies=strategies).runs
    assert large.step_bytes > 4 * small.step_bytes
    assert large.updates < small.updates


def test_replicas_that_are_read_while_they_compute_are_held_twice(problem):
    common = {"batch_size": BATCH, "learning_rate": 0.1}
    strategies = {"own": hj.sync_sgd(**common), "read": hj.ad_psgd(**common)}
    found = planned(problem, strategies=strategies)
    own, read = found.runs
    assert read.step_bytes - own.step_bytes >= 0.9 * found.num_bytes


def test_the_batch_counts(problem):
    task, data = problem
    wide = np.zeros((64, 100_000), np.float32)
    y = np.arange(64) % 10
    big = hj.data.from_arrays((wide, y), (wide, y), num_classes=10)
    model = hj.from_functions(
        lambda key: jnp.zeros(10), lambda w, x: x[:, :10] * w[None]
    )
    found = planned((hj.classification(model, big), big))
    assert found.runs[0].step_bytes >= BATCH * 100_000 * 4


def test_workers_of_a_device_share_its_memory(problem):
    machine = hj.machine.preset("v100x2").with_workers_per_device(3)
    (run,) = planned(problem, machine).runs
    assert run.device_bytes == 3 * (run.replica_bytes + run.step_bytes)


def test_long_runs_are_extrapolated(problem, monkeypatch):
    (whole,) = planned(problem, "v100x4", 40.0).runs
    monkeypatch.setattr(module, "EVENTS", 400)
    (part,) = planned(problem, "v100x4", 40.0).runs
    assert part != whole
    assert part.virtual_seconds == pytest.approx(whole.virtual_seconds, rel=0.02)
    assert part.updates == pytest.approx(whole.updates, rel=0.02)


def test_equal_programs_are_timed_once(problem, monkeypatch):
    timed = []
    measured = module._measure
    monkeypatch.setattr(
        module, "_measure", lambda *given: timed.append(1) or measured(*given)
    )
    common = {"batch_size": BATCH, "learning_rate": 0.1}
    strategies = {"one": hj.sync_sgd(**common), "two": hj.sync_sgd(**common)}
    one, two = planned(problem, strategies=strategies).runs
    assert len(timed) == 1
    assert one.step_seconds == two.step_seconds


def test_slow_steps_are_fewer_but_never_fewer_than_three(problem, monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 0.0)
    task, data = problem
    machine = hj.machine.preset("v100x2")
    strategies = {"sync": hj.sync_sgd(batch_size=BATCH, learning_rate=0.1)}
    (run,) = hj.plan(task, data, machine, strategies, epochs=1.0, steps=10).runs
    assert run.timed == 3


def test_the_table_says_everything(problem):
    text = str(planned(problem))
    for words in (
        "virtual hours",
        "step [MB]",
        "hours here",
        "610 parameters",
        "2 epochs on v100x2",
        "3 steps of 16 examples on",
        jax.devices()[0].device_kind,
    ):
        assert words in text
    assert "<table>" in planned(problem)._repr_html_()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": None}, "epochs=None: pass a number above 0"),
        ({"epochs": -1.0}, "epochs=-1.0"),
        ({"steps": 2}, "steps"),
        ({"machine": None}, "machine=None: pass a Machine"),
        ({"strategies": {}}, "no strategies"),
        ({"data": np.zeros(3)}, "data=.*: pass a Dataset"),
    ],
)
def test_what_cannot_be_planned(problem, change, message):
    task, data = problem
    given = {
        "data": data,
        "machine": hj.machine.preset("v100x2"),
        "strategies": {"sync": hj.sync_sgd(batch_size=BATCH, learning_rate=0.1)},
        "epochs": 1.0,
        "steps": 3,
    } | change
    with pytest.raises(ValueError, match=message):
        hj.plan(task, **given)
