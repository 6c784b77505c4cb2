"""Runs on a real cluster of Ray: three nodes on this machine, and their failures."""

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import chex
import numpy as np
import pytest
from once import alone
from real_runs import DATA, TASK, merged_root, real, rounds, three_workers
from test_real_strategies import EPOCHS, strategy
from zoo import WAYS

import hetjax as hj
from hetjax.machine import Arrival, Leave

pytest.importorskip("ray")
pytestmark = pytest.mark.full

NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 150_000_000}
ROOT = Path(__file__).parents[3]
PYTEST = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
FOLDERS = ["tests", *PYTEST["ini_options"]["pythonpath"]]  # of the tests' modules
PATHS = [ROOT, *(ROOT / folder for folder in FOLDERS)]


class Nodes:
    """A cluster of three nodes."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        # so that its processes find the modules of the tests
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, PATHS))
        self.cluster = Cluster(initialize_head=True, head_node_args=NODE)
        self.rest = [self.cluster.add_node(**NODE) for _ in range(2)]
        self.address = self.cluster.address
        self.more = []
        self._machine = None

    @property
    def machine(self):
        """The workers of all nodes that are there; one machine for many tests."""
        if self._machine is None:
            self._machine = hj.cluster_machine(self.address, step_mode="dispatch")
        return self._machine

    def leave_machine(self):
        """Free the nodes for another machine, or another driver."""
        if self._machine is not None:
            processes = processes_of(self._machine)
            self._machine.close()
            self._machine = None
            assert_ends(processes)

    def kill_one(self):
        """kill -9 of the last node's raylet."""
        node = self.rest.pop()
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def join(self):
        """A node joins, as from another machine's shell."""
        # that of this environment: PATH may have another, or none
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray, "start", "--num-cpus=1", "--block", "--address", self.address]
        self.more.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    def close(self):
        import ray

        self.leave_machine()
        ray.shutdown()  # also after a test that failed
        for process in self.more:
            process.terminate()
            process.wait()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with alone(tmp_path_factory, "ray"):  # two clusters on two cores starve each other
        found = Nodes()
        yield found
        found.close()


@pytest.fixture
def machine(nodes):
    """The workers of all nodes."""
    return nodes.machine


def describe(machine, name, seconds=30.0):
    (future,) = machine.pool._actors[name].call("describe", queue="health")
    return future.result(timeout=seconds)


def process_of(machine, name):
    """The process number of a worker's actor; None if it does not answer."""
    try:
        return describe(machine, name, seconds=5).process
    except Exception:  # it is about to start, or was just killed
        return None


def processes_of(machine):
    """The process numbers of all actors that answer."""
    return [describe(machine, name).process for name in machine.pool.names]


