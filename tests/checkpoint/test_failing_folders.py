"""Folders of runs that are full, damaged, in use, or hold what others have made."""

from pathlib import Path

import pytest
from checkpointed_runs import outcome
from small_runs import at, full, numbers, path_of, send, train, wait_for_writers

import hetjax as hj
from hetjax.checkpoint import checkpoint_files, checkpoint_manager, values
from hetjax.recipes import NoRecipe


def test_a_full_disk_leaves_the_finished_run_that_was_to_be_replaced(
    tmp_path, monkeypatch
):
    first = train(tmp_path, seed=1)
    monkeypatch.setattr(checkpoint_files, "write_whole", full)
    with pytest.warns(UserWarning, match="No space left"):
        train(tmp_path, resume="never")
    monkeypatch.undo()
    assert outcome(train(tmp_path, seed=1)) == outcome(first)


def test_the_newest_counts_wherever_never_was_killed(tmp_path, monkeypatch):
    """The new run has its first checkpoint, and the old run was not deleted yet."""
    train(tmp_path, seed=1)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok: None)
    train(tmp_path, resume="never", on_eval=at(3, send("SIGTERM")))
    monkeypatch.undo()
    assert outcome(train(tmp_path)) == outcome(train())


def test_never_keeps_what_was_there_until_it_has_something(tmp_path):
    train(tmp_path, on_eval=at(3, send("SIGTERM")))
    assert numbers(tmp_path)

    def encode(self, value, where):
        raise ValueError("not today")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_manager.Encoder, "encode", encode)
        with pytest.raises(ValueError, match="not today"):
            train(tmp_path, resume="never")
    assert outcome(train(tmp_path)) == outcome(train())


def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(tmp_path):
    train(tmp_path, every="1 eval", on_eval=at(6, send("SIGTERM")))
    older, newest = numbers(tmp_path)
    path_of(tmp_path, newest).write_text("{}")
    with pytest.warns(UserWarning, match=f"{newest}.npz: it was cut off"):
        last = train(tmp_path)
    assert outcome(last) == outcome(train())
    (where,) = last.interruptions
    assert where.checkpoint == int(older)
    assert f"{newest}.npz" in where.why


def test_only_damaged_checkpoints_are_an_error_in_one_line(tmp_path):
    train(tmp_path, every="1 eval", on_eval=at(6, send("SIGTERM")))
    for name in numbers(tmp_path):
        path_of(tmp_path, name).write_bytes(b"")
    with pytest.raises(ValueError, match="has no usable checkpoint: .*cut off.*never"):
        train(tmp_path)
    assert len(numbers(tmp_path)) == 2
    assert outcome(train(tmp_path, resume="never")) == outcome(train())


def test_damaged_checkpoints_are_not_counted_among_those_that_are_kept(tmp_path):
    train(tmp_path, every="1 eval", on_eval=at(6, send("SIGTERM")))
    older, newest = numbers(tmp_path)
    path_of(tmp_path, newest).write_text("{}")
    with pytest.warns(UserWarning, match="an older checkpoint is used"):
        train(tmp_path, every="1h", on_eval=at(1, send("SIGTERM")))
    assert numbers(tmp_path) == [older, f"{int(newest) + 1:06}"]


def test_what_could_not_be_read_ends_the_run_at_its_beginning(tmp_path, monkeypatch):
    def fail(value, arrays):
        raise KeyError("lost")

    monkeypatch.setattr(checkpoint_manager, "decode", fail)
    with pytest.raises(ValueError, match="run cannot be read .* KeyError: 'lost'"):
        train(tmp_path)


def test_a_full_disk_is_a_warning_and_the_run_goes_on(tmp_path, monkeypatch):
    def fill():
        wait_for_writers()  # the first checkpoint is there
        monkeypatch.setattr(checkpoint_files, "write_whole", full)

    with pytest.warns(UserWarning, match="written: .*No space left.*the run continues"):
        first = train(tmp_path, every="1 eval", on_eval=at(4, fill))
    assert outcome(first) == outcome(train())
    assert numbers(tmp_path)
    monkeypatch.undo()
    assert outcome(train(tmp_path)) == outcome(train())


def test_a_full_disk_may_end_the_run(tmp_path, monkeypatch):
    fill = at(4, lambda: monkeypatch.setattr(checkpoint_files, "write_whole", full))

    def on_eval(point):
        fill(point)
        wait_for_writers()  # else a short run may end before it learns of it

    checkpoint = hj.Checkpoint(tmp_path, every="1 eval", on_failure="stop")
    with pytest.warns(UserWarning, match="No space left on device; the run ends"):
        first = train(checkpoint, on_eval=on_eval, on_error="keep")
    assert "could not be written" in first.stopped
    monkeypatch.undo()
    assert outcome(train(tmp_path)) == outcome(train())


@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_a_full_disk_at_the_end_is_a_warning(tmp_path, monkeypatch, on_failure):
    def when_it_ends():
        monkeypatch.setattr(checkpoint_files, "write_whole", full)
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


def test_classes_of_another_program_are_no_damage(tmp_path, monkeypatch):
    """What `python mine.py` defines is not found from elsewhere; nothing is lost."""
    train(tmp_path, on_eval=at(4, send("SIGTERM")))

    resolve = values.resolve

    def gone(name):
        if "schedule" in name:  # of the policy's state
            raise NoRecipe(f"{name} cannot be found")
        return resolve(name)

    with monkeypatch.context() as patch:
        patch.setattr(values, "resolve", gone)
        with pytest.raises(
            ValueError, match="by a program that defines a name which this"
        ):
            train(tmp_path)
    assert outcome(train(tmp_path)) == outcome(train())


def test_a_second_signal_does_not_lose_the_last_checkpoint(tmp_path, monkeypatch):
    """Its writing takes long: a queue, or a user, asks again."""
    write, sent = checkpoint_files.write, []

    def slow(*given, **more):
        if sent:
            send("SIGTERM")()
        write(*given, **more)

    monkeypatch.setattr(checkpoint_files, "write", slow)

    def stop():
        sent.append(1)
        send("SIGTERM")()

    first = train(tmp_path, every="1h", on_eval=at(4, stop))
    assert first.signal == "SIGTERM"
    monkeypatch.undo()
    assert outcome(train(tmp_path)) == outcome(train())


def test_a_folder_in_use_is_refused(tmp_path):
    def inside():
        with pytest.raises(BlockingIOError, match="is in use by another process"):
            train(tmp_path)

    assert train(tmp_path, on_eval=at(3, inside)).stopped == ""


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="/file': this is a file; pass a folder"):
        train(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        train(tmp_path / "file" / "inside")
