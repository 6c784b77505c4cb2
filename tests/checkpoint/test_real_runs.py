"""Real runs are interrupted and go on: on threads, a mesh, with other workers.

Every run waits for its seconds. One of each kind of continuation is in core.
"""

import os
import signal
from functools import partial

import jax
import numpy as np
import pytest
from checkpointed_runs import run, session
from quick import quick
from real_runs import assert_same_run, undecided
from small_runs import problem
from tiny_problems import PROBLEMS
from zoo import FORMS, WAYS, zoo

import hetjax as hj
from hetjax.checkpoint import checkpoint_manager
from hetjax.machine import Cost, Link, Machine, Profile
from hetjax.runtimes.real import wall_clock
from hetjax.runtimes.threads import open_threads
from hetjax.tracing import trace
from hetjax.tracing.trace import Trace

STRATEGIES = {name: made for name, made in zoo(6).items() if name in FORMS}
# a busy machine makes many evaluations before the run is kept and a signal ends it
RUN = {"seconds": 2.4, "num_evals": 48, "progress": False, "every": "1 eval"}
THREE = ["cpu:0", "cpu:1", "cpu:2"]
# steps of a fraction of a millisecond: the processor is idle for most of the run
SLOWDOWN = 20


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """No worker is lost because other programs keep the machine busy."""
    clock = partial(wall_clock.WallClock, allowance=60.0)
    monkeypatch.setattr(open_threads, "WallClock", clock)


def train(folder, name, devices=THREE, *, stop_at=None, crash_at=None, **more):
    """Interrupt the run at its n-th evaluation, or raise, if a number is given."""
    placement = more.pop("placement", "threads")
    slowdown = more.pop("slowdown", SLOWDOWN)
    faults = more.pop("faults", ())
    step_mode = more.pop("step_mode", None)
    machine = hj.local_machine(
        devices,
        placement=placement,
        slowdown=1 if placement == "mesh" else slowdown,
        faults=faults,
        step_mode=step_mode,
    )
    calls, p = [], more.pop("problem", problem())

    def on_eval(point):
        calls.append(point)
        if len(calls) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if len(calls) == crash_at:
            raise RuntimeError("crash")

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


@pytest.mark.parametrize("name", quick(WAYS, "easgd"))
def test_threads_go_on_and_the_whole_trace_replays(tmp_path, name):
    first = train(tmp_path, name, stop_at=4)
    last = train(tmp_path, name)
    check_one_history(first, last)
    assert last.events == []  # nobody left or was lost
    lines = Trace.load(tmp_path / "trace.jsonl").lines
    assert [list(x) for x in lines if "cut" in x] == [["cut"]]
    p = problem()
    mute, path = undecided(STRATEGIES[name]), tmp_path / "trace.jsonl"
    history = hj.replay(path, p.task, p.data, mute, progress=False)
    assert history.replayed == "equal"
    assert_same_run(history, last)


@pytest.mark.full
def test_what_was_measured_stays_as_it_was_chosen(tmp_path, monkeypatch):
    """Another step mode has other last bits, and the trace names one."""
    modes = iter(["fused", "unrolled"])
    monkeypatch.setattr(
        open_threads, "choose_step_mode", lambda *given: (next(modes), {})
    )
    first = train(tmp_path, "local_sgd", stop_at=4)
    last = train(tmp_path, "local_sgd")
    assert first.step_modes == last.step_modes == {"cpu": "fused"}
    p = problem()
    history = hj.replay(tmp_path / "trace.jsonl", p.task, p.data, progress=False)
    assert history.replayed == "equal"


@pytest.mark.full
def test_a_trace_begins_anew_where_another_step_mode_is_asked_for(tmp_path):
    train(tmp_path, "local_sgd", stop_at=4, step_mode="fused")
    last = train(tmp_path, "local_sgd", step_mode="dispatch")
    assert last.step_modes == {"cpu": "dispatch"}
    assert "begins" in Trace.load(tmp_path / "trace.jsonl").header


