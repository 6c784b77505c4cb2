"""Unintended ends of runs: policies that stall, callbacks that raise."""

import pytest
from real_runs import DATA, TASK
from tiny_runs import averaging, machine, train

import hetjax as hj
from hetjax.machine import Arrival, preset
from hetjax.schedule import Actions, Policy

SMA = hj.sma(batch_size=4, learning_rate=0.1)


def test_a_run_whose_policy_stalls_says_so(monkeypatch):
    """The policy forgets the worker that arrives second."""
    whole = averaging().policy

    def react(state, event):
        if isinstance(event, Arrival) and event.worker == 1:
            return state, Actions()
        return whole.react(state, event)

    strategy = averaging(policy=Policy(whole.init, react))
    history = train(machine(1.0, 2.0), strategy, 9.0, num_evals=9)
    why = (
        "no worker has a local round since 2 s: the policy returned no actions "
        "on Arrival"
    )
    assert history.stopped == why
    assert history.duration == 2.0


def test_a_policy_that_gives_no_worker_a_round():
    idle = Policy(lambda infos, n: ((), Actions()), lambda state, e: (state, Actions()))
    history = train(machine(1.0), averaging(policy=idle), 9.0, num_evals=9)
    why = (
        "no worker has a local round since 0 s: the policy returned no actions "
        "when the run began"
    )
    assert (history.stopped, len(history.evals)) == (why, 1)


def test_a_policy_that_stops_every_worker():
    whole = averaging().policy

    def react(state, event):
        state, actions = whole.react(state, event)
        if event.time >= 2.0 and isinstance(event, Arrival):
            actions = Actions(stop=(0, 1))
        return state, actions

    strategy = averaging(policy=Policy(whole.init, react))
    history = train(machine(1.0, 2.0), strategy, 9.0, num_evals=9)
    why = "no worker is active since 2 s: the policy stopped the last one"
    assert (history.stopped, history.duration) == (why, 2.0)


class Oops(Exception):
    pass


def run(**settings):
    return hj.train(
        TASK, DATA, preset("v100x2"), SMA, seconds=0.01, progress=False, **settings
    )


def failing(point):
    if point["seconds"] > 0.004:
        raise Oops("disk full")


def test_an_error_of_a_callback_has_the_history():
    with pytest.raises(Oops, match="disk full") as caught:
        run(on_eval=failing)
    history = caught.value.history
    assert 1 < len(history.evals) < 51
    assert history.stopped == "on_eval raised Oops: disk full"
    assert history.params is not None


def test_an_error_of_a_callback_can_be_stored():
    history = run(on_eval=failing, on_error="keep")
    assert isinstance(history.error, Oops)
    assert history.stopped == "on_eval raised Oops: disk full"


def none_after(limit):
    return lambda examples: 0.1 if examples < limit else None


@pytest.mark.parametrize("real", [False, True])
def test_an_error_of_a_schedule_has_the_history(real):
    strategy = hj.local_sgd(batch_size=4, learning_rate=none_after(200), local_steps=2)
    chosen = hj.local_machine(["cpu:0", "cpu:1"]) if real else preset("v100x2")
    message = r"learning_rate: the schedule returned None at \d+ examples: return"
    with pytest.raises(ValueError, match=message) as caught:
        hj.train(TASK, DATA, chosen, strategy, seconds=0.5, progress=False)
    history = caught.value.history
    assert history.stopped.startswith("ValueError: learning_rate: the schedule")
    assert history.evals
    assert history.params is not None


def test_an_error_of_a_policy_can_be_stored():
    whole = SMA.policy

    def react(state, event):
        if event.time > 0.004:
            raise Oops("no rule for this")
        return whole.react(state, event)

    strategy = SMA._replace(policy=whole._replace(react=react))
    history = hj.train(
        TASK,
        DATA,
        preset("v100x2"),
        strategy,
        seconds=0.01,
        progress=False,
        on_error="keep",
    )
    assert isinstance(history.error, Oops)
    assert history.stopped == "Oops: no rule for this"
    assert 1 < len(history.evals) < 51


def test_an_error_of_a_strategy_leaves_the_other_runs():
    broken = hj.sma(batch_size=4, learning_rate=none_after(20))
    with pytest.raises(ValueError, match="the schedule returned None") as caught:
        hj.compare(
            TASK,
            DATA,
            preset("v100x2"),
            {"a": SMA, "b": broken, "c": SMA},
            seconds=0.01,
            progress=False,
        )
    assert [h.strategy for h in caught.value.histories] == ["a"]
    assert caught.value.history.strategy == "b"


def test_an_unknown_choice():
    with pytest.raises(ValueError, match="on_error='ignore': choose one of raise"):
        run(on_error="ignore")


def test_an_error_of_a_comparison_s_callback_has_the_histories():
    def on_history(history):
        if history.strategy == "b":
            raise Oops("no")

    with pytest.raises(Oops) as caught:
        hj.compare(
            TASK,
            DATA,
            preset("v100x2"),
            {"a": SMA, "b": SMA, "c": SMA},
            seconds=0.01,
            progress=False,
            on_history=on_history,
        )
    assert [h.strategy for h in caught.value.histories] == ["a", "b"]


@pytest.mark.parametrize(
    "strategy",
    [
        hj.ad_psgd(batch_size=4, learning_rate=0.1),
        hj.downpour(batch_size=4, learning_rate=0.1, blocking=True),
        SMA,
    ],
    ids=lambda s: s.name,
)
def test_a_worker_that_rejoins_during_its_merge_does_one_thing_at_a_time(
    strategy,
):
    """It is killed in a merge over a slow link, and rejoins before the merge ends."""
    faults = (
        hj.machine.ScriptedFault(0.65, "kill", "b"),
        hj.machine.ScriptedFault(0.7, "join", "b"),
    )
    link = hj.machine.Link(latency=0.25, bandwidth=1e12, topology="central")
    workers = tuple(
        hj.machine.Profile(name, "gpu", hj.machine.Cost(0.5, 0.0)) for name in "abc"
    )
    slow_link = hj.machine.Machine("m", workers, {"": link}, faults=faults)
    history = hj.train(TASK, DATA, slow_link, strategy, seconds=6.0, progress=False)
    for w in history.workers:
        used = w.busy + w.merging + w.transfer + w.waiting + w.idle
        assert used == pytest.approx(6.0, abs=1e-9)
        assert w.busy + w.merging + w.transfer <= 6.0 + 1e-9
    b = sorted((s.start, s.finish) for s in history.timeline if s.worker == 1)
    assert all(x[1] <= y[0] + 1e-9 for x, y in zip(b, b[1:], strict=False))
