"""Real runs are interrupted and go on: on threads, a mesh, with other workers."""

import os
import signal
from functools import cache

import jax
import numpy as np
import pytest
from quick import quick
from tiny_problems import PROBLEMS
from zoo import zoo

import hetjax as hj
from hetjax.checkpoint import keeper
from hetjax.machine import Cost, Link, Machine, Profile
from hetjax.runtimes.threads import preparation
from hetjax.tracing.trace import Trace

STRATEGIES = zoo(6)
BULK = [k for k, s in STRATEGIES.items() if s.policy.bulk_synchronous]
RUN = {"seconds": 0.4, "num_evals": 8, "progress": False, "every": "1 eval"}
THREE = ["cpu:0", "cpu:1", "cpu:2"]


@cache
def problem():
    return PROBLEMS["perceptron"]()


def train(folder, name, devices=THREE, *, stop_at=None, **more):
    """Interrupt the run at its n-th evaluation, if a number is given."""
    placement = more.pop("placement", "threads")
    faults = more.pop("faults", ())
    step_mode = more.pop("step_mode", None)
    machine = hj.local_machine(
        devices, placement=placement, faults=faults, step_mode=step_mode
    )
    calls, p = [], problem()

    def on_eval(point):
        calls.append(point)
        if len(calls) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    strategy = STRATEGIES[name]
    given = {**RUN, **more}
    return hj.train(
        p.task, p.data, machine, strategy, checkpoint=folder, on_eval=on_eval, **given
    )


def check_one_history(first, last):
    """Both parts of the run are in the history, in order."""
    assert first.stopped == "interrupted"
    assert (last.stopped, last.duration) == ("", RUN["seconds"])
    assert len(last.evals) == RUN["num_evals"] + 1
    # what came after the last cut, if there was anything, was done again
    done = [p for p in first.evals if p["seconds"] <= last.interruptions[0].seconds]
    assert done
    assert done == last.evals[: len(done)]
    (where,) = last.interruptions
    assert 0 < where.seconds <= first.duration + 0.05  # on a mesh it is worked out
    seconds = [p["seconds"] for p in last.evals]
    assert seconds == sorted(seconds)
    updates = [p["updates"] for p in last.evals]
    assert updates == sorted(updates)
    for w in last.workers:
        whole = w.busy + w.waiting + w.merging + w.transfer + w.idle
        assert whole == pytest.approx(last.duration)


@pytest.mark.parametrize(
    "name", quick(STRATEGIES, "local_sgd", "easgd", "adaptive_sgd")
)
def test_threads_go_on_and_the_whole_trace_replays(tmp_path, name):
    first = train(tmp_path, name, stop_at=4)
    last = train(tmp_path, name)
    check_one_history(first, last)
    assert last.events == []  # nobody left or was lost
    trace = Trace.load(tmp_path / "trace.jsonl")
    assert [list(x) for x in trace.lines if "cut" in x] == [["cut"]]
    p = problem()
    history = hj.replay(tmp_path / "trace.jsonl", p.task, p.data, progress=False)
    assert history.replayed == "equal"
    assert [p["accuracy"] for p in history.evals[1:]] == [
        p["accuracy"] for p in last.evals[1:]
    ]


def test_what_was_measured_stays_as_it_was_chosen(tmp_path, monkeypatch):
    """Another step mode has other last bits, and the trace names one."""
    modes = iter(["fused", "unrolled"])
    monkeypatch.setattr(
        preparation, "choose_step_mode", lambda *given: (next(modes), {})
    )
    first = train(tmp_path, "local_sgd", stop_at=4)
    last = train(tmp_path, "local_sgd")
    assert first.step_modes == last.step_modes == {"cpu": "fused"}
    p = problem()
    history = hj.replay(tmp_path / "trace.jsonl", p.task, p.data, progress=False)
    assert history.replayed == "equal"


def test_a_trace_begins_anew_where_another_step_mode_is_asked_for(tmp_path):
    train(tmp_path, "local_sgd", stop_at=4, step_mode="fused")
    last = train(tmp_path, "local_sgd", step_mode="dispatch")
    assert last.step_modes == {"cpu": "dispatch"}
    assert "begins" in Trace.load(tmp_path / "trace.jsonl").header


def test_never_keeps_the_trace_until_it_has_a_checkpoint(tmp_path, monkeypatch):
    def fail(self, value, where):
        raise ValueError("not today")

    train(tmp_path, "easgd", stop_at=4)
    with monkeypatch.context() as patch:
        patch.setattr(keeper.Encoder, "encode", fail)
        with pytest.raises(ValueError, match="not today"):
            train(tmp_path, "easgd", resume="never")
    last, p = train(tmp_path, "easgd"), problem()
    assert len(last.interruptions) == 1
    history = hj.replay(tmp_path / "trace.jsonl", p.task, p.data, progress=False)
    assert history.replayed == "equal"
    train(tmp_path, "easgd", resume="never")
    left = {x.name for x in tmp_path.iterdir() if not x.name.isdigit()}
    assert left == {"lock", "trace.jsonl"}


