"""Threads of rounds that are cancelled: few, and none is given a turn that it loses."""

import threading
import time
from types import SimpleNamespace

import jax
import pytest
from real_runs import own_threads

from hetjax.runtimes.threads.thread_executor import DeviceWorker, ThreadExecutor


class Clock:
    """Keeps the reports, and counts how often the leader is woken."""

    seconds_left, has_reports = 0.0, True

    def __init__(self):
        self.woken, self.reports = 0, []

    def wake_leader(self, urgent=False):
        self.woken += urgent

    def report(self, report):
        self.reports.append(report)


class Steps:
    """Programs that last until they are released."""

    compilations = SimpleNamespace(own_seconds=0.0)

    def __init__(self):
        self.release, self.begun = threading.Event(), []

    def run(self, assignment, *rest):
        self.begun.append(assignment.number)
        self.release.wait(60.0)
        return SimpleNamespace(wait=lambda: assignment.number, done=True)


@pytest.fixture
def executor():
    """One with a worker; nobody takes turns."""
    workers = [DeviceWorker("cpu:0", jax.devices("cpu")[0], 1.0, "dispatch")]
    return ThreadExecutor(Steps(), workers, Clock())  # pyright: ignore


def assign(executor, number):
    executor._assign([SimpleNamespace(worker=0, number=number)])


def until(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")


def test_a_worker_that_is_cancelled_again_and_again_has_few_threads(executor):
    """While its first program runs, which nobody can stop, the next ones wait."""
    steps = executor.steps
    assign(executor, 0)
    until(lambda: steps.begun)
    for number in range(1, 50):
        executor.cancel(0)
        assign(executor, number)
    until(lambda: len(own_threads()) == 2)  # the first, and the last, which waits
    assert len(executor._discarded) < 50
    assert steps.begun == [0]
    steps.release.set()
    until(lambda: len(steps.begun) == 2)
    assert steps.begun == [0, 49]
    until(lambda: executor._outcomes)
    assert executor.finish(0) == 49
    assert executor.close() == []


def test_a_thread_that_ends_is_given_no_turn(executor, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    assign(executor, 0)
    thread = executor._threads[0]
    executor.cancel(0)
    with executor._turns:  # another thread has the turns
        executor.run_turns_on(thread)
    executor._pass_on()
    assert executor._idle == set()
    assert executor._clock.woken == 1  # so that somebody takes its report
