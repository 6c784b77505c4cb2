"""`train(checkpoint=...)`: interrupted and continued, finished, refused, failing."""

import dataclasses
import os
import signal
import warnings
from functools import cache

import jax
import numpy as np
import pytest
from kept_runs import outcome
from tiny_problems import PROBLEMS, three_workers
from zoo import make

import hetjax as hj
from hetjax.checkpoint import files, keeper, values
from hetjax.recipes import NoRecipe

RUN = {"seconds": 0.2, "num_evals": 10, "progress": False}


@cache
def problem():
    return PROBLEMS["perceptron"]()


def train(folder=None, name="adaptive_sgd", *, learning_rate=0.1, **more):
    p = problem()
    given = {"machine": three_workers(), "task": p.task, "data": p.data, **RUN, **more}
    strategy = make(name, 6, learning_rate)
    return hj.train(strategy=strategy, checkpoint=folder, **given)


def at(number, do):
    """A callback that calls `do()` at its n-th call."""
    calls = []

    def on_eval(point):
        calls.append(point)
        if len(calls) == number:
            do()

    return on_eval


def send(name):
    return lambda: os.kill(os.getpid(), getattr(signal, name))


def numbers(folder):
    return sorted(p.name for p in folder.iterdir() if p.name.isdigit())


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
def test_simulated_workers_go_on_on_other_devices(tmp_path, again):
    stop = {"on_eval": at(4, send("SIGTERM"))}
    train(tmp_path, "easgd", devices=["cpu:0", "cpu:1", "cpu:2"], **stop)
    last = train(tmp_path, "easgd", devices=again)
    assert outcome(last) == outcome(train(name="easgd"))


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


def full(*arguments):
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_the_finished_run_that_was_to_be_replaced(
    tmp_path, monkeypatch
):
    first = train(tmp_path, seed=1)
    monkeypatch.setattr(files, "_write_text", full)
    with pytest.warns(UserWarning, match="No space left"):
        train(tmp_path, resume="never")
    monkeypatch.undo()
    assert outcome(train(tmp_path, seed=1)) == outcome(first)


def test_the_newest_counts_wherever_never_was_killed(tmp_path, monkeypatch):
    """The new run has its first checkpoint, and the old run was not deleted yet."""
    train(tmp_path, seed=1)
    monkeypatch.setattr(keeper, "_delete", lambda path: None)
    train(tmp_path, resume="never", on_eval=at(3, send("SIGTERM")))
    monkeypatch.undo()
    assert outcome(train(tmp_path)) == outcome(train())


def test_never_keeps_what_was_there_until_it_has_something(tmp_path):
    train(tmp_path, on_eval=at(3, send("SIGTERM")))
    assert numbers(tmp_path)

    def encode(self, value, where):
        raise ValueError("not today")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper.Encoder, "encode", encode)
        with pytest.raises(ValueError, match="not today"):
            train(tmp_path, resume="never")
    assert outcome(train(tmp_path)) == outcome(train())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.2}, r"strategy.learning_rate is 0.1 there, and 0.2 here"),
        ({"seed": 1}, "seed is 0 there, and 1 here"),
        ({"seconds": 0.3}, "seconds is 0.2 there, and 0.3 here"),
        ({"name": "sma"}, "name is 'adaptive_sgd' there, and 'sma' here"),
        ({"target": 0.5}, "target is None there, and 0.5 here"),
        ({"machine": three_workers(noise=0.2)}, "machine.noise is 0.1 there"),
    ],
)
def test_a_changed_setting_is_named(tmp_path, changes, message):
    train(tmp_path, on_eval=at(3, send("SIGTERM")))
    with pytest.raises(ValueError, match=message):
        train(tmp_path, **changes)
    assert outcome(train(tmp_path)) == outcome(train())  # and nothing was lost


def test_other_data_and_another_loss_are_named(tmp_path):
    p = problem()
    train(tmp_path, on_eval=at(3, send("SIGTERM")))
    x, y = p.data.train.x.copy(), p.data.train.y
    x[3, 2] += 1
    other = dataclasses.replace(p.data, train=hj.data.Split(x, y))
    with pytest.raises(ValueError, match=r"data.checksum\[0\] is"):
        train(tmp_path, data=other)
    task = p.task._replace(loss=lambda *given: p.task.loss(*given))
    with pytest.raises(ValueError, match="a run whose loss has other settings or code"):
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
    with pytest.raises(ValueError, match="a run whose local update has other"):
        run(0.9)
    assert run(0.5).stopped == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"every": "often"}, "every='often': give a time, such as \"60s\""),
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
        seen.append(numbers(tmp_path))

    checkpoint = hj.Checkpoint(tmp_path, every="1 eval", keep=3)
    train(checkpoint, on_eval=look)
    assert max(map(len, seen)) <= 4  # the newest may just have been written
    assert len(seen[-1]) >= 3


def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(tmp_path):
    train(tmp_path, every="1 eval", on_eval=at(6, send("SIGTERM")))
    older, newest = numbers(tmp_path)
    (tmp_path / newest / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match=f"{newest}.state.json: 2 bytes, not"):
        last = train(tmp_path)
    assert outcome(last) == outcome(train())
    (where,) = last.interruptions
    assert where.checkpoint == int(older)
    assert "state.json" in where.why


