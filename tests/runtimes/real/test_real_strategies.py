"""Real runs of every strategy, replayed: the same parameters, bit for bit."""

import json
from functools import cache

import chex
import numpy as np
import pytest
from quick import quick
from real_runs import (
    DATA,
    TASK,
    arrived,
    assert_replays,
    assert_same_run,
    evaluated,
    merged,
    own_threads,
    real,
    three_workers,
    undecided,
)
from zoo import soon

import hetjax as hj
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.engine.step_runner import StepRunner
from hetjax.runtimes.real import step_mode_choice
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.tracing.fingerprint import digest
from hetjax.tracing.fit import fit_machine

CHOSEN = (  # replayed in every test run
    "adaptive_sgd",
    "async_sgd",
    "biased_local_sgd",
    "hier_sgd",
    "hogwild",
    "sma",
)
SOON = {"seconds": 60.0, "num_evals": 1200}  # an end after some epochs is seen then
EPOCHS = 5  # at least; enough for a few merges of the longest rounds
SETTINGS = {
    "elastic_sgd": {"local_steps": 2},
    "easgd_sync": {"momentum": 0.5},
    "sma": {"momentum": 0.5, "local_steps": 2},
    "hier_sgd": {"levels": ((2, 1),), "local_steps": (1, 2)},
    "local_sgd": {"local_steps": (3, 2, 1), "momentum": 0.5},
    "biased_local_sgd": {"local_steps": (4, 1, 2), "momentum": 0.0},
    "fed_nova": {"local_steps": (1, 2, 3), "momentum": 0.5},
    "fed_acc": {"local_steps": 2},
    "fed_adp": {"local_steps": (3, 1, 2)},
    "magma_async_sgd": {"server_step_seconds": 1e-3},
    "hogwild": {"max_staleness": 1},
    "downpour": {"fetch_every": 2},
    "easgd": {"local_steps": 2},
    "adaptive_sgd": {"batch_size": 4, "mega_batch": 20, "beta": 1.0},
}


@cache  # so that runs share what they compile
def strategy(name, **changes):
    size = {} if name == "adaptive_sgd" else {"batch_size": 4}
    settings = {**size, **soon(name), **SETTINGS.get(name, {}), **changes}
    return hj.STRATEGIES[name](learning_rate=0.05, **settings)


@pytest.fixture
def session():
    """Runs stop after some examples, however fast this machine is."""
    return Session(TASK, DATA, three_workers(), RunConfig(**SOON, epochs=EPOCHS))


@pytest.mark.parametrize("name", quick(hj.STRATEGIES, *CHOSEN))
def test_a_real_run_is_replayed(name, session):
    bar = ProgressBar(1.0, shown=False)
    history = session.run(name, strategy(name), 0, bar)
    assert "as asked" in history.stopped
    assert history.real
    assert history.merges > 3
    for worker in history.workers:
        kinds = (
            worker.busy,
            worker.waiting,
            worker.merging,
            worker.transfer,
            worker.idle,
        )
        assert sum(kinds) == pytest.approx(history.duration, abs=1e-6)
        assert min(kinds) >= 0
    trace = history.trace.load()
    mute = undecided(strategy(name))
    again = session.with_machine(trace).run(name, mute, 0, bar)
    assert digest(again.params) == trace.end["params"]
    assert_same_run(again, history)
    assert not own_threads()


def test_a_trace_in_a_file_is_replayed(tmp_path):
    """The replay rebuilds the strategy from its settings."""
    path = tmp_path / "run.jsonl"
    history = real(strategy("adaptive_sgd"), epochs=2, trace=path, **SOON)
    again = hj.replay(path, TASK, DATA, progress=False)
    assert again.replayed == "equal"
    copy = tmp_path / "copy.jsonl"
    history.trace.save(copy)
    assert copy.read_text() == path.read_text()


def test_a_replay_is_evaluated_on_the_same_part_of_the_test_split():
    last = [evaluated, *3 * [merged], evaluated]
    history = real(strategy("local_sgd"), until=last, eval_examples=5)
    again = hj.replay(history.trace, progress=False)
    assert again.replayed == "equal"
    assert (again.eval_examples, again.evals) == (5, history.evals)
    assert again.at_end == history.at_end


