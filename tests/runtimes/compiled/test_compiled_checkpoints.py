"""Compiled runs again, cut into other stretches, interrupted and continued."""

import pytest
from checkpointed_runs import Memory, load, outcome, some
from compiled_runs import IN_TURN, SIDE_BY_SIDE, compiled, runs_of
from quick import quick, quick_if
from small_runs import at, problem, send, strategy, train
from zoo import FORMS, WAYS

import hetjax as hj
from hetjax.runtimes import simulated
from hetjax.runtimes.compiled import stretch_collector, stretch_launcher
from hetjax.runtimes.compiled.stretch import Stretch
from hetjax.runtimes.openers import open_runtime

SOME = ("async_sgd", "ad_psgd", "adaptive_sgd")
SHARED = ("ad_psgd",)  # merges change replicas whose rounds are in flight


@pytest.mark.parametrize(
    ("name", "side_by_side"),
    quick_if(
        lambda row: row in (("adaptive_sgd", IN_TURN), ("ad_psgd", SIDE_BY_SIDE)),
        [(n, IN_TURN) for n in FORMS] + [(n, SIDE_BY_SIDE) for n in WAYS],
    ),
)
def test_other_stretches_give_the_same_to_the_bit(name, side_by_side, monkeypatch):
    runs, made = runs_of("mlp"), strategy(name, 6)
    whole = outcome(compiled(runs, made, side_by_side))
    monkeypatch.setattr(stretch_launcher, "MAX_STEPS", 5)
    monkeypatch.setattr(stretch_collector, "MAX_MERGES", 3)
    assert outcome(compiled(runs, made, side_by_side)) == whole


def in_flight(cut):
    """How many rounds are in flight in a cut."""
    return len(load(cut)["run"]["player"]["running"])


@pytest.mark.parametrize(
    ("name", "trouble"),
    quick_if(
        lambda row: row in [*((n, "") for n in SOME), ("async_sgd", "reset")],
        [(n, "") for n in FORMS] + [(n, t) for n in WAYS for t in ("faults", "reset")],
    ),
)
def test_a_run_continues_from_its_cuts_to_the_bit(name, trouble, monkeypatch):
    check_cuts(runs_of("mlp", trouble), strategy(name, 6), monkeypatch)


@pytest.mark.parametrize("kind", quick(["sparse", "statistics"], "sparse"))
def test_other_models_continue_from_their_cuts_to_the_bit(kind, monkeypatch):
    check_cuts(runs_of(kind), strategy("easgd", 6), monkeypatch)


def check_cuts(runs, made, monkeypatch, number=4):
    monkeypatch.setattr(simulated, "max_steps_ahead", lambda *given: 6)
    saver = Memory()
    whole = outcome(compiled(runs, made, saver=saver))
    assert whole == outcome(compiled(runs, made))  # cutting changes nothing
    assert len(saver.cuts) > 5
    if not made.policy.bulk_synchronous:
        assert any(map(in_flight, some(saver.cuts, number)))
    for cut in some(saver.cuts, number):
        assert outcome(compiled(runs, made, saved=load(cut))) == whole


# -- in a folder -----------------------------------------------------------------------


def fail():
    raise RuntimeError("mine")


@pytest.mark.parametrize("name", quick(WAYS, "ad_psgd"))
def test_a_run_in_a_folder_goes_on_after_an_exception(tmp_path, name):
    with pytest.raises(RuntimeError, match="mine"):
        train(tmp_path, name, on_eval=at(5, fail), every="1 eval", compiled=True)
    seen = []
    last = train(tmp_path, name, on_eval=seen.append, compiled=True)
    assert 0 < len(seen) < 11
    assert [len(last.interruptions), last.played] == [1, "compiled"]
    assert outcome(last) == outcome(train(name=name, compiled=True))


def test_a_run_that_is_asked_to_stop_goes_on(tmp_path):
    first = train(tmp_path, on_eval=at(4, send("SIGTERM")), every="1h", compiled=True)
    assert first.stopped == "interrupted"
    assert first.duration < 0.2
    again = hj.resume(tmp_path, **parts_of_run(), progress=False)
    assert again.played == "compiled"
    assert outcome(again) == outcome(train(compiled=True))


def parts_of_run():
    """What a run is not made from again."""
    return {"task": problem().task, "data": problem().data}


def test_resume_takes_the_player_that_the_run_had(tmp_path):
    train(tmp_path, on_eval=at(4, send("SIGTERM")), compiled=False)
    again = hj.resume(tmp_path, **parts_of_run(), progress=False)
    assert again.played == "reference player: compiled=False"
    assert outcome(again) == outcome(train(compiled=False))


# -- what is saved ---------------------------------------------------------------------

FIXED = {  # attributes that do not change, or that a mark makes empty
    *("_job", "_device", "_max_steps_ahead", "evaluator", "evaluate_whole_test"),
    *("_nodes", "_parts", "_collector", "launcher", "traits", "plays"),
    *("_arrived", "knows_in_time", "times_known"),
}
FIXED_IN_LAUNCHER = {
    *("_job", "_source", "_each_run", "parts", "lanes", "max_steps", "failed"),
    *("initial_model", "launched", "steps_ahead"),
}
FIXED_IN_COLLECTOR = {
    *("_nodes", "_job", "_launcher", "_copies_replicas", "_all_workers"),
    *("parts", "traits"),
}


def test_every_attribute_of_the_player_is_saved_or_fixed():
    runs, made = runs_of("mlp"), strategy("ad_psgd", 6)
    runtime = open_runtime(runs.machine, made, runs.job("", made, 0))
    player = runtime.player
    player.open()
    saved = set(player.save())
    assert saved == {"root", "run_state", "stretch", "running", "moved", "shapes"}
    assert set(vars(player)) == FIXED
    # the shapes are of these, and of the known buckets
    shapes = {"lengths", "buckets", "kinds", "one_step"}
    changing = set(vars(player.launcher)) - FIXED_IN_LAUNCHER
    changing |= set(vars(player._collector)) - FIXED_IN_COLLECTOR
    assert changing == saved - {"root", "shapes"} | shapes
    stretch = Stretch()
    assert set(stretch.save()) == set(vars(stretch))