def test_only_damaged_checkpoints_are_an_error_in_one_line(tmp_path):
    train(tmp_path, every="1 eval", on_eval=at(6, send("SIGTERM")))
    for name in numbers(tmp_path):
        (tmp_path / name / "manifest.json").unlink()
    with pytest.raises(ValueError, match="no checkpoint can be used: .*missing.*never"):
        train(tmp_path)
    assert len(numbers(tmp_path)) == 2
    assert outcome(train(tmp_path, resume="never")) == outcome(train())


def test_damaged_checkpoints_are_not_counted_among_those_that_are_kept(tmp_path):
    train(tmp_path, every="1 eval", on_eval=at(6, send("SIGTERM")))
    older, newest = numbers(tmp_path)
    (tmp_path / newest / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match="an older checkpoint is taken"):
        train(tmp_path, every="1h", on_eval=at(1, send("SIGTERM")))
    assert numbers(tmp_path) == [older, f"{int(newest) + 1:06}"]


def test_what_could_not_be_read_ends_the_run_at_its_beginning(tmp_path, monkeypatch):
    def fail(value, arrays):
        raise KeyError("lost")

    monkeypatch.setattr(keeper, "decode", fail)
    with pytest.raises(ValueError, match="run could not be read .* KeyError: 'lost'"):
        train(tmp_path)


def test_a_full_disk_is_a_warning_and_the_run_goes_on(tmp_path, monkeypatch):
    on_eval = at(4, lambda: monkeypatch.setattr(files, "_write_text", full))
    with pytest.warns(UserWarning, match="written: .*No space left.*not ended by it"):
        first = train(tmp_path, every="1 eval", on_eval=on_eval)
    assert outcome(first) == outcome(train())
    assert numbers(tmp_path)
    monkeypatch.undo()
    assert outcome(train(tmp_path)) == outcome(train())


def test_a_full_disk_may_end_the_run(tmp_path, monkeypatch):
    on_eval = at(4, lambda: monkeypatch.setattr(files, "_write_text", full))
    checkpoint = hj.Checkpoint(tmp_path, every="1 eval", on_failure="stop")
    with pytest.warns(UserWarning, match="No space left on device; the run ends"):
        first = train(checkpoint, on_eval=on_eval, on_error="keep")
    assert "could not be written" in first.stopped
    monkeypatch.undo()
    assert outcome(train(tmp_path)) == outcome(train())


@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_a_full_disk_at_the_end_is_a_warning(tmp_path, monkeypatch, on_failure):
    def when_it_ends():
        monkeypatch.setattr(files, "_write_text", full)
        send("SIGTERM")()

    checkpoint = hj.Checkpoint(tmp_path, every="1h", on_failure=on_failure)
    with pytest.warns(UserWarning, match="No space left on device"):
        train(checkpoint, on_eval=at(4, when_it_ends))
    with pytest.warns(UserWarning, match="No space left on device"):
        train(checkpoint)
    monkeypatch.undo()
    assert outcome(train(tmp_path)) == outcome(train())


