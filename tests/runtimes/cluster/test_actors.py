"""Actors that die, hang, fail and join, on a cluster of this process."""

import threading
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import jax
import numpy as np
import pytest
from in_process import three_actors
from real_runs import (
    DATA,
    TASK,
    arrived,
    evaluated,
    joined,
    lost,
    merged,
    poisoned_task,
    real,
    rounds,
    telling,
    what_happened,
)

import hetjax as hj
from hetjax.runtimes.cluster import supervisor, worker_group
from hetjax.runtimes.cluster.actor import MAX_STORED
from hetjax.runtimes.cluster.actor_run import ActorRun

pytestmark = pytest.mark.usefixtures("patient")
LONG = 60.0  # [s] for events that take much less
# of workers 0, 1 and 2 of a run, one after the other
ALL_ARRIVED = [arrived(0), arrived(1), arrived(2)]


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    """Look for nodes all the time."""
    monkeypatch.setattr(supervisor, "POLL_INTERVAL", 0.05)


@pytest.fixture
def impatient(monkeypatch):
    """An actor that hangs is asked for its status after a moment."""
    monkeypatch.setattr(worker_group, "PATIENCE", 0.3)
    monkeypatch.setattr(worker_group, "STATUS_TIMEOUT", 0.3)


def wait_until(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def during(cluster, what, rounds=12):
    """Call `what` when a run has sent `rounds` rounds to its actors."""
    began = threading.Event()
    inner = supervisor.Supervisor.begin

    def given():
        return sum(
            call == ("call_run", "run_round")
            for m in cluster.actors
            for call in m.calls
        )

    before = given()

    def begin(self, lost):
        inner(self, lost)
        began.set()

    def wait_and_do():
        began.wait(LONG)
        wait_until(lambda: given() >= before + rounds)
        what()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor.Supervisor, "begin", begin)
        thread = threading.Thread(target=wait_and_do)
        thread.start()
        yield
        thread.join()


@pytest.fixture
def before_round(monkeypatch):
    """Call a function with (worker, the number of its round) before each round."""

    def install(function):
        inner, counts = ActorRun.run_round, Counter()

        def run(self, local_round, *before):
            counts[self._worker] += 1
            function(self._worker, counts[self._worker])
            return inner(self, local_round, *before)

        monkeypatch.setattr(ActorRun, "run_round", run)

    return install


def lost_and_joined(history, worker):
    return [e.what for e in history.events if e.worker == worker]


@pytest.mark.parametrize("name", ["local_sgd", "async_sgd", "ad_psgd", "hier_sgd"])
def test_a_killed_actor_is_lost_and_gets_a_new_process(name):
    """The run continues, and replays as one run."""
    cluster, machine = three_actors()
    settings = (
        {"levels": ((2, 1),), "local_steps": (1, 2)} if name == "hier_sgd" else {}
    )
    strategy = hj.STRATEGIES[name](batch_size=4, learning_rate=0.05, **settings)
    last = [lost(1), joined(1), arrived(1), *6 * [merged]]
    with during(cluster, cluster.actors[1].kill):
        history = real(strategy, machine, until=last)
    assert lost_and_joined(history, "b/cpu:0") == ["lost", "joined"]
    assert "killed" in history.events[0].why
    assert "a new process on b" in history.events[1].why
    assert history.workers[1].updates > 0
    assert history.merges > 5
    assert hj.replay(history.trace, progress=False).replayed == "equal"
    assert len(cluster.actors) == 4


def test_a_node_that_dies_leaves_and_another_one_takes_its_worker():
    cluster, machine = three_actors()

    # the others continue without it for a while
    last = [lost(1), *3 * [arrived(0)], telling(arrived(2), partial(cluster.join, "d"))]
    with during(cluster, partial(cluster.leave, "b")):
        history = real(rounds(), machine, until=[*last, joined(1), arrived(1)])
    assert lost_and_joined(history, "b/cpu:0") == ["lost", "joined"]
    assert "a new process on d" in history.events[1].why
    assert [w.node for w in history.workers] == ["a", "d", "c"]
    # the next run begins with it
    again = real(rounds(), machine, until=ALL_ARRIVED)
    assert not again.events
    assert again.workers[1].updates > 0


