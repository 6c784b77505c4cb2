"""Real runs whose workers fail, hang, slow down, join or become NaN; their ends."""

import itertools
import signal
import threading
import time

import jax
import numpy as np
import pytest
from real_runs import (
    AT_MOST,
    DATA,
    ENOUGH,
    TASK,
    arrived,
    ending,
    evaluated,
    joined,
    lost,
    merged,
    own_threads,
    poisoned_task,
    real,
    rounds,
    telling,
    three_workers,
    what_happened,
)

import hetjax as hj
from hetjax.engine import replica_store
from hetjax.engine.launched_merge import LaunchedMerge
from hetjax.engine.replica_store import ReplicaStore
from hetjax.engine.step_runner import StepRunner
from hetjax.machine import Arrival, ScriptedFault
from hetjax.runtimes.real import wall_clock
from hetjax.runtimes.real.wall_clock import WallClock
from hetjax.tracing.fit import fit_machine
from hetjax.tracing.trace import Trace

KINDS = ("busy", "waiting", "merging", "transfer", "idle")  # of seconds

pytestmark = pytest.mark.usefixtures("patient")
POISONED = poisoned_task()
LONG = 60.0  # [s] that a thread hangs, if nothing ends it


@pytest.fixture
def meddle(monkeypatch):
    """Call a function with (worker, its rounds so far) before each round of a run.

    The preparation is not affected: it does not run in a worker's thread.
    """

    def install(function):
        inner, counts = StepRunner.run, {}

        def run(self, assignment, *rest):
            if threading.current_thread().name.startswith("hetjax worker"):
                k = assignment.worker
                counts[k] = counts.get(k, 0) + 1
                function(k, counts[k])
            return inner(self, assignment, *rest)

        monkeypatch.setattr(StepRunner, "run", run)

    return install


