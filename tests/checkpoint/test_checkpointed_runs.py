"""`train(checkpoint=...)`: interrupted and continued, finished, refused."""

import dataclasses
import signal
import warnings

import chex
import numpy as np
import pytest
from checkpointed_runs import outcome
from small_runs import (
    RUN,
    at,
    numbers,
    problem,
    send,
    strategy,
    train,
    wait_for_writers,
)
from tiny_problems import three_workers
from zoo import make

import hetjax as hj
from hetjax.checkpoint import checkpoint_manager


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_saves_a_checkpoint_from_which_the_run_goes_on(tmp_path, name):
    whole = train()
    first = train(tmp_path, on_eval=at(4, send(name)), every="1h")
    assert (first.stopped, first.signal) == ("interrupted", name)
    assert first.duration < 0.2
    last = train(tmp_path, every="1h")
    assert outcome(last) == outcome(whole)
    (where,) = last.interruptions
    assert where.seconds == first.duration
    assert where.why == ""
    assert last.signal == ""


def test_a_signal_after_the_end_is_noted_in_a_complete_run(tmp_path):
    """It is over, and a comparison begins no other."""
    first = train(tmp_path, on_eval=at(11, send("SIGTERM")))
    assert (first.stopped, first.signal) == ("", "SIGTERM")
    assert first.interrupted
    called = []
    again = train(tmp_path, on_eval=called.append)
    assert outcome(again) == outcome(train())
    assert (called, again.signal) == ([], "")  # else no comparison would ever go on


@pytest.mark.parametrize("again", [None, ["cpu:1", "cpu:0"], ["cpu:2"]])
def test_simulated_workers_go_on_on_other_devices(tmp_path, again, cpu_alone):
    stop = {"on_eval": at(4, send("SIGTERM"))}
    train(tmp_path, "easgd", devices=["cpu:0", "cpu:1", "cpu:2"], **stop)
    last = train(tmp_path, "easgd", devices=again)
    assert outcome(last) == outcome(train(name="easgd", compiled=False))
    assert last.played.endswith("its workers are spread over several devices")


def test_a_compiled_run_goes_on_on_another_device(tmp_path, cpu_alone):
    train(tmp_path, on_eval=at(4, send("SIGTERM")))
    several = {"devices": ["cpu:1", "cpu:0"]}
    with pytest.raises(
        ValueError, match="checkpointed run was compiled, but now its workers are"
    ):
        train(tmp_path, **several)
    last = train(tmp_path, devices=["cpu:2"])
    assert outcome(last) == outcome(train())
    assert last.played == "compiled"
    # a run that is over is returned, wherever the workers would be
    assert outcome(train(tmp_path, **several)) == outcome(last)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_run_goes_on_with_the_player_that_it_has_had(tmp_path, compiled):
    given = {"compiled": compiled, "data_on": "host", "schedule_seed": 3}
    train(tmp_path, on_eval=at(4, send("SIGTERM")), **given)
    with pytest.raises(ValueError, match=f"compiled is {compiled} there"):
        train(tmp_path, **{**given, "compiled": "auto"})
    with pytest.raises(ValueError, match="data_on is 'host' there, and 'auto' here"):
        train(tmp_path, compiled=compiled, schedule_seed=3)
    with pytest.raises(ValueError, match="schedule_seed is 3 there, and 0 here"):
        train(tmp_path, compiled=compiled, data_on="host")
    p = problem()
    last = hj.resume(
        tmp_path, p.task, p.data, strategy=strategy("easgd", 6), progress=False
    )
    whole = train(**given)
    assert outcome(last) == outcome(whole)
    assert last.played == whole.played


def test_without_a_checkpoint_sigusr1_keeps_its_meaning():
    before = signal.getsignal(signal.SIGUSR1)
    seen = []
    train(on_eval=lambda point: seen.append(signal.getsignal(signal.SIGUSR1)))
    assert set(seen) == {before}


def test_an_error_of_a_callback_is_survived(tmp_path):
    def fail():
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        train(tmp_path, on_eval=at(5, fail), every="1 eval")
    assert outcome(train(tmp_path)) == outcome(train())


def test_a_finished_run_is_returned(tmp_path):
    first = train(tmp_path, every="2 evals")
    assert len(numbers(tmp_path)) == 1
    called = []
    again = train(tmp_path, on_eval=called.append)
    assert called == []
    assert outcome(again) == outcome(first)
    assert again.settings == first.settings
    for field in dataclasses.fields(first):
        if field.name not in ("model", "params", "model_state", "best_params"):
            assert getattr(again, field.name) == getattr(first, field.name), field.name
    x = problem().data.test.x[:5]
    assert np.array_equal(again.model(x), first.model(x))


def test_a_run_that_diverged_is_finished(tmp_path):
    first = train(tmp_path, learning_rate=1e30)
    assert "became" in first.stopped
    assert train(tmp_path, learning_rate=1e30).stopped == first.stopped