def test_a_node_that_joins_becomes_a_worker():
    cluster, machine = three_actors(slowdown=1.0, joiners=1)
    assert [w.name for w in machine.workers][3] == "joiner-1"
    with during(cluster, lambda: cluster.join("d")):
        last = [joined(3), arrived(3), merged]
        history = real(rounds(local_steps=2), machine, until=last)
    assert what_happened(history) == [("joiner-1", "joined")]
    assert "it joined on d" in history.events[0].why
    assert history.workers[3].updates > 0
    assert history.workers[3].node == "d"
    assert hj.replay(history.trace, progress=False).replayed == "equal"


def test_actors_can_be_lost_while_another_one_starts(monkeypatch):
    """Ray's start of an actor waits for the thread on which it reports dead ones."""
    cluster, machine = three_actors()
    last = [lost(1), joined(1), arrived(1), arrived(2)]
    inner, made = cluster.start, []
    init = supervisor.Supervisor.__init__

    def kept(self, *args):
        init(self, *args)
        made.append(self)

    def start(*args):
        dead = machine.pool.actors_of([machine.workers[2].name])
        report = threading.Thread(target=made[-1].lost, args=(2, *dead, "it is dead"))
        report.start()
        report.join(LONG)
        assert not report.is_alive()
        monkeypatch.undo()  # the actor of the lost worker starts as usual
        return inner(*args)

    monkeypatch.setattr(supervisor.Supervisor, "__init__", kept)
    monkeypatch.setattr(cluster, "start", start)
    with during(cluster, cluster.actors[1].kill):
        history = real(rounds(), machine, until=last)
    assert lost_and_joined(history, "c/cpu:0") == ["lost", "joined"]


def test_the_last_actor_is_waited_for_and_then_lost(monkeypatch):
    """A run without workers ends when no node has room for a new process."""
    monkeypatch.setattr(supervisor, "GRACE_PERIOD", 0.5)
    cluster, machine = three_actors("a", slowdown=1.0)
    with during(cluster, lambda: cluster.leave("a"), rounds=4):
        history = real(
            hj.sequential_sgd(batch_size=4, learning_rate=0.1),
            machine,
            seconds=60.0,
            num_evals=60,
        )
    assert "the last one, was lost" in history.stopped
    assert "no node has had room" in history.stopped
    assert 0.5 < history.duration < 50


def hang_in_a_round(first, before_round, patient):
    """The first worker's actor hangs in its eighth round, whose deadline it misses."""

    def hang(worker, number):
        if (worker, number) == (0, 8):
            first.hang()
            first.wait()

    patient.strict.add((0, 8))
    before_round(hang)


def test_an_actor_that_hangs_is_lost_and_rejoins(before_round, patient):
    cluster, machine = three_actors()
    hung = cluster.actors[0]
    hang_in_a_round(hung, before_round, patient)
    last = [telling(lost(0), hung.resume), joined(0), *2 * [arrived(0)]]
    history = real(rounds(), machine, until=last)
    assert lost_and_joined(history, "a/cpu:0") == ["lost", "joined"]
    assert "no answer for" in history.events[0].why
    assert "answered after" in history.events[1].why
    assert history.workers[0].updates > 0
    assert hj.replay(history.trace, progress=False).replayed == "equal"
    assert not history.stuck


def test_an_actor_that_hangs_to_the_end_is_stuck_and_replaced(
    before_round, patient, impatient, monkeypatch
):
    monkeypatch.setattr("hetjax.runtimes.cluster.cluster_executor.END_TIMEOUT", 0.3)
    cluster, machine = three_actors()
    hung = cluster.actors[0]
    hang_in_a_round(hung, before_round, patient)
    history = real(rounds(), machine, until=[lost(0), *2 * [merged]])
    assert history.stuck == ["a/cpu:0"]
    assert lost_and_joined(history, "a/cpu:0") == ["lost"]
    hung.kill()


def test_an_actor_that_is_lost_when_it_merges_is_absent(monkeypatch, before_round):
    """It is killed with its round done, at the barrier; the others' work is merged."""
    cluster, machine = three_actors()
    doomed, begun = cluster.actors[0], threading.Event()
    before_round(lambda worker, number: begun.set())

    def kill():
        if begun.is_set():  # not in the dry run
            doomed.kill()

    # not even leaves that are sent with the report save the merge
    monkeypatch.setattr(
        "hetjax.runtimes.cluster.cluster_store.PREDICTING_ROUNDS", 10**9
    )
    # on the driver's thread, before the merge that the last arrival leads to
    last = [arrived(0), telling(arrived(0), kill), lost(0), joined(0), arrived(0)]
    history = real(rounds(), machine, until=[*last, merged])
    assert lost_and_joined(history, "a/cpu:0") == ["lost", "joined"]
    assert np.isfinite([p["loss"] for p in history.evals]).all()
    trace = history.trace.load()
    (merge,) = (line for line in trace.lines if "missing" in line)
    assert (merge["missing"], merge["members"]) == ([0], [0, 1, 2])
    again = hj.replay(history.trace, progress=False)
    assert again.replayed == "equal"
    assert again.workers[0].staleness == history.workers[0].staleness


