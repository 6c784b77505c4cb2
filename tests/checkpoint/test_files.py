"""One checkpoint on the disk: complete or not there; damage never changes a result."""

import json
import os
import shutil
import zipfile

import ml_dtypes
import numpy as np
import pytest
from small_runs import full

from experiments.benchmarks.reliability_damage import flip, set_version, truncate
from hetjax.checkpoint import checkpoint_files
from hetjax.checkpoint.checkpoint_files import (
    Damaged,
    checkpoint_path,
    find,
    numbers_in,
    read,
)
from hetjax.checkpoint.checkpoint_manager import CheckpointManager
from hetjax.checkpoint.settings import Checkpoint

ARRAYS = [
    np.arange(5, dtype=np.float32),
    np.zeros((0, 3), np.int64),
    np.array(True),
    np.array([1, 2], ml_dtypes.bfloat16),
    np.array(1, ml_dtypes.bfloat16),
    np.ones(()),
    np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    np.array([1, 2**32 - 1], np.uint32),
]
DOCUMENT = {"a": [1, 0.1], "b": "text"}


@pytest.fixture
def written(tmp_path):
    path = checkpoint_path(tmp_path, 1)
    checkpoint_files.write(path, DOCUMENT, ARRAYS)
    return path


def same(found):
    document, arrays = found
    assert document == DOCUMENT
    assert len(arrays) == len(ARRAYS)
    for a, b in zip(arrays, ARRAYS, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def test_what_was_written_is_read(written):
    same(checkpoint_files.read(written))
    assert checkpoint_files.read(written, document_alone=True) == (DOCUMENT, [])
    with np.load(written) as file:  # other programs can read it
        assert np.array_equal(file["arr_1"], ARRAYS[0])


@pytest.mark.parametrize("mutate", [flip, truncate])
def test_damage_is_an_error_or_changes_nothing(written, mutate):
    """A ZIP file also has bytes without a meaning, such as the time of each part."""
    random, whole, messages = np.random.default_rng(0), written.read_bytes(), []
    for _ in range(300):
        written.write_bytes(whole)
        mutate(written, random)
        try:
            found = checkpoint_files.read(written)
        except Damaged as error:
            messages.append(str(error))
        else:
            same(found)
    assert len(messages) == 300 if mutate is truncate else len(messages) > 150
    assert all(str(written) in m and "\n" not in m for m in messages)


def test_a_changed_array_is_damage(written):
    content = bytearray(written.read_bytes())
    place = content.index(ARRAYS[6].tobytes())
    content[place + 5] ^= 1
    written.write_bytes(bytes(content))
    with pytest.raises(Damaged, match="Bad CRC-32 for file 'arr_7.npy'"):
        checkpoint_files.read(written)


def test_another_version_is_named(tmp_path):
    path = checkpoint_path(tmp_path, 1)
    whole = {"version": 5, "finished": False, "about": {}, "values": {}}
    checkpoint_files.write(path, whole, ARRAYS)
    assert find(tmp_path).number == 1
    set_version(path, 99)
    same_arrays = checkpoint_files.read(path)[1]
    assert len(same_arrays) == len(ARRAYS)
    with pytest.raises(Damaged, match="version 99, but this hetjax continues runs of"):
        find(tmp_path)


def test_folders_of_an_older_hetjax_are_refused_in_one_line(tmp_path):
    (tmp_path / "000012").mkdir()
    (tmp_path / "000012" / "manifest.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match="of an older hetjax, .* begin anew") as raised:
        find(tmp_path)
    assert "\n" not in str(raised.value)


def test_nothing_is_left_of_a_failed_write(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint_files.write(tmp_path / "checkpoint-000001.npz", DOCUMENT, ARRAYS)
    assert list(tmp_path.iterdir()) == []


def test_half_a_checkpoint_is_not_found_and_replaced(tmp_path, monkeypatch):
    """The process was killed while it wrote, so that nothing was cleaned up."""
    path = checkpoint_path(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        patch.setattr(type(path), "unlink", lambda path, missing_ok: None)
        with pytest.raises(OSError, match="No space"):
            checkpoint_files.write(path, DOCUMENT, ARRAYS)
    assert len(list(tmp_path.iterdir())) == 1
    assert find(tmp_path) is None
    checkpoint_files.write(path, DOCUMENT, ARRAYS)
    same(checkpoint_files.read(path))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_large_arrays_are_not_compressed(written):
    with zipfile.ZipFile(written) as file:
        assert {each.compress_type for each in file.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no second file system")
def test_a_path_on_another_file_system(tmp_path):
    folder = f"/dev/shm/hetjax-{os.getpid()}"
    (tmp_path / "link").symlink_to(folder)
    os.mkdir(folder)
    try:
        path = checkpoint_path(tmp_path / "link", 1)
        checkpoint_files.write(path, DOCUMENT, ARRAYS)
        same(checkpoint_files.read(path))
    finally:
        shutil.rmtree(folder)


def test_a_snapshot_is_written_over_the_memory_of_the_last_one(tmp_path):
    manager = CheckpointManager(Checkpoint(tmp_path, keep=9), {})
    own, seen = [np.arange(4.0), np.arange(4), np.ones((2, 2))], []
    for k in range(3):
        snapshot = manager.begin(k, wait=True)
        snapshot.add("arrays", [x + k for x in own])
        seen.append({id(x) for x in snapshot.arrays})
        snapshot.commit()
    manager.close()
    assert seen[0] == seen[1] == seen[2]
    for number, k in zip(numbers_in(tmp_path), range(3), strict=True):
        _, arrays = read(checkpoint_path(tmp_path, number))
        for found, expected in zip(arrays, own, strict=True):
            np.testing.assert_array_equal(found, expected + k)