STRATEGIES = {
    "rounds": rounds(),
    "async": hj.async_sgd(batch_size=4, learning_rate=0.05),
    "mega_batch": hj.adaptive_sgd(batch_size=4, learning_rate=0.05, mega_batch=20),
    "tree": hj.hier_sgd(
        batch_size=4, learning_rate=0.05, levels=((2, 1),), local_steps=(1, 2)
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_exception_names_its_worker_and_the_others_go_on(name, meddle):
    def break_down(worker, local_rounds):
        if worker == 1 and local_rounds == 3:
            raise RuntimeError("the card fell off the bus")

    meddle(break_down)
    # each of the others does more than the broken one did
    others = 6 * [arrived(0)] + 6 * [arrived(2)]
    history = real(STRATEGIES[name], until=[lost(1), *others])
    (event,) = history.events
    assert (event.worker, event.what) == ("cpu:1", "lost")
    assert "RuntimeError: the card fell off the bus" in event.why
    assert "break_down" in event.why  # its traceback
    first, broken, last = history.workers
    assert broken.lost == 1
    assert first.updates > broken.updates < last.updates
    assert broken.updates > 0
    meddle(lambda worker, local_rounds: None)
    assert hj.replay(history.trace, progress=False).replayed == "equal"


def test_a_run_may_stop_at_a_loss():
    machine = three_workers(faults=(ScriptedFault(0.1, "kill", "cpu:2"),))
    history = real(rounds(), machine, seconds=60.0, on_lost_worker="stop")
    assert history.stopped == "worker cpu:2 was lost: killed, as scripted"
    assert history.duration == pytest.approx(0.1)


def test_without_the_last_worker_the_run_ends():
    names = ("cpu:0", "cpu:1", "cpu:2")
    killed = tuple(ScriptedFault(0.05, "kill", name) for name in names)
    history = real(rounds(), three_workers(faults=killed), seconds=60.0)
    assert history.stopped.startswith("worker cpu:2, the last one, was lost")
    assert np.isfinite(history.evals[-1]["loss"])


def test_merged_rounds_are_in_the_model_when_the_last_worker_is_lost():
    """In a tree whose root has not merged them yet. A replay gives the same."""
    names = ("cpu:0", "cpu:1", "cpu:2")
    killed = tuple(ScriptedFault(0.1, "kill", name) for name in names)
    tree = hj.hier_sgd(
        batch_size=4, learning_rate=0.05, levels=((2, 1),), local_steps=(1, 10**6)
    )
    history = real(tree, three_workers(faults=killed), seconds=60.0)
    assert history.stopped.startswith("worker cpu:2, the last one, was lost")
    assert len(history.merge_times) > 0
    again = hj.replay(history.trace, progress=False)
    assert (again.replayed, again.stopped) == ("equal", history.stopped)


def test_a_worker_that_hangs_and_then_fails_says_why(meddle, patient):
    """No worker is left, and none will join: the run ends."""
    patient.strict.add((0, 8))
    was_lost = threading.Event()

    def hang(worker, local_rounds):
        if local_rounds == 8:
            was_lost.wait(LONG)
            raise RuntimeError("the card fell off the bus")

    meddle(hang)
    history = real(
        policy_that(telling(lost(0), was_lost.set)),
        hj.local_machine(["cpu:0"]),
        seconds=60.0,
        num_evals=60,
    )
    assert was_lost.is_set()
    assert what_happened(history) == [("cpu:0", "lost"), ("cpu:0", "lost")]
    first, then = history.events
    assert first.why.startswith("no answer for")
    assert "RuntimeError: the card fell off the bus" in then.why
    assert history.stopped.startswith("worker cpu:0, the last one, was lost")
    assert history.duration < 30
    meddle(lambda worker, local_rounds: None)
    assert hj.replay(history.trace, progress=False).replayed == "equal"


@pytest.mark.parametrize("name", STRATEGIES)
def test_killed_slowed_and_joining_workers(name):
    """As scripted; only the unmerged rounds of the killed worker are lost."""
    script = (
        ScriptedFault(0.05, "kill", "cpu:0"),
        ScriptedFault(0.1, "slow", "cpu:1", 4.0),
        ScriptedFault(0.15, "join", "cpu:2"),
        ScriptedFault(0.25, "join", "cpu:0"),
    )
    machine = three_workers(faults=script)
    # they come after 0.25 s, in any order: each does a round, and all merge
    last = [joined(0), arrived(0), arrived(1), arrived(2), merged]
    history = real(STRATEGIES[name], machine, until=last)
    assert what_happened(history) == [
        ("cpu:0", "lost"),
        ("cpu:1", "slow"),
        ("cpu:2", "joined"),
        ("cpu:0", "joined"),
    ]
    assert all(worker.updates for worker in history.workers)
    times = [i.seconds for i in history.events]
    assert times == pytest.approx([0.05, 0.1, 0.15, 0.25])
    assert hj.replay(history.trace, progress=False).replayed == "equal"
    again = fit_machine(history.trace.load()).machine
    assert [(i.what, i.worker, i.factor) for i in again.faults] == [
        (i.what, i.worker, i.factor) for i in script
    ]


def test_a_killed_learner_does_not_stop_the_one_it_ran_with():
    """Learner 0's thread runs both; learner 0 is killed during a round."""
    killed = (ScriptedFault(0.1, "kill", "cpu:0/0"),)
    machine = hj.local_machine(
        ["cpu:0"],
        workers_per_device=2,
        step_mode="vmapped",
        slowdown=5.0,  # rounds last, also on a busy machine, where it multiplies stalls
        faults=killed,
    )
    history = real(rounds(), machine, until=[lost(0), *4 * [arrived(1)]])
    assert what_happened(history) == [("cpu:0/0", "lost")]
    late = [s for s in history.timeline if s.worker == 1 and s.start > 0.1]
    assert late, "the other worker goes on"
    assert not history.stuck
    assert not own_threads()
    assert hj.replay(history.trace, progress=False).replayed == "equal"


def test_a_silent_worker_is_dropped_and_rejoins(meddle, patient):
    """It hangs for longer than its deadline, which is a little over a second."""
    patient.strict.add((1, 8))
    was_lost, hung = threading.Event(), []

    def hang(worker, local_rounds):
        if worker == 1 and local_rounds == 8:
            began = time.perf_counter()
            was_lost.wait(LONG)
            hung.append(time.perf_counter() - began)

    meddle(hang)
    last = [telling(lost(1), was_lost.set), joined(1), *2 * [arrived(1)]]
    history = real(rounds(), until=last)
    assert what_happened(history) == [("cpu:1", "lost"), ("cpu:1", "joined")]
    gone, back = history.events
    assert gone.why.startswith("no answer for")
    assert back.why.startswith("answered after ")
    said = float(back.why.removeprefix("answered after ").removesuffix(" s"))
    assert said > 0.99 * hung[0] > 0.99  # pauses do not count; it says three digits
    after = [s for s in history.timeline if s.worker == 1 and s.start > back.seconds]
    assert after, "it computes again"
    assert not history.stuck
    meddle(lambda worker, local_rounds: None)
    assert hj.replay(history.trace, progress=False).replayed == "equal"


def test_a_thread_that_is_stuck_is_left_behind_and_named(meddle, monkeypatch, patient):
    monkeypatch.setattr("hetjax.runtimes.threads.thread_executor.END", 0.3)
    patient.strict.add((2, 8))
    free = threading.Event()

    def hang(worker, local_rounds):
        if worker == 2 and local_rounds == 8:
            free.wait()

    meddle(hang)
    history = real(rounds(), until=[lost(2), merged])
    assert history.stuck == ["cpu:2"]
    assert what_happened(history) == [("cpu:2", "lost")]
    (stuck,) = own_threads()
    assert stuck.daemon
    free.set()
    stuck.join(30)
    assert not own_threads()


def test_a_nan_replica_is_reported_and_left_out():
    """It is reset to the center, which never includes it."""
    # in every pass of 60 examples one row is bad; an evaluation comes after it
    history = real(rounds(), task=POISONED, until=[*20 * [merged], evaluated])
    told = [i for i in history.events if i.what == "nan"]
    assert told
    assert len(told) == sum(worker.nans for worker in history.workers)
    assert "reset to the center" in told[0].why
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(history.params))
    assert all(np.isfinite(p["loss"]) for p in history.evals)
    assert hj.replay(history.trace, progress=False).replayed == "equal"


def test_a_run_may_stop_at_nan():
    history = real(rounds(), task=POISONED, on_nan="stop", seconds=60.0)
    assert "the loss of worker cpu:" in history.stopped
    assert "became nan" in history.stopped


def test_a_nan_replica_on_the_virtual_clock():
    """The same option there; by default the run stops."""
    machine = hj.machine.preset("v100x2")
    kept = real(rounds(), machine, task=POISONED, on_nan="reset", seconds=0.2)
    assert not kept.stopped
    assert sum(worker.nans for worker in kept.workers) > 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(kept.params))
    stopped = real(rounds(), machine, task=POISONED, seconds=0.2)
    assert "became nan" in stopped.stopped