def test_a_step_that_raises_loses_its_worker(monkeypatch):
    _, machine = three_actors()
    inner = ActorRun._outcome

    def outcome(self, local_round, replica):
        if self._worker == 1 and local_round.first_step >= 4:
            raise RuntimeError("bad memory")
        return inner(self, local_round, replica)

    monkeypatch.setattr(ActorRun, "_outcome", outcome)
    history = real(rounds(), machine, until=[lost(1), *3 * [merged]])
    assert lost_and_joined(history, "b/cpu:0") == ["lost"]
    assert "bad memory" in history.events[0].why
    assert "RuntimeError" in history.events[0].why


def test_what_an_actor_cannot_apply_is_reported_with_its_next_round(monkeypatch):
    """Nothing waits for a changed replica to arrive; its error is not lost."""
    _, machine = three_actors()
    inner = ActorRun.apply_changes

    def change(self, packed, *sent):
        return inner(self, packed, *([] if self._worker == 2 else sent))

    monkeypatch.setattr(ActorRun, "apply_changes", change)
    history = real(rounds(), machine, until=[lost(2), *3 * [merged]])
    assert lost_and_joined(history, "c/cpu:0") == ["lost"]
    assert "IndexError" in history.events[0].why


def test_on_lost_worker_stop_ends_the_run():
    cluster, machine = three_actors()
    with during(cluster, cluster.actors[1].kill):
        history = real(rounds(), machine, seconds=120.0, on_lost_worker="stop")
    assert "worker b/cpu:0 was lost" in history.stopped


def test_a_replica_that_is_not_finite_is_reset_to_the_center():
    _, machine = three_actors()
    last = [*15 * [merged], evaluated]
    options = {"task": poisoned_task(), "on_nan": "reset"}
    history = real(rounds(), machine, until=last, **options)
    assert "nan" in {e.what for e in history.events}
    assert np.isfinite(history.evals[-1]["loss"])
    assert all(np.isfinite(leaf).all() for leaf in _leaves(history.params))


def _leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_scripted_faults():
    """Killed, slowed and joined as a script says; the processes live on."""
    faults = (
        hj.machine.ScriptedFault(0.05, "kill", "a/cpu:0"),
        hj.machine.ScriptedFault(0.1, "slow", "b/cpu:0", 3.0),
        hj.machine.ScriptedFault(0.15, "join", "a/cpu:0"),
    )
    cluster, machine = three_actors(faults=faults)
    history = real(rounds(), machine, until=[joined(0), arrived(0), merged])
    assert what_happened(history) == [
        ("a/cpu:0", "lost"),
        ("b/cpu:0", "slow"),
        ("a/cpu:0", "joined"),
    ]
    assert len(cluster.actors) == 3
    assert hj.replay(history.trace, progress=False).replayed == "equal"


def test_an_actor_that_is_lost_before_a_run_has_no_part_in_it_at_first():
    cluster, machine = three_actors()
    real(rounds(), machine, until=ALL_ARRIVED)
    cluster.actors[2].kill()
    history = real(rounds(), machine, until=[joined(2), arrived(2), merged])
    assert what_happened(history) == [("c/cpu:0", "joined")]
    assert history.workers[2].updates > 0


def test_an_actor_that_compiles_is_excused(monkeypatch, patient):
    """It takes longer than its deadline, but says that it compiles."""
    _, machine = three_actors()
    patient.strict.add((1, 5))
    inner, asked, excused = ActorRun._outcome, worker_group.WorkerGroup.is_compiling, []

    def outcome(self, local_round, replica):
        if self._worker == 1 and local_round.first_step == 8:  # the fifth round
            self.job.compilations._lowered.add(-1)
            wait_until(lambda: excused)  # its deadline is 1 s and a few rounds
            self.job.compilations._lowered.discard(-1)
        return inner(self, local_round, replica)

    def is_compiling(self, worker):
        found = asked(self, worker)
        if found:
            excused.append(worker)
        return found

    monkeypatch.setattr(ActorRun, "_outcome", outcome)
    monkeypatch.setattr(worker_group.WorkerGroup, "is_compiling", is_compiling)
    history = real(rounds(), machine, until=8 * [arrived(1)])
    assert set(excused) == {1}
    assert not history.events
    assert history.workers[1].updates > 12


