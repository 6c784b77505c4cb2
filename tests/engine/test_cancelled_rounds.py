"""Rounds that a policy ends before they arrive: `Actions.cancel`."""

import dataclasses

import numpy as np
import pytest
import tiny_runs
from checkpointed_runs import Memory, load, outcome, run, session
from real_runs import assert_replays, evaluated, merged, real
from tiny_runs import SGD, averaging, column, machine, seconds_of, train

import hetjax as hj
from hetjax.machine import Arrival, LocalRound, MergeAction, MergeOp, Timer
from hetjax.schedule import Actions, Policy

STEP = LocalRound(1, 2)
FETCH = MergeAction((1,), op=MergeOp.FETCH, transfers=0, blocking=False)


def cancelling(at=2.5, *, again=True, steps=1):
    """Worker 0 merges each step; worker 1's round is cancelled at a time, once."""

    def init(workers, num_examples):
        first = (0, STEP), (1, LocalRound(steps, 2))
        return (), Actions(dispatch=first, timers=(("cancel", at),))

    def react(state, event):
        if isinstance(event, Timer) and event.name == "cancel":
            first = ((1, STEP),) if again else ()
            return state, Actions(cancel=(1,), merges=(FETCH,), dispatch=first)
        if isinstance(event, Arrival):
            k = event.worker
            action = MergeAction((k,), transfers=0, blocking=False)
            return state, Actions(merges=(action,), dispatch=((k, STEP),))
        return state, Actions()

    return averaging()._replace(policy=Policy(init, react), local=SGD)


def ends(history, worker):
    """The times at which this worker's rounds ended, one way or the other [s]."""
    kinds = [(s.worker, s.kind, s.finish) for s in history.timeline]
    return [finish for k, kind, finish in kinds if (k, kind) == (worker, "busy")]


def test_a_cancelled_round_never_arrives():
    """Worker 1 would arrive at 4 s; it begins again at 2.5 s, and arrives at 6.5 s."""
    history = train(machine(1.0, 4.0), cancelling(), 8.0, num_evals=8)
    assert ends(history, 1)[:2] == [2.5, 6.5]
    assert ends(history, 0) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    one, other = history.workers
    assert (one.cancelled, one.cancelled_seconds) == (0, 0.0)
    assert (other.cancelled, other.cancelled_seconds) == (1, 2.5)
    assert other.updates == 1
    assert [worker.lost for worker in history.workers] == [0, 0]


def test_a_cancelled_worker_s_seconds_sum_to_the_duration():
    for again in (True, False):
        history = train(machine(1.0, 4.0), cancelling(again=again), 8.0)
        for seconds, worker in zip(seconds_of(history), history.workers, strict=True):
            assert sum(seconds) + worker.transfer == pytest.approx(8.0)
            assert min(seconds) >= 0
    # it was busy until it was cancelled, and never again
    assert history.workers[1].busy == 2.5


def test_a_cancelled_worker_begins_at_the_model_that_it_fetches():
    """Its own step since then is lost: the center is worker 0's, 2, plus one step."""
    history = train(machine(1.0, 4.0), cancelling(), 7.25, num_evals=29)
    models = dict(zip(column(history, "seconds"), column(history, "w"), strict=True))
    assert models[6.25] == 6.0
    assert models[6.5] == 3.0  # alone, it replaces the center by its replica


def test_the_examples_of_a_cancelled_round_are_used_up():
    """The rounds draw 0 1 | 2 3 | ... in turn, and the second is cancelled."""
    drawn = []

    def sampler():
        def draw(state, worker, n):
            rows = (state + np.arange(n)) % tiny_runs.EXAMPLES
            drawn.append((worker, rows.tolist()))
            return state + n, rows

        return hj.sampling.Sampler(lambda workers, num_examples, seed: 0, draw)

    strategy = cancelling()._replace(sampler=sampler())
    history = train(machine(1.0, 4.0), strategy, 3.25, compiled=False)
    rows = [rows for _, rows in drawn]
    assert sum(rows, []) == list(range(2 * len(rows)))
    assert [worker for worker, _ in drawn].count(1) == 2
    assert history.workers[1].examples == 0


def test_a_round_that_has_not_begun_is_cancelled_after_its_merge():
    """Worker 1's merge occupies it until 3 s; its next round would begin then."""

    def init(workers, num_examples):
        return 0, Actions(dispatch=((1, STEP),), timers=(("cancel", 2.0),))

    def react(count, event):
        if isinstance(event, Timer) and event.name == "cancel":
            return count, Actions(cancel=(1,), merges=(FETCH,), dispatch=((1, STEP),))
        if isinstance(event, Arrival):
            return count + 1, Actions(
                merges=(MergeAction((1,)),), dispatch=((1, STEP),)
            )
        return count, Actions()

    strategy = averaging()._replace(policy=Policy(init, react))
    history = train(machine(1.0, 1.0, link=2.0), strategy, 3.9)
    busy = [(s.start, s.finish) for s in history.timeline if s.kind == "busy"]
    assert history.workers[1].cancelled == 1
    assert history.workers[1].cancelled_seconds == 0.0
    assert busy[0] == (0.0, 1.0)
    assert all(start >= 3.0 for start, _ in busy[1:])
    (seconds,) = seconds_of(history)[1:]
    assert sum(seconds) == pytest.approx(3.9)
    assert min(seconds) >= 0


CANCELLING = {
    "ringmaster_asgd": {"max_delay": 2},
    "rennala_sgd": {"batches": 2},
    "malenia_sgd": {"batches": 4},
}


def strategy(name):
    return hj.STRATEGIES[name](batch_size=4, learning_rate=0.05, **CANCELLING[name])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_run_with_cancelled_rounds_is_resumed(compiled):
    task, data = tiny_runs.counting_task(), tiny_runs.counting_data()
    one = session(task, data, machine(1.0, 2.5, 7.0), 12.0, compiled=compiled)
    chosen = strategy("ringmaster_asgd")
    saver = Memory(every=2)
    whole = run(one, chosen, saver=saver)
    assert sum(worker.cancelled for worker in whole.workers) > 1
    assert len(saver.cuts) > 2
    for cut in (saver.cuts[0], saver.cuts[len(saver.cuts) // 2]):
        assert outcome(run(one, chosen, saved=load(cut))) == outcome(whole)


def test_others_are_faster_without_a_cancelled_round():
    """Both are half as fast while both compute: 2 s, then .5 s at half speed."""
    both = machine(1.0, 4.0)
    workers = tuple(dataclasses.replace(w, contention=2.0) for w in both.workers)
    shared = dataclasses.replace(both, workers=workers)
    history = train(shared, cancelling(again=False), 5.25)
    assert history.workers[1].cancelled_seconds == 2.5
    assert ends(history, 1) == [2.5]
    assert ends(history, 0) == [2.0, 3.25, 4.25, 5.25]


@pytest.mark.full
@pytest.mark.parametrize("name", ["ringmaster_asgd", "rennala_sgd"])
def test_cancelled_rounds_on_threads_are_replayed(name):
    chosen = strategy(name)
    history = real(chosen, until=[*10 * [merged], evaluated])
    assert history.real
    assert history.merges > 3
    for worker in history.workers:
        kinds = worker.busy, worker.waiting, worker.merging, worker.idle
        assert sum(kinds) + worker.transfer == pytest.approx(history.duration, abs=1e-6)
        assert min(kinds) >= 0
    assert sum(worker.cancelled for worker in history.workers) > 0
    assert_replays(history, chosen)