def test_another_run_than_the_recorded_one_differs():
    """Another learning rate gives the same events and other parameters."""
    history = real(strategy("elastic_sgd"), epochs=1, **SOON)
    other = strategy("elastic_sgd")._replace(learning_rate=0.01)
    again = hj.replay(history.trace, strategy=other, progress=False)
    assert again.replayed == "the parameters differ from the recorded ones"
    assert again.merges == history.merges


def test_any_strategy_runs_on_the_machine_that_a_trace_recorded():
    history = real(strategy("local_sgd"), epochs=1, **SOON)
    machine = fit_machine(history.trace.load()).machine
    assert [w.name for w in machine.workers] == ["cpu:0", "cpu:1", "cpu:2"]
    other = real(strategy("adaptive_sgd"), machine, seconds=0.05)
    assert not other.real
    assert other.merges > 0


@pytest.mark.parametrize("step_mode", ["dispatch", "fused", "unrolled"])
def test_all_step_modes_learn_the_same(step_mode):
    """The results are equal up to rounding, and each replay is equal bit by bit."""
    machine = three_workers(step_mode=step_mode)
    history = real(strategy("fed_nova"), machine, until=6 * [merged])
    assert history.step_modes == {"cpu": step_mode}
    again = hj.replay(history.trace, progress=False)
    assert again.replayed == "equal"
    trace = history.trace.load()
    trace.header["step_modes"] = {"cpu": "dispatch"}
    plain = hj.replay(trace, TASK, DATA, strategy("fed_nova"), progress=False)
    chex.assert_trees_all_close(plain.params, history.params, atol=1e-5)


def test_a_step_mode_is_measured_once(monkeypatch, tmp_path):
    """The second run reads the step mode from the disk, and the trace names it."""
    monkeypatch.setenv("HETJAX_CACHE", str(tmp_path))
    measured = []
    inner = StepTimer.seconds

    def seconds(self, *given, **more):
        measured.append(more)
        return inner(self, *given, shortest=0.0, **more)

    monkeypatch.setattr(StepTimer, "seconds", seconds)
    histories = [
        real(strategy("fed_acc"), three_workers(step_mode=None), until=[merged])
        for _ in range(2)
    ]
    modes = [more["step_mode"] for more in measured if more]
    assert modes == ["dispatch", "fused", "unrolled"]
    assert histories[0].step_modes == histories[1].step_modes
    assert histories[0].trace.load().header["step_modes"] == histories[0].step_modes
    assert len(list((tmp_path / "step_modes").glob("*.json"))) == 1


@pytest.mark.parametrize(
    ("local_steps", "learners", "of_table", "expected"),
    [
        (1, 1, "fused", ["dispatch"]),
        (8, 1, "fused", ["dispatch", "fused", "unrolled"]),
        (17, 1, "fused", ["dispatch", "fused"]),  # too long to unroll
        (1, 2, "fused", ["dispatch", "vmapped"]),
        (8, 2, "fused", ["dispatch", "fused", "unrolled", "vmapped"]),
        (8, 2, "unrolled", ["dispatch", "unrolled"]),  # never a loop
        (32, 1, "unrolled", ["dispatch"]),
        (8, 2, "dispatch", ["dispatch"]),  # too large to unroll
    ],
)
def test_step_modes_that_are_measured(local_steps, learners, of_table, expected):
    found = step_mode_choice.candidates(local_steps, learners, of_table)
    assert found == expected


LEARNERS = {
    "rounds": (
        "local_sgd",
        {"local_steps": (3, 2, 3, 3)},
    ),  # cpu:0's learners differ: each alone
    "one step": ("sync_sgd", {}),
    "tree": ("hier_sgd", {"levels": ((2, 2),), "local_steps": (2, 2)}),
    "async": ("async_sgd", {}),
    "moved": ("ad_psgd", {}),
}