def test_what_others_have_in_the_folder_stays(tmp_path):
    for name in ("20261123", "000007"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("years of work")
    (tmp_path / "trace.jsonl").write_text("of another program")
    with pytest.raises(ValueError, match="holds no checkpoint"):
        train(tmp_path, resume="must")
    train(tmp_path, every="1 eval", on_eval=at(6, send("SIGTERM")))
    train(tmp_path, resume="never")
    assert len(list(tmp_path.glob("*/thesis.txt"))) == 2
    assert (tmp_path / "trace.jsonl").read_text() == "of another program"


def test_must_needs_a_folder():
    with pytest.raises(ValueError, match='resume="must": give the checkpoint'):
        train(resume="must")


def test_classes_of_another_program_are_no_damage(tmp_path, monkeypatch):
    """What `python mine.py` defines is not found from elsewhere; nothing is lost."""
    train(tmp_path, on_eval=at(4, send("SIGTERM")))

    named = values.named

    def gone(name):
        if "schedule" in name:  # of the policy's state
            raise NoRecipe(f"{name} cannot be found")
        return named(name)

    with monkeypatch.context() as patch:
        patch.setattr(values, "_found", {})
        patch.setattr(values, "named", gone)
        with pytest.raises(ValueError, match="by a program that has what this one"):
            train(tmp_path)
    assert outcome(train(tmp_path)) == outcome(train())


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


def test_a_second_signal_does_not_lose_the_last_checkpoint(tmp_path, monkeypatch):
    """Its writing takes long: a queue, or a user, asks again."""
    write, sent = files.write, []

    def slow(*given, **more):
        if sent:
            send("SIGTERM")()
        write(*given, **more)

    monkeypatch.setattr(files, "write", slow)

    def stop():
        sent.append(1)
        send("SIGTERM")()

    first = train(tmp_path, every="1h", on_eval=at(4, stop))
    assert first.signal == "SIGTERM"
    monkeypatch.undo()
    assert outcome(train(tmp_path)) == outcome(train())


def test_a_folder_in_use_is_refused(tmp_path):
    def inside():
        with pytest.raises(BlockingIOError, match="is being used by another process"):
            train(tmp_path)

    assert train(tmp_path, on_eval=at(3, inside)).stopped == ""


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        train(tmp_path / "file")


# -- models and resume -------------------------------------------------------------


def test_models_are_saved_and_loaded(tmp_path):
    history, p = train(tmp_path / "run"), problem()
    history.save_model(tmp_path / "model")
    x = p.data.test.x
    for path in ("run", "model"):
        loaded = hj.load_model(tmp_path / path, p.task)
        assert np.array_equal(loaded(x), history.model(x))
    history.save_model(tmp_path / "best", best=True)
    best = hj.load_model(tmp_path / "best", p.task)
    right = np.argmax(best(x), -1) == p.data.test.y
    assert np.mean(right) == pytest.approx(history.best())
    of_run = hj.load_model(tmp_path / "run", p.task, best=True)
    assert np.array_equal(of_run(x), best(x))


def test_the_models_of_an_interrupted_run(tmp_path):
    p = problem()
    history = train(tmp_path, on_eval=at(5, send("SIGTERM")))
    x = p.data.test.x
    with pytest.raises(ValueError, match="a run that is not over: let it go on"):
        hj.load_model(tmp_path, p.task)
    best = hj.load_model(tmp_path, p.task, best=True)
    assert np.mean(np.argmax(best(x), -1) == p.data.test.y) == pytest.approx(
        history.best()
    )


def test_models_that_cannot_be_saved_or_loaded(tmp_path):
    history, p = train(), problem()
    with pytest.raises(ValueError, match="only with train.checkpoint"):
        history.save_model(tmp_path / "best", best=True)
    history.save_model(tmp_path / "model")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        history.save_model(tmp_path / "model")
    history.save_model(tmp_path / "model", overwrite=True)
    other = hj.classification(hj.models.mlp(hidden=7), p.data)
    with pytest.raises(ValueError, match=r"params/layers/0/bias is float32\[5\] there"):
        hj.load_model(tmp_path / "model", other)
    with pytest.raises(ValueError, match="best=True is for the folder of a run"):
        hj.load_model(tmp_path / "model", p.task, best=True)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        hj.load_model(tmp_path / "nowhere", p.task)


def test_resume_needs_nothing_but_the_folder(tmp_path):
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=8), data)
    machine, strategy = (
        hj.machine.preset("v100x2"),
        hj.sma(batch_size=32, learning_rate=0.1),
    )
    given = {"seconds": 0.2, "num_evals": 5, "progress": False}
    whole = hj.train(task, data, machine, strategy, **given)
    stop = at(3, send("SIGTERM"))
    hj.train(task, data, machine, strategy, checkpoint=tmp_path, on_eval=stop, **given)
    keep = hj.Checkpoint(tmp_path, every="1 eval", keep=9)
    hj.resume(keep, devices=["cpu:1"], on_eval=at(2, send("SIGTERM")), progress=False)
    assert len(numbers(tmp_path)) > 2
    last = hj.resume(tmp_path, progress=False)
    assert outcome(last) == outcome(whole)
    assert len(last.interruptions) == 2


def test_resume_names_what_it_cannot_find(tmp_path):
    with pytest.raises(ValueError, match="holds no checkpoint of a run"):
        hj.resume(tmp_path)
    train(tmp_path, on_eval=at(3, send("SIGTERM")))
    with pytest.raises(ValueError, match="data cannot be found by name .*give data="):
        hj.resume(tmp_path)
    p = problem()
    with pytest.raises(ValueError, match="task cannot be found by name .*give task="):
        hj.resume(tmp_path, data=p.data)
    last = hj.resume(tmp_path, p.task, p.data, progress=False)
    assert outcome(last) == outcome(train())


# -- compare -----------------------------------------------------------------------


def test_compare_does_only_what_is_missing(tmp_path):
    p, made = problem(), []
    strategies = {name: make(name, 6) for name in ("sma", "easgd")}

    def compare(strategies, seeds=1):
        made.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return hj.compare(
                p.task,
                p.data,
                three_workers(),
                strategies,
                seconds=0.05,
                num_evals=3,
                seeds=seeds,
                learning_rates=(0.1, 0.2),
                out=tmp_path,
                progress=False,
            )

    first = compare(strategies)
    files_before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.json")}
    again = compare(strategies)
    assert again.tuning == first.tuning
    assert list(map(outcome, again.histories)) == list(map(outcome, first.histories))
    strategies["local_sgd"] = make("local_sgd", 6)
    more = compare(strategies, seeds=2)
    assert len(more.histories) == 6
    assert {p: p.stat().st_mtime_ns for p in files_before} == files_before
    strategies["sma"] = make("sma", 6, momentum=0.9)
    with pytest.raises(ValueError, match=r"sma.* strategy.momentum is 0.5 there"):
        compare(strategies)


def test_arrays_of_a_history_are_those_of_jax(tmp_path):
    train(tmp_path)
    again = train(tmp_path)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(again.params))