@pytest.mark.full
def test_a_full_disk_loses_the_trace_and_not_the_run(tmp_path, monkeypatch):
    class Full:
        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            return getattr(self._file, name)

        def write(self, text):
            raise OSError(28, "No space left on device")

    def fill(recording, *given, **more):
        begin(recording, *given, **more)
        recording._file = Full(recording._file)

    begin = trace.Recording.__init__
    monkeypatch.setattr(trace.Recording, "__init__", fill)
    with pytest.warns(UserWarning, match="trace.jsonl could not be written: .*space"):
        first = train(tmp_path, "easgd", stop_at=4)
    with pytest.raises(ValueError, match=r"trace.jsonl is incomplete: .*No space left"):
        first.trace.load()
    monkeypatch.undo()
    last = train(tmp_path, "easgd")
    check_one_history(first, last)
    with pytest.raises(
        ValueError, match="cannot be replayed: .* without its trace file"
    ):
        hj.replay(last.trace, problem().task, problem().data, progress=False)


@pytest.mark.full
def test_a_trace_is_replaced_only_with_a_checkpoint(tmp_path, monkeypatch):
    """Other workers fail before they have one: those before go on, and replay."""
    train(tmp_path, "easgd", stop_at=4)
    with monkeypatch.context() as patch:
        patch.setattr(
            checkpoint_manager.CheckpointManager, "is_due", lambda self, evals: False
        )
        with pytest.raises(RuntimeError, match="crash"):
            train(tmp_path, "easgd", ["cpu:0", "cpu:1"], crash_at=2)
    train(tmp_path, "easgd")
    p = problem()
    again = hj.replay(tmp_path / "trace.jsonl", p.task, p.data, progress=False)
    assert again.replayed == "equal"


@pytest.mark.full
def test_a_finished_run_has_its_trace(tmp_path):
    train(tmp_path, "local_sgd")
    again, p = train(tmp_path, "local_sgd"), problem()
    assert hj.replay(again.trace, p.task, p.data, progress=False).replayed == "equal"


@pytest.mark.full
def test_never_keeps_the_trace_until_it_has_a_checkpoint(tmp_path, monkeypatch):
    def fail(self, value, where):
        raise ValueError("not today")

    train(tmp_path, "easgd", stop_at=4)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_manager.Encoder, "encode", fail)
        with pytest.raises(ValueError, match="not today"):
            train(tmp_path, "easgd", resume="never")
    last, p = train(tmp_path, "easgd"), problem()
    assert len(last.interruptions) == 1
    history = hj.replay(tmp_path / "trace.jsonl", p.task, p.data, progress=False)
    assert history.replayed == "equal"
    train(tmp_path, "easgd", resume="never")
    left = {x.name for x in tmp_path.iterdir() if "checkpoint-" not in x.name}
    assert left == {"lock", "trace.jsonl"}


# the others keep no more between rounds than these do
KEEPING = ("elastic_sgd", "sma", "hier_sgd", "biased_local_sgd", "fed_acc", "scaffold")


@pytest.mark.parametrize("name", quick(KEEPING, "hier_sgd"))
def test_a_mesh_goes_on(tmp_path, name):
    first = train(tmp_path, name, stop_at=4, placement="mesh")
    last = train(tmp_path, name, placement="mesh")
    check_one_history(first, last)