@pytest.mark.parametrize("name", quick(LEARNERS, "one step", "async"))
def test_learners_of_a_device_run_as_one_program(name):
    """Equal up to rounding to separate programs, and replayed bit by bit."""
    strategy_name, settings = LEARNERS[name]
    chosen = hj.STRATEGIES[strategy_name](batch_size=4, learning_rate=0.05, **settings)
    machine = hj.local_machine(
        ["cpu:0", "cpu:1"], workers_per_device=2, step_mode="vmapped"
    )
    history = real(chosen, machine, until=[*8 * [merged], *8 * [arrived(3)], merged])
    assert history.step_modes == {"cpu": "vmapped"}
    assert history.merges > 0
    assert hj.replay(history.trace, progress=False).replayed == "equal"
    trace = history.trace.load()
    trace.header["step_modes"] = {"cpu": "dispatch"}
    apart = hj.replay(trace, TASK, DATA, chosen, progress=False)
    chex.assert_trees_all_close(apart.params, history.params, atol=1e-5)


@pytest.mark.parametrize("local_steps", [1, 3])
def test_learners_of_a_device_are_measured_at_the_same_time(
    local_steps, monkeypatch, tmp_path
):
    monkeypatch.setenv("HETJAX_CACHE", str(tmp_path))
    machine = hj.local_machine(["cpu:0"], workers_per_device=2)
    strategy_ = strategy("local_sgd", local_steps=local_steps)
    history = real(strategy_, machine, until=[merged])
    (file,) = (tmp_path / "step_modes").glob("*.json")
    seconds = json.loads(file.read_text())
    tried = {"dispatch", "vmapped"} | (
        {"fused", "unrolled"} if local_steps > 1 else set()
    )
    assert set(seconds) == tried
    (step_mode,) = history.step_modes.values()
    assert step_mode in ("dispatch", min(seconds, key=seconds.get))


def test_which_learners_run_together(monkeypatch):
    """Learners of one device that begin in one turn with equal steps and sizes."""
    groups = []
    inner = StepRunner.vmapped

    def vmapped(self, group, *rest):
        groups.append([a.worker for a in group])
        return inner(self, group, *rest)

    monkeypatch.setattr(StepRunner, "vmapped", vmapped)
    machine = hj.local_machine(
        ["cpu:0", "cpu:1"], workers_per_device=2, step_mode="vmapped"
    )
    chosen = hj.local_sgd(batch_size=4, learning_rate=0.05, local_steps=(3, 2, 3, 3))
    real(chosen, machine, until=4 * [merged])
    # the temporary replicas of the preparation are numbered from 0 again
    assert [2, 3] in groups
    assert all(group in ([0, 1], [2, 3]) for group in groups)
    begun = groups.index([2, 3])
    assert set(map(tuple, groups[begun:])) == {(2, 3)}


@pytest.mark.full
@pytest.mark.parametrize("step_mode", ["dispatch", "vmapped"])
def test_several_learners_share_a_device_and_the_tuner_starts_them(step_mode):
    """No step is compiled during the run: the tuner would see a slow worker."""
    machine = hj.local_machine(
        ["cpu:0", "cpu:1"], workers_per_device=3, step_mode=step_mode
    )
    tuned = hj.sma(
        batch_size=4, learning_rate=0.05, tuner="stop_at_first_drop", tuner_window=5
    )
    # 30 merges and more, however long a busy machine takes: a window is five
    history = real(tuned, machine, seconds=60.0, num_evals=600, epochs=12)
    assert history.merges > 10
    started = {i.worker for i in history.events if i.what == "joined"}
    assert started >= {"cpu:0/1", "cpu:1/1"}
    left = {i.worker for i in history.events if i.what == "left"}
    assert left >= {"cpu:0/1", "cpu:0/2", "cpu:1/1", "cpu:1/2"}  # inactive at first
    assert "step" not in history.programs
    assert_replays(history, tuned)


def test_staleness_and_time_are_of_real_runs():
    """The slowed worker makes fewer updates; some updates are stale."""
    # its threads have begun by then
    last = [*2 * [arrived(2)], *30 * [arrived(0)], evaluated]
    machine = three_workers(slowdown=(1, 1, 5))
    history = real(strategy("async_sgd"), machine, until=last)
    updates = [w.updates for w in history.workers]
    assert updates[2] < updates[0]
    assert any(s > 0 for w in history.workers for s in w.staleness)
    assert sum(updates) == history.evals[-1]["updates"]
    assert np.all(np.diff(history.merge_times) >= 0)