def test_shards_stay_with_their_workers():
    """An actor has the rows of its shard alone, and computes what threads do."""
    shards = [np.arange(k, len(DATA.train), 3) for k in range(3)]
    strategy = rounds()._replace(sampler=hj.sampling.sharded(shards))
    cluster, machine = three_actors()
    history = real(strategy, machine, until=[*ALL_ARRIVED, *3 * [merged]])
    for actor in cluster.actors:
        held = actor._actor.result()._data.values()
        assert [len(split) for split in held] == [20]
    assert hj.replay(history.trace, progress=False).replayed == "equal"


def test_the_tasks_of_two_sessions_are_kept_apart():
    _, machine = three_actors()
    other = hj.classification(hj.models.mlp(hidden=9), DATA)
    for task in (TASK, other, TASK):
        history = real(rounds(), machine, until=[*ALL_ARRIVED, merged], task=task)
        assert hj.replay(history.trace, progress=False).replayed == "equal"


def test_an_actor_whose_step_hangs_does_not_stop_the_next_run(monkeypatch, patient):
    """It answers health checks, but its round never ends: the next run replaces it."""
    _, machine = three_actors()
    patient.strict.add((1, 3))
    resumed = threading.Event()
    inner = ActorRun._outcome

    def outcome(self, local_round, replica):
        if self._worker == 1 and local_round.first_step >= 4 and not resumed.is_set():
            resumed.wait(LONG)
        return inner(self, local_round, replica)

    monkeypatch.setattr(ActorRun, "_outcome", outcome)
    monkeypatch.setattr("hetjax.runtimes.cluster.cluster_executor.END_TIMEOUT", 0.5)
    history = real(rounds(), machine, until=[lost(1), merged])
    assert history.stuck == ["b/cpu:0"]
    monkeypatch.setattr(ActorRun, "_outcome", inner)
    patient.strict.clear()
    again = real(rounds(), machine, until=[joined(1), arrived(1), merged])
    assert ("b/cpu:0", "joined") in what_happened(again)
    assert again.workers[1].updates > 0
    resumed.set()


def test_a_process_that_comes_before_its_loss_is_known_is_adopted(monkeypatch):
    """The loop is held up: the new process is there before the old one's Leave."""
    cluster, machine = three_actors()
    inner = supervisor.Supervisor.lost
    held = []

    def lost_deferred(self, worker, actor, why):
        inner(self, worker, actor, why)
        if threading.current_thread() is self._thread:  # which starts it
            return
        # the round's failure is reported after the new process is there
        wait_until(lambda: not self._vacant)
        held.append(worker)

    monkeypatch.setattr(supervisor.Supervisor, "lost", lost_deferred)
    last = [lost(1), joined(1), arrived(1), merged, evaluated]
    with during(cluster, cluster.actors[1].kill):
        history = real(rounds(), machine, until=last)
    assert held
    assert lost_and_joined(history, "b/cpu:0") == ["lost", "joined"]
    assert history.evals[-1]["updates"] > history.evals[0]["updates"]
    assert hj.replay(history.trace, progress=False).replayed == "equal"


def test_a_deferred_report_of_a_replaced_actor_does_not_lose_the_new_one(monkeypatch):
    """By a thread that was held up between the failure and what it says."""
    cluster, machine = three_actors()
    inner = supervisor.Supervisor.begin
    found = []

    def begin(self, lost):
        found.append(self)
        inner(self, lost)

    monkeypatch.setattr(supervisor.Supervisor, "begin", begin)

    def kill_and_say_so_again():
        old = cluster.actors[1]
        old.kill()
        wait_until(lambda: found[0]._group.actors[1] not in (old, None))
        found[0].lost(1, old, "it was killed")
        found[0].unresponsive(1, old, "no answer")
        found[0].unresponsive(1, None, "it had no process")
        said.set()

    said = threading.Event()
    last = [joined(1), lambda event: said.is_set(), *ALL_ARRIVED, *3 * [merged]]
    with during(cluster, kill_and_say_so_again):
        history = real(rounds(), machine, until=last)
    assert lost_and_joined(history, "b/cpu:0") == ["lost", "joined"]
    assert len(cluster.actors) == 4


