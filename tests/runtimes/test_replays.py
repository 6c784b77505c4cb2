"""Replays of real runs: decisions come from the trace, not from the policy."""

import pytest
from quick import quick
from real_runs import (
    DATA,
    TASK,
    assert_replays,
    assert_same_run,
    evaluated,
    joined,
    lost,
    merged,
    real,
    rounds,
    three_workers,
)
from zoo import make

import hetjax as hj
from hetjax.machine import (
    Arrival,
    Evaluated,
    EvaluationDue,
    LocalRound,
    MergeAction,
    RunEnded,
    ScriptedFault,
)
from hetjax.schedule import Actions, Policy
from hetjax.tracing.trace import Trace

pytestmark = pytest.mark.usefixtures("patient")
ALL = (0, 1, 2)
STEP = LocalRound(1, 4)


def kinds(trace):
    """The kinds of the lines of a trace."""
    return [next(iter(line)) for line in trace.load().lines]


def own(react, local_round=STEP):
    """A strategy with a custom policy, which begins with a round of each worker."""
    given = tuple((k, local_round) for k in ALL)
    policy = Policy(lambda infos, n: (frozenset(), Actions(dispatch=given)), react)
    return hj.Strategy(
        policy=policy,
        local=hj.local.sgd(),
        merge=hj.merge.average(),
        batch_size=4,
        learning_rate=0.05,
    )


@pytest.mark.parametrize("name", quick(hj.STRATEGIES, "async_sgd", "adaptive_sgd"))
def test_a_run_with_a_kill_a_join_and_a_slowdown(name):
    faults = (
        ScriptedFault(0.02, "slow", "cpu:0", 2.0),
        ScriptedFault(0.03, "kill", "cpu:1"),
        ScriptedFault(0.06, "join", "cpu:1"),
    )
    strategy = make(name, 4)
    machine = three_workers(faults=faults)
    history = real(strategy, machine, until=[lost(1), joined(1), merged, evaluated])
    assert [e.what for e in history.events] == ["slow", "lost", "joined"]
    assert_replays(history, strategy)


def test_workers_that_are_stopped_and_started():
    machine = hj.local_machine(
        ["cpu:0", "cpu:1"], workers_per_device=2, step_mode="dispatch"
    )
    strategy = hj.sma(batch_size=4, learning_rate=0.05, tuner="paper", tuner_window=2)
    last = [joined(1), *3 * [merged], evaluated]
    history = real(strategy, machine, until=last)
    assert "start" in kinds(history.trace)
    assert_replays(history, strategy)


def test_merges_before_an_evaluation():
    """The center makes its steps before an evaluation."""
    strategy = make("magma_async_sgd", 4)
    last = [evaluated, merged, evaluated, merged, evaluated]
    history = real(strategy, until=last)
    found = kinds(history.trace)
    assert any(found[k : k + 2] == ["merge", "evaluation"] for k in range(len(found)))
    assert_replays(history, strategy)


def test_merges_after_an_evaluation():
    """All workers wait for it, and merge then."""

    def react(waiting, event):
        if isinstance(event, Arrival):
            return waiting | {event.worker}, Actions()
        if isinstance(event, Evaluated) and len(waiting) == len(ALL):
            again = tuple((k, STEP) for k in ALL)
            return frozenset(), Actions((MergeAction(ALL),), again)
        return waiting, Actions()

    strategy = own(react)
    history = real(strategy, until=[evaluated, *3 * [merged], evaluated])
    found = kinds(history.trace)
    assert any(found[k : k + 2] == ["evaluation", "merge"] for k in range(len(found)))
    assert_replays(history, strategy)


def test_a_run_that_a_policy_ends_before_an_evaluation():
    def react(arrived, event):
        if isinstance(event, EvaluationDue) and len(arrived) > 3:
            raise RunEnded("enough")
        if not isinstance(event, Arrival):
            return arrived, Actions()
        merges = (MergeAction((event.worker,)),)
        more = arrived | {event.time}
        return more, Actions(merges, ((event.worker, STEP),))

    strategy = own(react)
    history = real(strategy, seconds=60.0, num_evals=1200)
    assert history.stopped == "enough"
    assert kinds(history.trace)[-1] == "timer"
    assert_replays(history, strategy)


def test_the_policy_decides_again_in_a_trace_of_version_2():
    """It lacks evaluations, started workers, and some fields of merges."""
    strategy = rounds()
    history = real(strategy, until=[*3 * [merged], evaluated])
    trace = history.trace.load()
    new = {"blocking", "transfers", "server_steps"}
    old = [
        {k: v for k, v in line.items() if k not in new}
        for line in trace.lines
        if next(iter(line)) not in ("start", "evaluation")
    ]
    assert len(old) < len(trace.lines)
    before = Trace({**trace.header, "trace": 2}, old, trace.end)
    again = hj.replay(before, TASK, DATA, strategy, progress=False)
    assert again.replayed == "equal"
    assert_same_run(again, history)


def test_the_file_has_what_happened_before_an_evaluation(tmp_path):
    path, seen = tmp_path / "t.jsonl", []

    def on_eval(point):
        lines = Trace.load(path).lines  # of the run that goes on
        seen.append((sum("arrival" in x for x in lines), point["updates"]))

    real(rounds(), until=[*3 * [merged], evaluated], trace=path, on_eval=on_eval)
    assert len(seen) > 1
    assert all(2 * arrivals == updates for arrivals, updates in seen)