def test_a_reset_worker_keeps_the_model_in_its_mailbox(monkeypatch):
    """A model that was requested earlier is delivered, not an empty buffer."""
    taken = []

    def check_out(self, worker):
        replica = inner(self, worker)
        taken.append(np.array(replica.params["layers"][0]["kernel"]))
        return replica

    inner = ReplicaStore.check_out
    monkeypatch.setattr(ReplicaStore, "check_out", check_out)
    history = real(
        hj.downpour(batch_size=4, learning_rate=0.01, fetch_every=3),
        hj.machine.preset("v100x2"),
        task=POISONED,
        on_nan="reset",
        seconds=0.2,
    )
    assert sum(worker.nans for worker in history.workers) > 1
    assert all(np.any(kernel) for kernel in taken)


def test_ctrl_c_returns_a_result_and_leaves_no_thread():
    points = []

    def begun(point):
        points.append(point)
        if len(points) == 2:
            signal.raise_signal(signal.SIGINT)

    history = real(rounds(), seconds=60.0, num_evals=200, on_eval=begun)
    assert history.stopped == "interrupted"
    assert len(history.evals) == 2
    assert np.isfinite(history.evals[-1]["loss"])
    assert not own_threads()
    again = hj.replay(history.trace, progress=False)
    assert (again.replayed, again.stopped) == ("equal", "interrupted")


def test_an_error_in_the_loop_leaves_no_thread():
    def fail(event):
        if own_threads():  # not in the dry run before it
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        real(policy_that(fail), seconds=60.0, num_evals=500)
    assert not own_threads()


def policy_that(asks, strategy=None):
    """A strategy whose policy calls a function with each event."""
    strategy = strategy or rounds()
    react = strategy.policy.react

    def asking(state, event):
        asks(event)
        return react(state, event)

    return strategy._replace(policy=strategy.policy._replace(react=asking))


def test_an_error_in_a_worker_s_turn_reaches_the_caller(tmp_path):
    """The trace file has all events up to that one."""
    path = tmp_path / "t.jsonl"

    def fail(event):
        if threading.current_thread() is not threading.main_thread():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        real(policy_that(fail), seconds=60.0, num_evals=1, trace=path)
    assert not own_threads()
    trace = Trace.load(path)
    assert next(iter(trace.lines[-1])) in ("arrival", "merged")
    assert not trace.end