@pytest.mark.full
def test_a_mesh_goes_on_with_all_its_replicas_and_rows(tmp_path):
    """It has the parameters of a simulated run after so many rounds, but rounding.

    The last evaluation does not see merges that were planned to end after it, which the
    run counts. The loss is convex: rounding does not grow.
    """
    p = PROBLEMS["quadratic"]()
    given = {"placement": "mesh", "problem": p}
    train(tmp_path, "local_sgd", stop_at=4, **given)
    last = train(tmp_path, "local_sgd", **given)
    assert last.interruptions
    workers = tuple(Profile(f"w{k}", "cpu", Cost(0.25, 0.0)) for k in range(3))
    machine = Machine("exact seconds", workers, {"": Link(latency=0.0, bandwidth=1e12)})
    runs = session(p.task, p.data, machine, 1.0)

    def differs(rounds):
        """From the parameters after so many rounds, of three steps at most."""
        instants = (0.0, 0.75 * rounds + 0.4)
        simulated = run(runs, STRATEGIES["local_sgd"], instants=instants)
        assert simulated.merges == rounds
        pairs = zip(*map(jax.tree.leaves, (last.params, simulated.params)), strict=True)
        return max(float(np.abs(np.asarray(a) - b).max()) for a, b in pairs)

    # which are not more than the waves of two launches
    most = last.merges
    assert any(differs(n) < 1e-5 for n in range(most, max(0, most - 33), -1))


@pytest.mark.full
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
    # rounds are short: the run is cut off in one of them
    first = train(tmp_path, name, stop_at=4, slowdown=1)
    last = train(tmp_path, name, devices, placement=placement, slowdown=1)
    check_one_history(first, last)
    left = [e.worker for e in last.events if e.what == "left"]
    joined = [e.worker for e in last.events if e.what == "joined"]
    assert left == [d for d in THREE if d not in devices]
    assert joined == [d for d in devices if d not in THREE]
    assert [w.name for w in last.workers] == [*devices, *left]
    total = sum(w.examples for w in last.workers)
    assert total == last.evals[-1]["examples"] or placement == "mesh"
    assert last.evals[-1]["loss"] < first.evals[0]["loss"]
    # what they did before is not forgotten, but for a round that was cut off
    cut = last.interruptions[0].seconds  # others may have gone on while it was taken
    busy = [s for s in first.timeline if s.kind == "busy" and s.finish <= cut]
    names = [w.name for w in first.workers]
    for w in last.workers:
        if w.name in names:
            seconds = [s.finish - s.start for s in busy if names[s.worker] == w.name]
            assert w.busy >= sum(seconds) - 1.01 * max(seconds, default=0.0)


@pytest.mark.full
def test_what_a_mesh_has_planned_is_corrected_before_others_go_on(tmp_path):
    first = train(tmp_path, "sma", stop_at=4, placement="mesh")
    last = train(tmp_path, "sma", ["cpu:0", "cpu:1"])
    seconds = [
        [(s.start, s.finish) for s in h.timeline if h.workers[s.worker].name == "cpu:2"]
        for h in (first, last)
    ]
    kept = len(seconds[1]) - 1  # without what the run was cut off in
    assert kept >= 4
    assert np.allclose(seconds[1][:kept], seconds[0][:kept], rtol=0, atol=1e-9)


def test_a_trace_that_began_with_other_workers_is_not_replayed(tmp_path):
    train(tmp_path, "async_sgd", stop_at=4)
    train(tmp_path, "async_sgd", ["cpu:0", "cpu:1"])
    p = problem()
    with pytest.raises(ValueError, match="continued with other workers"):
        hj.replay(tmp_path / "trace.jsonl", p.task, p.data)


@pytest.mark.full
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


@pytest.mark.full
def test_resume_finds_a_real_machine(tmp_path):
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=8), data)
    machine = hj.local_machine(["cpu:0", "cpu:1"], slowdown=SLOWDOWN)
    strategy = hj.sma(batch_size=32, learning_rate=0.1)

    def stop(point):
        if point["seconds"] >= 0.2:
            os.kill(os.getpid(), signal.SIGTERM)

    hj.train(task, data, machine, strategy, checkpoint=tmp_path, on_eval=stop, **RUN)
    last = hj.resume(tmp_path, progress=False)
    assert last.duration == RUN["seconds"]
    assert [w.name for w in last.workers] == ["cpu:0", "cpu:1"]