def is_alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_until(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def assert_ends(processes):
    wait_until(lambda: not any(map(is_alive, processes)), seconds=30.0)
    assert not [p for p in processes if is_alive(p)]


class During:
    """Does something in a thread, a while after the run has begun to evaluate.

    With `ends` the run is over when the thread is.
    """

    def __init__(self, do, after=1.0, *, ends=False):
        self._do, self._after, self._ends, self._thread = do, after, ends, None

    def __call__(self, point):
        if point["seconds"] >= self._after and self._thread is None:
            self._thread = threading.Thread(target=self._do)
            self._thread.start()
        done = self._thread is not None and not self._thread.is_alive()
        return hj.STOP if self._ends and done else ""


def watched(strategy):
    """The strategy, and the workers that have done a round since they came."""
    at_work = set()

    def init(workers, num_examples):
        at_work.clear()
        return strategy.policy.init(workers, num_examples)

    def react(state, event):
        match event:
            case Arrival():
                at_work.add(event.worker)
            case Leave():
                at_work.discard(event.worker)
        return strategy.policy.react(state, event)

    policy = strategy.policy._replace(init=init, react=react)
    return strategy._replace(policy=policy), at_work


def run(machine, strategy, do, *, seconds, after=1.0, ends=False, **more):
    during = During(do, after, ends=ends)
    history = real(
        strategy,
        machine,
        seconds=seconds,
        num_evals=int(2 * seconds),
        on_eval=during,
        **more,
    )
    assert during._thread is not None
    during._thread.join()
    return history


def events_of(history, worker):
    return [e.what for e in history.events if e.worker == worker]


def check(history, *, ends=False):
    """The run was as long as it was to be, and its history is consistent."""
    assert "on_eval returned STOP" in history.stopped if ends else not history.stopped
    assert np.isfinite([p["loss"] for p in history.evals]).all()
    updates = [p["updates"] for p in history.evals]
    assert updates == sorted(updates)
    assert hj.replay(history.trace, progress=False).replayed == "equal"


@pytest.mark.parametrize("name", WAYS)
def test_a_strategy_is_replayed(name, machine):
    history = real(strategy(name), machine, seconds=60.0, num_evals=240, epochs=EPOCHS)
    assert "as asked" in history.stopped
    assert history.merges > 3
    assert hj.replay(history.trace, progress=False).replayed == "equal"


@pytest.mark.parametrize("name", ["sma", "local_sgd", "fed_acc", "sync_sgd"])
def test_three_actors_equal_three_threads(name, machine):
    params = [
        real(strategy(name), m, until=6 * [merged_root]).params
        for m in (machine, three_workers())
    ]
    chex.assert_trees_all_equal(*params)


@pytest.mark.parametrize(("name", "times"), [("local_sgd", 6), ("async_sgd", 4)])
def test_actors_are_killed_at_random_moments(name, times, machine):
    """kill -9: each time a new process replaces the worker's actor."""
    moments = random.Random(name)
    names = [w.name for w in machine.workers]
    chosen, at_work = watched(strategy(name))
    killed, gone = [], {None}

    def is_new(name):
        """Whether a worker has a process that was not killed."""
        return process_of(machine, name) not in gone

    def kill():
        over = time.monotonic() + 240.0
        while len(killed) < times and time.monotonic() < over:
            time.sleep(moments.uniform(0.0, 2.0))
            victim = moments.choice(names)
            wait_until(lambda victim=victim: victim in machine.pool.names)
            process = process_of(machine, victim)
            if process is None:
                continue
            os.kill(process, signal.SIGKILL)
            killed.append(victim)
            gone.add(process)
            at_work.discard(names.index(victim))  # its loss is noticed later
        wait_until(lambda: all(map(is_new, names)) and len(at_work) == len(names))

    history = run(machine, chosen, kill, seconds=400.0, ends=True)
    print("killed", killed, *history.events, sep="\n  ")
    check(history, ends=True)
    assert len(killed) == times
    for victim in set(killed):
        what = events_of(history, victim)
        # killed while it is starting, it may not be reported as lost again
        assert what.count("lost") >= killed.count(victim) - 1
        assert what[-1] == "joined"
    assert sum(w.lost for w in history.workers) <= len(killed)
    assert sorted(machine.pool.names) == sorted(names)


def test_a_stopped_actor_is_lost_and_rejoins(machine):
    """SIGSTOP for 30 s; only its round is discarded."""
    stopped = machine.workers[1].name
    process = describe(machine, stopped).process

    def stop():
        os.kill(process, signal.SIGSTOP)
        time.sleep(30.0)
        os.kill(process, signal.SIGCONT)

    history = run(machine, rounds(), stop, seconds=36.0)
    print(*history.events, sep="\n  ")
    check(history)
    assert [(e.worker, e.what) for e in history.events] == [
        (stopped, "lost"),
        (stopped, "joined"),
    ]
    # by the driver's watch: the clock stands still while a model is evaluated
    why = history.events[1].why
    assert 29.0 < float(why.removeprefix("answered after ").removesuffix(" s")) < 33.0
    assert [w.lost for w in history.workers] == [0, 1, 0]
    assert is_alive(process)


class Rows:
    """A data set whose disk breaks after `breaks_after` reads of a process."""

    def __init__(self, breaks_after=float("inf")):
        self.reads = 0
        self.breaks_after = breaks_after

    def __len__(self):
        return 60

    def __getitem__(self, row):
        self.reads += 1
        if self.reads > self.breaks_after:
            raise OSError("the disk is gone")
        return DATA.train.x[row], int(DATA.train.y[row])


def test_a_step_that_raises_loses_its_worker(machine):
    # more reads than the measurements before the run take
    data = hj.data.from_source(Rows(breaks_after=6000), Rows(), x=0, y=1)
    history = hj.train(
        TASK, data, machine, rounds(), seconds=300.0, num_evals=300, progress=False
    )
    assert "the last one, was lost" in history.stopped
    assert {e.what for e in history.events} == {"lost"}
    assert "OSError: the disk is gone" in history.events[0].why


def test_a_killed_driver_leaves_no_actor_and_loses_nothing_that_was_saved(
    nodes, tmp_path
):
    nodes.leave_machine()
    script = f"""
import sys
import hetjax as hj
from real_runs import DATA, TASK, rounds
machine = hj.cluster_machine({nodes.address!r}, step_mode="dispatch")
from test_ray import processes_of
print(*processes_of(machine), flush=True)
hj.train(TASK, DATA, machine, rounds(), seconds=60.0, num_evals=300, progress=False,
         checkpoint={str(tmp_path)!r}, every="2 evals",
         on_eval=lambda point: print("eval", point["seconds"], flush=True))
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    )
    processes = list(map(int, driver.stdout.readline().split()))
    assert len(processes) == 3
    evaluated = []
    while not evaluated or evaluated[-1] < 3.0:
        line = driver.stdout.readline()
        assert line, "the driver ended by itself"
        evaluated.append(float(line.split()[1]))
    driver.kill()
    # it may have gone on for a moment
    evaluated += [float(line.split()[1]) for line in driver.stdout.read().splitlines()]
    driver.wait()
    assert_ends(processes)
    # the machine is made again, of the same cluster
    last = hj.resume(
        tmp_path,
        TASK,
        DATA,
        strategy=rounds(),
        every="2 evals",
        on_eval=lambda point: hj.STOP if point["seconds"] > 6 else None,
        progress=False,
    )
    (where,) = last.interruptions
    assert 1.5 < where.seconds <= evaluated[-1] + 0.1
    kept = [p["seconds"] for p in last.evals if p["seconds"] <= where.seconds]
    assert kept == evaluated[: len(kept)]
    assert kept[:5] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
    replayed = hj.replay(tmp_path / "trace.jsonl", TASK, DATA, rounds(), progress=False)
    assert replayed.replayed == "equal"


def test_a_call_arrives_as_it_was_made(nodes):
    """With the values of its payloads, wherever they were; reports come as bytes."""
    import ray

    from hetjax.runtimes.cluster.actor_run import RoundReport
    from hetjax.runtimes.cluster.ray_cluster import PackedCall, RayWorkerActor

    class Answers(RayWorkerActor):
        def __init__(self, answer=None):
            self.answer = answer

        def call_run(self, *args):
            return args if self.answer is None else self.answer

    reference = nodes.machine.pool.cluster.put([1.0])
    given = ("begin", reference, np.float32(2), reference, b"x")
    packed, payloads = PackedCall.of("call_run", given)
    assert payloads == [reference, reference]
    found = Answers().call_packed(packed, *ray.get(payloads))
    assert found == ("begin", [1.0], np.float32(2), [1.0], b"x")
    report, leaves = RoundReport(0.5, 0.0, mean=np.float32(3)), [np.ones(2)]
    alone = Answers(report).call_packed(packed, *payloads)
    assert pickle.loads(alone) == report
    first, rest = Answers((report, leaves)).call_packed(packed, *payloads)
    assert (pickle.loads(first), rest) == (report, leaves)


def test_why_an_actor_is_dead():
    """Our own message where Ray's misleads, otherwise Ray's first sentence."""
    from hetjax.runtimes.cluster.ray_cluster import _short_reason

    message = "The actor died because {}. class_name: Actor\n actor_id: 1 ..."
    killed = message.format("of an error raised in its creation task")
    assert (
        _short_reason(RuntimeError(killed)) == "of an error raised in its creation task"
    )
    # the driver's port is closed to the cluster, or wants another token
    held = message.format("all references to the actor were removed including lineage")
    assert "cannot connect back to this process" in _short_reason(RuntimeError(held))


def test_a_task_that_cannot_be_pickled_says_why(machine):
    lock = threading.Lock()

    def loss(*given):
        with lock:
            return TASK.loss(*given)

    task = TASK._replace(loss=loss)
    with pytest.raises(
        ValueError, match="Task cannot be sent .* pickle '_thread.lock'"
    ):
        hj.train(task, DATA, machine, rounds(), seconds=1.0, progress=False)


def test_other_functions_of_the_api(machine):
    """calibrate, advise, compare: as on one machine."""
    measured = hj.calibrate(
        TASK, DATA, machine, batch_sizes=(4, 8), repeats=4, progress=False
    )
    assert [w.name for w in measured.workers] == [w.name for w in machine.workers]
    advice = hj.advise(TASK, DATA, measured, batch_size=8, seconds=0.5, progress=False)
    assert len(advice.best.workers) >= 1
    comparison = hj.compare(
        TASK,
        DATA,
        machine,
        {"rounds": rounds(), "async": strategy("async_sgd")},
        seconds=0.5,
        seeds=2,
        progress=False,
    )
    assert all(history.real for history in comparison.histories)
    assert "rounds" in str(comparison.table())


def test_a_dead_node_leaves_and_one_that_joins_takes_its_place(nodes):
    """kill -9 of a raylet, then `ray start` of another one."""
    nodes.leave_machine()
    machine = hj.cluster_machine(nodes.address, step_mode="dispatch", joiners=1)
    names = [w.name for w in machine.workers]
    chosen, at_work = watched(rounds())

    def change():
        wait_until(lambda: len(at_work) == 3)
        nodes.kill_one()
        # one by one: two nodes that start at a time may fail on two cores
        for number in (2, 3, 4):
            wait_until(lambda number=number: len(at_work) == number)
            if number < 4:
                nodes.join()

    history = run(machine, chosen, change, seconds=400.0, ends=True)
    print(*history.events, sep="\n  ")
    check(history, ends=True)
    lost = {e.worker for e in history.events if e.what == "lost"}
    joined = {e.worker for e in history.events if e.what == "joined"}
    assert len(lost) == 1
    assert joined == {*lost, "joiner-1"}
    assert all(w.updates > 0 for w in history.workers)
    assert [w.name for w in history.workers] == names
    machine.close()