def test_arriving_workers_take_turns(monkeypatch):
    """No thread is woken between rounds: the caller waits until the end."""
    turns, inner = [], WallClock.wait  # since the caller's last wait began

    def wait(clock):
        turns.clear()
        inner(clock)

    def note(event):
        if type(event) is Arrival:
            turns.append(threading.current_thread())

    # otherwise the caller looks for Ctrl-C now and then, and takes turns that are due
    monkeypatch.setattr(wall_clock, "_LONGEST_WAIT", AT_MOST)
    monkeypatch.setattr(WallClock, "wait", wait)
    strategy = hj.async_sgd(batch_size=4, learning_rate=0.05)
    history = real(
        ending(policy_that(note, strategy), 100 * [arrived(0)]),
        hj.local_machine(["cpu:0"], step_mode="dispatch"),
        seconds=AT_MOST,
        num_evals=1,
    )
    assert history.stopped == ENOUGH
    assert len(turns) > 90
    assert threading.main_thread() not in turns


def test_the_caller_evaluates(monkeypatch):
    """User code runs in its thread, also if a worker's turns come first."""
    looks, inner = [], WallClock.wait

    def wait(clock):
        inner(clock)
        time.sleep(0.02)

    monkeypatch.setattr(WallClock, "wait", wait)
    real(
        hj.async_sgd(batch_size=4, learning_rate=0.05),
        hj.local_machine(["cpu:0"], step_mode="dispatch"),
        until=[*100 * [arrived(0)], evaluated],
        on_eval=lambda point: looks.append(threading.current_thread()),
    )
    assert set(looks) == {threading.main_thread()}


class LateMerge(LaunchedMerge):
    """A merge that is not done before somebody waits for it."""

    def look(self):
        pass

    def wait(self):
        super().look()
        return super().wait()


@pytest.mark.parametrize("name", ["async_sgd", "easgd", "local_sgd"])
def test_rounds_behind_a_running_merge_begin_when_it_is_done(name, monkeypatch):
    """Of a worker on the nodes' device; nothing of its time counts twice."""
    monkeypatch.setattr(replica_store, "LaunchedMerge", LateMerge)
    machine = hj.local_machine(["cpu:0"], step_mode="dispatch")
    chosen = hj.STRATEGIES[name](batch_size=4, learning_rate=0.05)
    history = real(chosen, machine, until=30 * [merged])
    done, behind = 0.0, 0
    for line in history.trace.load().lines:
        if "merge" in line:
            done = line["stamps"][-1]
        elif "dispatch" in line:
            assert line["start"] >= done
            behind += line["start"] == done > 0
        elif "arrival" in line:
            assert line["finish"] >= line["start"] >= done
    assert behind >= 29
    segments = sorted(s[2:] for s in history.timeline)
    for (_, finish), (start, _) in itertools.pairwise(segments):
        assert start >= finish
    total = sum(history.workers[0][kind] for kind in KINDS)
    assert total == pytest.approx(history.duration, abs=1e-6)


@pytest.mark.full
def test_memory_does_not_grow_with_arrivals(tmp_path):
    """10,000 arrivals: after the first thousand no array is left behind."""
    arrays, arrivals = [], []

    def look(point):
        arrays.append(len(jax.live_arrays()))
        arrivals.append(point["updates"])
        return None

    machine = hj.local_machine(["cpu:0", "cpu:1"], step_mode="dispatch")
    strategy = hj.hogwild(batch_size=1, learning_rate=0.01)
    history = real(
        strategy,
        machine,
        seconds=300.0,
        num_evals=1200,
        epochs=10_000 / 60,
        on_eval=look,
        trace=tmp_path / "trace",
    )
    assert arrivals[-1] >= 10_000
    first, half = (
        next(i for i, n in enumerate(arrivals) if n > m) for m in (1000, 5000)
    )
    # arrays of this process: those of other tests may disappear, but none is added;
    # a few models may be in flight; one more array per arrival would be 5,000
    assert max(arrays[half:]) <= max(arrays[first:half]) + 40
    assert history.merges >= 10_000
    # 32 bytes per segment: a round, a merge and two transfers per arrival
    assert len(history.timeline.numbers) * 8 < 200 * arrivals[-1]


def test_the_trace_of_a_run_with_a_slash_in_its_name(tmp_path):
    table = {"sgd/1e-1": hj.sync_sgd(batch_size=4, learning_rate=0.1)}
    machine = hj.local_machine(["cpu:0"], step_mode="dispatch")
    given = {"seconds": 0.1, "num_evals": 1, "progress": False, "traces": tmp_path}
    hj.compare(TASK, DATA, machine, table, **given)
    (file,) = tmp_path.iterdir()
    assert file.name == "sgd%2F1e-1_0.jsonl"
    assert Trace.load(file).header["name"] == "sgd/1e-1"
