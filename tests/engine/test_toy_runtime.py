"""A custom kind of machine: one page of code, without changes elsewhere."""

import heapq
from functools import partial

import chex
import pytest
from real_runs import DATA, TASK

import hetjax as hj
from hetjax.engine.protocols import Runtime
from hetjax.engine.reference_player import ReferencePlayer
from hetjax.engine.step_runner import StepRunner, StepSettings
from hetjax.machine import (
    Arrival,
    Merged,
    PlannedMerge,
    Roster,
    Stamps,
    Timer,
    WorkerInfo,
)
from hetjax.runtimes.inline import InlineExecutor


class OneSecondClock:
    """A clock on which a local round takes a second, and a merge no time."""

    has_pending_joins = False

    def __init__(self, workers):
        self.workers = tuple(
            WorkerInfo(k, f"toy{k}", "toy", (), 1.0, 0.0) for k in range(workers)
        )
        self.roster = Roster.of(self.workers)
        self.now, self._heap, self._count = 0.0, [], 0

    def _push(self, time, rank, event):
        heapq.heappush(self._heap, (time, rank, self._count, event))
        self._count += 1

    def dispatch(self, worker, local_round, nonzeros):
        self.roster = self.roster.dispatched((worker,))
        arrival = Arrival(worker, local_round, self.now, self.now + 1.0)
        self._push(arrival.finish, 1, arrival)
        return arrival

    def plan(self, merge):
        action = merge.action
        merged = Merged(action.node, self.now, action.members, action.op)
        self._push(self.now, 0, merged)
        return PlannedMerge(self.now, Stamps(*[self.now] * 4))

    def set_timer(self, name, time):
        self._push(time, 2, Timer(name, time))

    def next(self):
        if not self._heap:
            return None
        self.now, _, _, event = heapq.heappop(self._heap)
        self.roster = self.roster.after(event)
        return event


class Toy:
    """A machine is anything with a method `open_runtime`."""

    def record(self):
        return {"name": "toy"}

    def open_runtime(self, strategy, job):
        run = partial(
            StepRunner(StepSettings.of(strategy), job).run, step_mode="dispatch"
        )
        clock = OneSecondClock(3)
        player = ReferencePlayer(strategy, job, clock.workers, InlineExecutor(run))
        return Runtime(clock, player, {"toy": "dispatch"})


SETTINGS = {"batch_size": 4, "learning_rate": 0.1}


@pytest.mark.parametrize("name", ["sync_sgd", "sma", "local_sgd", "async_sgd", "easgd"])
def test_strategies_run_on_a_users_own_machine(name):
    """As on a simulated machine whose rounds take a second, and merges no time."""
    strategy = hj.STRATEGIES[name](**SETTINGS)
    twice = {"seconds": 5.5, "progress": False}
    runs = hj.compare(TASK, DATA, Toy(), {"a": strategy, "b": strategy}, **twice)
    history, again = runs.histories
    assert [h.strategy for h in runs.histories] == ["a", "b"]
    assert history.step_modes == {"toy": "dispatch"}
    assert [w.busy for w in history.workers] == [5.5] * 3
    assert history.evals[-1]["loss"] < history.evals[0]["loss"]
    chex.assert_trees_all_equal(history.params, again.params)


def test_one_run_on_it():
    sync = hj.sync_sgd(**SETTINGS)
    history = hj.train(TASK, DATA, Toy(), sync, seconds=2.5, progress=False)
    assert (history.strategy, history.duration) == ("sync_sgd", 2.5)


def test_an_object_that_is_not_a_machine():
    with pytest.raises(ValueError, match="machine='toy': pass a Machine"):
        hj.train(TASK, DATA, "toy", hj.sma(**SETTINGS), seconds=1.0, progress=False)