def test_resume_must_and_never(tmp_path):
    with pytest.raises(ValueError, match='resume="must": .* holds no checkpoint'):
        train(tmp_path, resume="must")
    train(tmp_path)
    assert train(tmp_path, resume="must").stopped == ""
    called = []
    train(tmp_path, resume="never", on_eval=called.append)
    assert len(called) == 11


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.2}, r"strategy.learning_rate is 0.1 there, and 0.2 here"),
        ({"seed": 1}, "seed is 0 there, and 1 here"),
        ({"seconds": 0.3}, "seconds is 0.2 there, and 0.3 here"),
        ({"name": "sma"}, "name is 'easgd' there, and 'sma' here"),
        ({"target": 0.5}, "target is None there, and 0.5 here"),
        ({"machine": three_workers(noise=0.2)}, "machine.noise is 0.1 there"),
    ],
)
def test_a_changed_setting_is_named(tmp_path, changes, message):
    train(tmp_path, on_eval=at(3, send("SIGTERM")))
    with pytest.raises(ValueError, match=message):
        train(tmp_path, **changes)
    assert outcome(train(tmp_path)) == outcome(train())  # and nothing was lost


def test_a_run_of_another_version_is_refused_but_not_its_model(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_manager, "VERSION", 1)
        train(tmp_path / "cut", on_eval=at(3, send("SIGTERM")))
        whole = train(tmp_path / "end")
    message = "has version 1, but this hetjax continues runs of version 5: use"
    for folder in ("cut", "end"):
        for go_on in (train, hj.resume):
            with pytest.raises(ValueError, match=message) as raised:
                go_on(tmp_path / folder)
            assert "\n" not in str(raised.value)
    model = hj.load_model(tmp_path / "end", problem().task)
    chex.assert_trees_all_equal(model, whole.model)


def test_other_data_and_another_loss_are_named(tmp_path):
    p = problem()
    train(tmp_path, on_eval=at(3, send("SIGTERM")))
    x, y = p.data.train.x.copy(), p.data.train.y
    x[3, 2] += 1
    other = dataclasses.replace(p.data, train=hj.data.Split(x, y))
    with pytest.raises(ValueError, match=r"data.checksum\[0\] is"):
        train(tmp_path, data=other)
    task = p.task._replace(loss=lambda *given: p.task.loss(*given))
    with pytest.raises(ValueError, match="parts.loss.factory is '.*' there, and"):
        train(tmp_path, task=task)


def test_own_strategies_are_told_apart_by_what_they_are_made_of(tmp_path):
    p = problem()

    def run(momentum, **more):
        strategy = hj.Strategy(
            policy=hj.schedule.rounds(local_steps=2, batch_size=6),
            local=hj.local.sgd(momentum=momentum),
            merge=hj.merge.average(),
            batch_size=6,
            learning_rate=0.1,
        )
        given = (p.task, p.data, three_workers(), strategy)
        return hj.train(*given, checkpoint=tmp_path, **RUN, **more)

    run(0.5, on_eval=at(3, send("SIGTERM")))
    with pytest.raises(
        ValueError, match=r"parts.local update.*decay is 0.5 there, and 0.9"
    ):
        run(0.9)
    assert run(0.5).stopped == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"every": "often"}, "every='often': must be a time, such as \"60s\""),
        ({"every": "0s"}, "every='0s'"),
        ({"every": "1.5 evals"}, "every='1.5 evals'"),
        ({"resume": "maybe"}, "resume='maybe': choose one of auto, never, must"),
    ],
)
def test_bad_arguments(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, **given)


def test_bad_settings_of_a_checkpoint():
    with pytest.raises(ValueError, match="keep=0"):
        hj.Checkpoint("runs/a", keep=0)
    with pytest.raises(ValueError, match="on_failure='no'"):
        hj.Checkpoint("runs/a", on_failure="no")


def test_intervals():
    assert hj.Checkpoint("a").interval == (60.0, 0)
    assert hj.Checkpoint("a", every="1.5 min").interval == (90.0, 0)
    assert hj.Checkpoint("a", every="2h").interval == (7200.0, 0)
    assert hj.Checkpoint("a", every="1 eval").interval == (0.0, 1)


def test_the_newest_are_kept(tmp_path):
    seen = []

    def look(point):
        wait_for_writers()  # on a slow disk the run would be over before
        seen.append(numbers(tmp_path))

    checkpoint = hj.Checkpoint(tmp_path, every="1 eval", keep=3)
    train(checkpoint, on_eval=look)
    assert max(map(len, seen)) == 3
    assert seen[-1] == ["000009", "000010", "000011"]


def test_must_needs_a_folder():
    with pytest.raises(ValueError, match='resume="must": pass the checkpoint'):
        train(resume="must")


def test_must_makes_no_folder(tmp_path):
    with pytest.raises(ValueError, match='resume="must": .*mistyped is no folder'):
        train(tmp_path / "mistyped", resume="must")
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_are_settings_as_others(tmp_path):
    given = {"seconds": np.float32(0.5), "target": np.float64(2), "epochs": np.int64(3)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = train(tmp_path, **given)
        called = []
        again = train(tmp_path, **given, on_eval=called.append)
    assert outcome(again) == outcome(first)
    assert called == []


def test_settings_that_are_functions_do_not_lose_the_end(tmp_path):
    p, strategy = problem(), make("sma", 6)
    strategy = strategy._replace(settings={"schedule": lambda t: 0.1, "width": 3})

    def run():
        given = (p.task, p.data, three_workers(), strategy)
        return hj.train(*given, checkpoint=tmp_path, **RUN)

    first, again = run(), run()
    assert outcome(again) == outcome(first)
    assert again.settings["width"] == 3
