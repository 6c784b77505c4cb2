"""Parsed copies that are damaged, or cannot be written: only time is lost."""

import itertools
import os
import warnings

import filelock
import pytest
from fuzz import fuzz
from hypothesis import strategies as st
from parsed_copies import BOTH, TEST, TRAIN, file_of, same, the_entry

from hetjax.data import read_folder
from hetjax.data.readers import parsed_copies


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a flipped bit": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size - 4),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(4)),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


DAMAGED = [parsed_copies.ABOUT, "train_x_data", "train_y_indices", "test_x_indptr"]


@pytest.mark.parametrize(
    ("name", "damage"),
    # a folder in the place of the description cannot be replaced
    sorted(
        {*itertools.product(DAMAGED, DAMAGES)} - {(parsed_copies.ABOUT, "a folder")}
    ),
)
def test_damaged_copies_are_noticed_and_made_anew(folder, cache, parsed, name, damage):
    first = read_folder(folder, cache=cache)
    is_about = name == parsed_copies.ABOUT
    path = the_entry(cache) / name if is_about else file_of(cache, name)
    DAMAGES[damage](path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(read_folder(folder, cache=cache), first)
    quiet = is_about and damage == "missing"  # as if there was no copy
    assert len(caught) == 1 - quiet
    assert all("the text is read again" in str(w.message) for w in caught)
    assert parsed == 2 * BOTH
    same(read_folder(folder, cache=cache), first)
    assert parsed == 2 * BOTH


def test_a_damaged_description_is_noticed(folder, cache):
    first = read_folder(folder, cache=cache)
    about = the_entry(cache) / parsed_copies.ABOUT
    about.write_text(about.read_text().replace('"labels": 7', '"labels": 9'))
    with pytest.warns(UserWarning, match="about.json is damaged"):
        same(read_folder(folder, cache=cache), first)


@fuzz(
    st.integers(0, 12),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 255),
    core=25,
    full=100,
)
def test_no_damage_changes_a_result(tmp_path_factory, which, where, byte):
    folder = tmp_path_factory.mktemp("damage")
    (folder / "train.txt").write_bytes(TRAIN)
    (folder / "test.txt").write_bytes(TEST)
    first = read_folder(folder, cache=folder / "cache")
    written = [f for f in the_entry(folder / "cache").rglob("*.*") if f.suffix]
    victim = sorted(written, key=lambda file: file.name)[which]
    content = bytearray(victim.read_bytes())
    content[int(where * len(content))] = byte
    victim.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(read_folder(folder, cache=folder / "cache"), first)


def refuse(*_, **__):
    raise OSError(28, "No space left on device")


def half(path, array):
    path.write_bytes(b"\x93NUMPY")
    refuse()


FAILURES = {
    "no folder": lambda cache, patch: cache.write_text("a file"),
    "a full disk": lambda cache, patch: patch.setattr(parsed_copies.np, "save", half),
    "no renaming": lambda cache, patch: patch.setattr(
        parsed_copies.Path, "replace", refuse
    ),
    "no locks": lambda cache, patch: patch.setattr(
        parsed_copies.filelock, "FileLock", refuse
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_what_cannot_be_written_costs_the_copy_alone(
    folder, cache, parsed, monkeypatch, failure
):
    first = read_folder(folder, cache=False)
    with monkeypatch.context() as patch:
        FAILURES[failure](cache, patch)
        with pytest.warns(UserWarning, match="no parsed copy can be written"):
            same(read_folder(folder, cache=cache), first)
    assert parsed == 2 * BOTH  # once each
    if cache.is_dir():  # no files of the copy remain
        left = [file for entry in cache.iterdir() for file in entry.iterdir()]
        assert [file.name for file in left if file.name != parsed_copies.LOCK] == []
        same(read_folder(folder, cache=cache), first)
        assert parsed == 3 * BOTH


def test_a_process_that_hangs_is_not_waited_for(folder, cache, parsed, monkeypatch):
    monkeypatch.setattr(parsed_copies, "LONGEST_WAIT", 0.01)
    place = parsed_copies.copy_folder([folder / name for name in BOTH], 0, cache)
    assert place is not None
    place.mkdir(parents=True)
    with (
        filelock.FileLock(place / parsed_copies.LOCK),
        pytest.warns(UserWarning, match="no parsed copy can be written"),
    ):
        same(read_folder(folder, cache=cache), read_folder(folder, cache=False))
    assert the_entry(cache) == place
    assert [file.name for file in place.iterdir()] == [parsed_copies.LOCK]


def test_a_file_whose_checksum_cannot_be_computed(folder, cache, parsed, monkeypatch):
    first = read_folder(folder, cache=cache)
    os.utime(folder / "train.txt", ns=(1, 1))
    monkeypatch.setattr(parsed_copies, "_sha256", refuse)
    with pytest.warns(UserWarning, match="no parsed copy can be written"):
        same(read_folder(folder, cache=cache), first)
    assert parsed == 2 * BOTH


def test_a_copy_is_used_where_nothing_can_be_written(
    folder, cache, parsed, monkeypatch
):
    first = read_folder(folder, cache=cache)
    monkeypatch.setattr(parsed_copies.filelock, "FileLock", refuse)
    monkeypatch.setattr(parsed_copies.Path, "mkdir", refuse)
    monkeypatch.setattr(parsed_copies.Path, "write_text", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(read_folder(folder, cache=cache), first)
        os.utime(folder / "train.txt", ns=(1, 1))  # it cannot be recorded
        same(read_folder(folder, cache=cache), first)
    assert parsed == BOTH
