"""Executors: where assignments run changes their time, and nothing else."""

import queue
import threading
import time

import chex
import jax
import numpy as np
import pytest
from real_runs import DATA, TASK

import hetjax as hj
from hetjax.engine.programs.compilations import Compilations
from hetjax.machine import preset
from hetjax.runtimes import inline, simulated
from hetjax.runtimes.inline import (
    TIMED_ASSIGNMENTS,
    Assignment,
    PooledExecutor,
    RoundOutcome,
    group_assignments,
)
from hetjax.runtimes.real.wall_clock import WallClock
from hetjax.runtimes.threads.thread_executor import (
    DeviceWorker,
    ThreadExecutor,
)


def assignment(worker, local_steps=1, size=2):
    rows = [np.zeros(size, np.int64)] * local_steps
    return Assignment(worker, np.float32(worker), rows, np.float32(0.1), 0)


@pytest.fixture
def pool():
    """Makes executors that run a function; closes them all afterwards."""
    made = []

    def make(run, threads=2):
        made.append(PooledExecutor(run, threads))
        return made[-1]

    yield make
    for one in made:
        one.close()


def slowly(a):
    time.sleep(2 * inline.SHORTEST_POOLED)
    return RoundOutcome(a.replica, [], np.zeros(()), threading.get_ident())


def play(one, local_rounds):
    """The threads that ran each of these rounds of worker 0."""
    found = []
    for _ in range(local_rounds):
        one.start(assignment(0))
        found.append(one.finish(0).padded)
    return found


def test_the_first_rounds_show_that_rounds_are_long(pool):
    here = threading.get_ident()
    threads = play(pool(slowly), TIMED_ASSIGNMENTS + 3)
    assert threads[:TIMED_ASSIGNMENTS] == [here] * TIMED_ASSIGNMENTS
    assert here not in threads[TIMED_ASSIGNMENTS:]


def test_short_rounds_stay_on_the_caller_s_thread(pool):
    def run(a):
        return RoundOutcome(a.replica, [], np.zeros(()), threading.get_ident())

    assert set(play(pool(run), TIMED_ASSIGNMENTS + 3)) == {threading.get_ident()}


def test_long_rounds_run_at_the_same_time(pool):
    """Two rounds wait for each other."""
    both = threading.Barrier(2, timeout=10)

    def run(a):
        if a.worker:
            both.wait()
        return slowly(a)

    one = pool(run)
    play(one, TIMED_ASSIGNMENTS)
    for k in (1, 2):
        one.start(assignment(k))
    assert [one.finish(k).replica for k in (2, 1)] == [2.0, 1.0]


def test_an_error_of_a_thread_is_raised_where_its_outcome_is_fetched(pool):
    def run(a):
        if a.worker:
            raise ZeroDivisionError
        return slowly(a)

    one = pool(run)
    play(one, TIMED_ASSIGNMENTS)
    one.start(assignment(1))
    with pytest.raises(ZeroDivisionError):
        one.finish(1)


def test_a_dropped_assignment_does_not_block_the_next_one(pool):
    one = pool(slowly)
    play(one, TIMED_ASSIGNMENTS)
    one.start(assignment(1))
    one.discard(1)
    one.start(assignment(1))
    assert one.finish(1).replica == 1.0


@pytest.mark.parametrize("name", ["local_sgd", "async_sgd", "ad_psgd", "adaptive_sgd"])
def test_a_run_on_several_threads_has_the_same_bits(name, monkeypatch):
    """On the virtual clock; every round counts as a long one."""
    strategy = hj.STRATEGIES[name](learning_rate=0.1, batch_size=8)
    monkeypatch.setattr(inline, "SHORTEST_POOLED", 0.0)
    found = []
    for cores in (1, 4):
        monkeypatch.setattr(simulated, "cores", lambda cores=cores: cores)
        history = hj.train(
            TASK, DATA, preset("v100x4"), strategy, seconds=0.2, progress=False
        )
        found.append(history)
    one, several = found
    assert one.evals == several.evals
    assert one.workers == several.workers
    chex.assert_trees_all_equal(one.params, several.params)


def test_one_program_runs_rounds_of_one_device_and_shape():
    local_rounds = [
        assignment(0, 2),
        assignment(1, 2),
        assignment(2, 2),  # on another device
        assignment(3, 1),  # another number of steps
        assignment(4, 2, size=3),
        assignment(5, 0),  # only a copy
        assignment(6, 0),
        assignment(7, 2),
        assignment(8, 2),  # slowed on purpose
    ]
    workers = [("b" if k == 2 else "a", 3.0 if k == 8 else 1.0) for k in range(9)]
    groups = [
        [a.worker for a in group] for group in group_assignments(local_rounds, workers)
    ]
    assert groups == [[0, 1, 7], [2], [3], [4], [5], [6], [8]]


class Immediate:
    """Steps that are done immediately."""

    def __init__(self):
        self.compilations = Compilations()

    def run(self, a, *_):
        return RoundOutcome(a.replica, [], np.zeros(()), 0)


class TwoRounds:
    """A loop with one turn, which gives a worker two rounds and waits for each."""

    def __init__(self):
        self.reports = queue.SimpleQueue()
        self.clock = WallClock(())
        self.clock.report = self.reports.put
        device_worker = DeviceWorker("cpu:0", jax.devices()[0], 1.0, "dispatch")
        steps = Immediate()
        self.threads = ThreadExecutor(steps, [device_worker], self.clock)

    def take_turns(self, yields):
        for _ in range(2):
            self.threads.start(assignment(0))
            self.reports.get(timeout=10)
            self.threads.finish(0)
        return False


def test_a_worker_computes_while_another_takes_the_loop_s_turn():
    """The turn waits for the worker (as an evaluation does), but not vice versa."""
    loop = TwoRounds()
    loop.threads.run_turns(loop.take_turns)
    assert loop.threads.close() == []
