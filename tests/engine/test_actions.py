"""Unusual actions: several merges at once, separate nodes, timers."""

import numpy as np
import pytest

import hetjax as hj
from hetjax.machine import (
    ROOT,
    Arrival,
    Cost,
    Evaluated,
    EvaluationDue,
    Join,
    Leave,
    Link,
    LocalRound,
    Machine,
    Node,
    Profile,
    Timer,
    Topology,
)
from hetjax.schedule import Actions, MergeAction, Policy

COST = Cost(1.0, 0.0)


def two_workers(latency):
    """Workers with steps of 1 and 1.5 s; a merge takes twice the latency."""
    workers = (Profile("a", "cpu", COST), Profile("b", "cpu", COST, factor=1.5))
    return Machine(
        "two", workers, {"": Link(latency=latency, bandwidth=1e12, topology="central")}
    )


@pytest.fixture(scope="module")
def digits():
    data = hj.data.digits()
    return hj.classification(hj.models.mlp(hidden=8), data), data


def asynchronous(merges):
    """Every worker takes part in `merges(worker)` when it arrives, and continues."""

    def init(infos, n):
        return (), Actions(dispatch=tuple((w.index, LocalRound(1, 8)) for w in infos))

    def react(state, event):
        if not isinstance(event, Arrival):
            return state, Actions()
        k = event.worker
        return state, Actions(merges(k), ((k, LocalRound(1, 8)),))

    return Policy(init, react)


def strategy(policy):
    return hj.Strategy(
        policy, hj.local.sgd(), hj.merge.average(), batch_size=8, learning_rate=0.1
    )


def run(problem, policy, machine, **settings):
    return hj.train(*problem, machine, strategy(policy), progress=False, **settings)


def test_two_merges_of_one_event_are_not_counted_twice(digits):
    policy = asynchronous(lambda k: (MergeAction((k,)), MergeAction((k,))))
    history = run(digits, policy, two_workers(0.25), seconds=9.0, num_evals=3)
    for w in history.workers:
        assert w.merging > 0
        total = w.busy + w.waiting + w.merging + w.idle
        assert total == pytest.approx(9.0, abs=1e-9)
    spans = sorted((s.start, s.finish) for s in history.timeline if s.worker == 0)
    assert all(a[1] <= b[0] + 1e-9 for a, b in zip(spans, spans[1:], strict=False))


def test_the_returned_model_is_that_of_the_last_evaluation(digits):
    """Neither includes a merge that is in progress at the end."""
    task, data = digits
    settings = {"seconds": 1.6, "num_evals": 1, "progress": False}
    sync = hj.sync_sgd(batch_size=8, learning_rate=0.5)
    history = hj.train(task, data, two_workers(0.25), sync, **settings)
    guesses = np.asarray(history.model(data.test.x)).argmax(-1)
    assert np.mean(guesses == data.test.y) == pytest.approx(
        history.evals[-1]["accuracy"], abs=1e-6
    )
    assert history.evals[-1]["accuracy"] == history.evals[0]["accuracy"]


def test_a_node_of_its_own_does_not_touch_the_root(digits):
    policy = asynchronous(lambda k: (MergeAction((k,), node="other"),))
    both = {name: Node((0, 1), 0, frozenset({0, 1})) for name in (ROOT, "other")}
    policy = policy._replace(topology=lambda workers: Topology(both))
    history = run(digits, policy, two_workers(0.0), seconds=4.0, num_evals=2)
    accuracies = [p["accuracy"] for p in history.evals]
    assert accuracies == [accuracies[0]] * 3
    assert history.merges > 0


def answering(answer):
    """A policy that answers `Evaluated` with `answer(event)` and records all events."""
    seen = []

    def init(infos, n):
        return (), Actions(dispatch=((0, LocalRound(1, 8)),))

    def react(state, event):
        seen.append(event)
        if isinstance(event, Evaluated):
            return state, answer(event)
        return state, Actions()

    return Policy(init, react), seen


def test_a_policy_sees_an_evaluation_when_it_happens(digits):
    """It can set a timer soon after, even if the next arrival is far away."""
    policy, seen = answering(lambda e: Actions(timers=(("soon", e.time + 0.01),)))
    settings = {"compiled": False}  # else what is foreseen is in `seen`, too
    run(digits, policy, two_workers(0.0), seconds=0.9, num_evals=3, **settings)
    times = [(type(e), round(e.time, 6)) for e in seen]
    assert times == [
        (EvaluationDue, 0.0),
        (Evaluated, 0.0),
        (Timer, 0.01),
        (EvaluationDue, 0.3),
        (Evaluated, 0.3),
        (Timer, 0.31),
        (EvaluationDue, 0.6),
        (Evaluated, 0.6),
        (Timer, 0.61),
        (EvaluationDue, 0.9),
    ]


def test_the_loops_own_timer_is_refused(digits):
    policy, _ = answering(lambda e: Actions(timers=(("evaluate", e.time),)))
    with pytest.raises(ValueError, match="'evaluate' is reserved"):
        run(digits, policy, two_workers(0.0), seconds=0.9, num_evals=3)


def test_an_active_worker_cannot_be_started(digits):
    policy, _ = answering(lambda e: Actions(start=(1,)))
    with pytest.raises(ValueError, match="worker 1 cannot be started: it is active"):
        run(digits, policy, two_workers(0.0), seconds=0.9, num_evals=3)


def test_a_policy_sees_which_workers_leave_and_join(digits):
    """Before evaluations of the same time; a stopped worker gets no round."""
    answers = {0.0: Actions(stop=(1,)), 0.3: Actions(start=(1,))}
    policy, seen = answering(lambda e: answers.get(round(e.time, 6), Actions()))
    run(digits, policy, two_workers(0.0), seconds=0.9, num_evals=3)
    membership = [
        (type(e), e.worker, round(e.time, 6)) for e in seen if hasattr(e, "worker")
    ]
    assert membership == [(Leave, 1, 0.0), (Join, 1, 0.3)]
    late = Actions(dispatch=((1, LocalRound(1, 8)),))
    policy, _ = answering(lambda e: answers[0.0] if e.time == 0 else late)
    with pytest.raises(ValueError, match="was stopped: start it first"):
        run(digits, policy, two_workers(0.0), seconds=0.9, num_evals=3)