@pytest.mark.parametrize("name", quick(BULK, "sma", "hier_sgd"))
def test_a_mesh_goes_on(tmp_path, name):
    first = train(tmp_path, name, stop_at=4, placement="mesh")
    last = train(tmp_path, name, placement="mesh")
    check_one_history(first, last)


def test_a_mesh_goes_on_to_the_parameters_of_its_rounds(tmp_path):
    """After as many rounds as a simulated run, it has its parameters, but rounding."""
    train(tmp_path, "local_sgd", stop_at=4, placement="mesh")
    last = train(tmp_path, "local_sgd", placement="mesh")
    p, rounds = problem(), last.merges
    workers = tuple(Profile(f"w{k}", "cpu", Cost(0.25, 0.0)) for k in range(3))
    seconds = 0.75 * rounds + 0.4  # a round has three steps; the last is not merged
    simulated = hj.train(
        p.task,
        p.data,
        Machine("exact seconds", workers, {"": Link(0.0, 1e12)}),
        STRATEGIES["local_sgd"],
        seconds=seconds,
        num_evals=1,
        progress=False,
    )
    assert simulated.merges == rounds
    for a, b in zip(
        jax.tree.leaves(last.params), jax.tree.leaves(simulated.params), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "devices", "placement"),
    [
        ("async_sgd", ["cpu:1", "cpu:3"], "threads"),
        ("adaptive_sgd", ["cpu:0", "cpu:1", "cpu:2", "cpu:3"], "threads"),
        ("sma", ["cpu:0", "cpu:1"], "mesh"),
        ("sma", ["cpu:0", "cpu:1", "cpu:2", "cpu:3"], "threads"),
    ],
)
def test_other_workers_go_on(tmp_path, name, devices, placement):
    first = train(tmp_path, name, stop_at=4)
    last = train(tmp_path, name, devices, placement=placement)
    check_one_history(first, last)
    left = [e.worker for e in last.events if e.what == "left"]
    joined = [e.worker for e in last.events if e.what == "joined"]
    assert left == [d for d in THREE if d not in devices]
    assert joined == [d for d in devices if d not in THREE]
    assert [w.name for w in last.workers] == [*devices, *left]
    total = sum(w.examples for w in last.workers)
    assert total == last.evals[-1]["examples"] or placement == "mesh"
    assert last.evals[-1]["loss"] < first.evals[0]["loss"]


def test_a_trace_that_began_with_other_workers_is_not_replayed(tmp_path):
    train(tmp_path, "async_sgd", stop_at=4)
    train(tmp_path, "async_sgd", ["cpu:0", "cpu:1"])
    p = problem()
    with pytest.raises(ValueError, match="continued with other workers"):
        hj.replay(tmp_path / "trace.jsonl", p.task, p.data)


def test_a_worker_that_was_lost_is_back_after_the_run_was_continued(tmp_path):
    """It hung in the process before; in the new one its thread is new."""
    faults = (hj.machine.ScriptedFault(0.1, "kill", "cpu:1"),)
    first = train(tmp_path, "async_sgd", stop_at=5, faults=faults)
    assert [e.what for e in first.events] == ["lost"]
    last = train(tmp_path, "async_sgd", faults=faults)
    check_one_history(first, last)
    assert [e.what for e in last.events] == ["lost"]  # killed for good


def test_a_real_run_does_not_go_on_simulated(tmp_path):
    train(tmp_path, "sma", stop_at=3)
    p = problem()
    machine = hj.machine.preset("uniform:3")
    with pytest.raises(ValueError, match="on_nan is .reset. there|real is True there"):
        hj.train(p.task, p.data, machine, STRATEGIES["sma"], checkpoint=tmp_path, **RUN)


def test_resume_finds_a_real_machine(tmp_path):
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=8), data)
    machine = hj.local_machine(["cpu:0", "cpu:1"])
    strategy = hj.sma(batch_size=32, learning_rate=0.1)

    def stop(point):
        if point["seconds"] >= 0.2:
            os.kill(os.getpid(), signal.SIGTERM)

    hj.train(task, data, machine, strategy, checkpoint=tmp_path, on_eval=stop, **RUN)
    last = hj.resume(tmp_path, progress=False)
    assert last.duration == RUN["seconds"]
    assert [w.name for w in last.workers] == ["cpu:0", "cpu:1"]