def test_a_closed_machine_says_so():
    _, machine = three_actors()
    machine.close()
    assert "a cluster, closed" in repr(machine)
    with pytest.raises(ValueError, match="it was closed .* make another one"):
        real(rounds(), machine, seconds=1.0)


def test_actors_that_hang_are_distinguished_from_those_that_work(impatient):
    """All are asked at once; an answer that takes long is waited for."""
    cluster, _ = three_actors()
    slow = Future()
    asked = {k: (m, slow if k == 0 else Future()) for k, m in enumerate(cluster.actors)}
    cluster.actors[1].hang()
    cluster.actors[2].kill()
    threading.Timer(1.0, slow.set_result, ["done"]).start()
    assert worker_group.wait_for(asked) == {1, 2}
    assert slow.result(timeout=0) == "done"
    cluster.actors[1].resume()


def test_a_slow_network_is_no_reason_to_lose_a_worker(monkeypatch, patient):
    """Deadlines adapt to reports that are all equally slow."""
    _, machine = three_actors()
    inner, counts = ActorRun.run_round, Counter()

    def run(self, local_round, *before):
        found = inner(self, local_round, *before)
        counts[self._worker] += 1
        # on its way: five times 0.2 s and 1 s are allowed after five rounds; if only
        # steps counted, little more than 1 s
        time.sleep(1.4 if counts[self._worker] == 6 else 0.2)
        return found

    monkeypatch.setattr(ActorRun, "run_round", run)
    patient.strict |= {(0, 6), (1, 6), (2, 6)}
    history = real(rounds(), machine, until=6 * [merged])
    assert min(counts.values()) >= 6
    assert not history.events


def test_a_late_cancel_does_not_end_another_round():
    """It names its round; one that comes before its round ends it at once."""
    run = object.__new__(ActorRun)
    run._number, run._cancelled = 6, 0
    cancelled = []

    class FakeThrottle:
        cancel = staticmethod(lambda: cancelled.append(True))

    run._throttle = FakeThrottle
    run.cancel(5)
    assert not cancelled
    run.cancel(6)
    assert cancelled
    assert run._cancelled == 6


def test_a_worker_does_not_move_to_another_kind_of_device(monkeypatch, cpu_alone):
    from hetjax.runtimes.cluster.actor import WorkerActor

    cluster, machine = three_actors()
    inner = WorkerActor.describe
    monkeypatch.setattr(
        WorkerActor, "describe", lambda self: inner(self)._replace(kind="odd")
    )
    still_lost, said = supervisor.Supervisor._still_lost, []

    def report(self, *args):
        still_lost(self, *args)
        said.append(args)

    # why it stays lost, which policies do not learn
    monkeypatch.setattr(supervisor.Supervisor, "_still_lost", report)
    last = [lost(1), lambda event: bool(said), *3 * [arrived(0)], merged]
    with during(cluster, cluster.actors[1].kill):
        history = real(rounds(), machine, until=last)
    events = [e for e in history.events if e.worker == "b/cpu:0"]
    assert {e.what for e in events} == {"lost"}
    assert "it has a odd, not a cpu" in events[-1].why


def test_what_is_used_again_is_not_evicted_next():
    """A run sends its settings, perhaps stored long ago, and then its task."""
    cluster, machine = three_actors()
    actor, broadcast = cluster.actors[0]._actor.result(), machine.pool.broadcast
    values = [broadcast.share(n, lambda n=n: n) for n in range(MAX_STORED + 1)]
    for value in values[:-1]:
        actor._fetched(value)
    assert actor._fetched(values[0]) == 0
    assert actor._fetched(values[-1]) == MAX_STORED
    assert set(actor._stored) == {values[0].key, *(v.key for v in values[2:])}


def test_a_script_slows_a_new_process_too():
    faults = (hj.machine.ScriptedFault(0.0, "slow", "b/cpu:0", 50.0),)
    cluster, machine = three_actors(slowdown=1.0, faults=faults)
    last = [lost(1), joined(1), *4 * [arrived(1)]]
    with during(cluster, cluster.actors[1].kill):
        history = real(rounds(), machine, until=last)
    assert lost_and_joined(history, "b/cpu:0") == ["slow", "lost", "joined"]
    back = history.events[-1].seconds
    usual = [
        np.median([s.finish - s.start for s in history.timeline if is_step(s, k, back)])
        for k in (0, 1)
    ]
    assert usual[1] > 3 * usual[0]


def is_step(segment, worker, since):
    """Does a worker compute there, in a round that began then or later?"""
    late = segment.worker == worker and segment.start >= since
    return late and segment.kind == "busy"
