"""One checkpoint on the disk: complete or not there; damage is always an error."""

import errno
import fcntl
import os
import shutil
import zlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import quick
from small_runs import full

from experiments.benchmarks.reliability_damage import (
    flip,
    remove,
    set_version,
    truncate,
)
from hetjax.checkpoint import array_files, checkpoint_files, direct_io, host_copies
from hetjax.checkpoint.checkpoint_files import Damaged

ARRAYS = [
    np.arange(5, dtype=np.float32),
    np.zeros((0, 3), np.int64),
    np.array(True),
    np.array([1, 2], ml_dtypes.bfloat16),
    np.ones(()),
    np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    np.array([1, 2**32 - 1], np.uint32),
]
DOCUMENT = {"a": [1, 0.1], "b": "text"}


NAMES = [f"part/{i}" for i in range(len(ARRAYS))]


@pytest.fixture(scope="module", params=[None, NAMES], ids=["numpy", "orbax"])
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files") / "000001"
    checkpoint_files.write(folder, DOCUMENT, ARRAYS, request.param)
    return folder


def same(found):
    document, arrays = found
    assert document == DOCUMENT
    assert len(arrays) == len(ARRAYS)
    for a, b in zip(arrays, ARRAYS, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def test_what_was_written_is_read(written):
    same(checkpoint_files.read(written))


def test_arrays_by_name_are_read_by_orbax_alone(tmp_path):
    import orbax.checkpoint as ocp

    checkpoint_files.write(tmp_path / "model", DOCUMENT, ARRAYS, NAMES)
    same(checkpoint_files.read(tmp_path / "model"))
    alone = ocp.PyTreeCheckpointer().restore(tmp_path / "model" / "arrays")
    assert np.array_equal(alone["part/5"], ARRAYS[5])


@given(st.lists(st.tuples(st.sampled_from("fi"), st.integers(0, 300)), max_size=30))
@settings(deadline=None)
def test_small_arrays_are_put_together(kinds):
    arrays = [np.arange(n, dtype=f"{kind}4") for kind, n in kinds]
    packed, places = array_files.pack(arrays)
    assert len(packed) <= 2
    for a, b in zip(array_files.unpack(packed, places), arrays, strict=True):
        assert a.dtype == b.dtype
        assert a.tolist() == b.tolist()


def test_large_arrays_stay_apart(monkeypatch):
    monkeypatch.setattr(array_files, "_CHUNK", 100)
    arrays = [np.full(20, i, np.float32) for i in range(3)]
    packed, places = array_files.pack(arrays)
    assert len(packed) == 3
    assert all(x.base is not None for x in packed.values())  # they are not copied
    found = array_files.unpack(packed, places)
    assert all(np.array_equal(a, b) for a, b in zip(found, arrays, strict=True))


def test_equal_large_arrays_are_kept_once(tmp_path, monkeypatch):
    monkeypatch.setattr(host_copies, "LARGE", 100)
    x = np.arange(50, dtype=np.float32)
    nan, negative = np.full(50, np.nan, np.float32), -np.zeros(50, np.float32)
    zero = np.zeros(50, np.float32)
    given = [x, x.copy(), nan, nan.copy(), negative, zero, x + 1, x.astype(np.int32)]
    made = host_copies.HostCopies()
    made.add([x])
    made.add(given)
    first, *found = made.arrays
    assert found[0] is found[1] is first
    assert found[2] is found[3]
    assert found[4] is not found[5]  # their bits differ
    packed, places = array_files.pack(found)
    assert sum(p.nbytes for p in packed.values()) == 6 * 200
    for a, b in zip(array_files.unpack(packed, places), given, strict=True):
        assert a.tobytes() == b.tobytes()
    given[0][0] = 7
    assert found[0][0] == 0  # it is a copy


def test_the_memory_of_the_cut_before_is_used_again(monkeypatch):
    monkeypatch.setattr(host_copies, "LARGE", 100)
    before = host_copies.HostCopies()
    before.add([np.full(50, 1.0), np.full(50, 1.0), np.full(30, 3.0), np.zeros(2)])
    first, _, other, _ = before.arrays
    foreign = np.full(50, 5.0)  # as JAX returns them for arrays of accelerators
    foreign.flags.writeable = False
    made = host_copies.HostCopies([foreign, *before.arrays, foreign])
    given = [np.full(50, 2.0), np.full(50, 4.0), np.full(50, 2.0), np.zeros(2)]
    made.add(given)
    assert made.arrays[0] is first  # there once in the cut before, so for one array
    assert made.arrays[1] is not first
    assert made.arrays[2] is made.arrays[0]
    assert not any(np.shares_memory(x, other) for x in made.arrays)
    assert any(x is other for x in made.memory)  # it may serve the next cut
    for a, b in zip(made.arrays, given, strict=True):
        assert np.array_equal(a, b)


# -- direct writes ---------------------------------------------------------------------

PIECE, BLOCK = direct_io._PIECE, direct_io._BLOCK


def refuse(*calls):
    """Functions of `os` that refuse direct writes, as on some file systems."""

    def patch(monkeypatch):
        opened, wrote = os.open, os.write

        def open_(path, flags, mode=0o777):
            if "open" in calls and flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, "Invalid argument")
            return opened(path, flags, mode)

        def write(file, data):
            if "write" in calls and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "Invalid argument")
            return wrote(file, data[: 3 * BLOCK] if "short" in calls else data)

        monkeypatch.setattr(direct_io.os, "open", open_)
        monkeypatch.setattr(direct_io.os, "write", write)

    return patch


@pytest.mark.parametrize(
    "system",
    [None, refuse("open"), refuse("write"), refuse("short")],
    ids=["direct", "no direct files", "no direct writes", "short writes"],
)
@pytest.mark.parametrize(
    "sizes",
    [
        (),
        (1,),
        (BLOCK,),
        (PIECE,),
        (10, PIECE - 10, 1),
        (3, PIECE, 5 * BLOCK),
        (2 * PIECE + 7, 1),
    ],
)
def test_a_direct_file_holds_what_was_written(tmp_path, monkeypatch, sizes, system):
    if system is not None:
        system(monkeypatch)
    random = np.random.default_rng(0)
    parts = [random.bytes(size) for size in sizes]
    with direct_io.DirectFile(tmp_path / "file") as file:
        for part in parts:
            assert file.write(part) == len(part)
    found = (tmp_path / "file").read_bytes()
    assert found == b"".join(parts)
    assert (file.size, file.crc) == (len(found), zlib.crc32(found))


@pytest.mark.parametrize("size", [10, PIECE + 10])
def test_a_full_disk_closes_a_direct_file(tmp_path, monkeypatch, size):
    monkeypatch.setattr(direct_io.os, "write", full)
    before = len(os.listdir("/proc/self/fd"))
    with (
        pytest.raises(OSError, match="No space left"),
        direct_io.DirectFile(tmp_path / "file") as file,
    ):
        file.write(bytes(size))
    assert len(os.listdir("/proc/self/fd")) == before


# -- damage ----------------------------------------------------------------------------


def everything(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


def append(file, random):
    file.write_bytes(file.read_bytes() + b"\n{")


def replace(file, random):
    file.write_bytes(random.bytes(file.stat().st_size + 1))


def add(file, random):
    (file.parent / "more").write_text("of another program")


MUTATIONS = (truncate, flip, remove, append, replace, add)


@pytest.mark.parametrize("rounds", quick([2, 30], 2))
@pytest.mark.parametrize("mutate", MUTATIONS)
def test_every_damage_is_noticed_and_its_file_named(written, tmp_path, mutate, rounds):
    """In every file of a checkpoint, at random places."""
    random = np.random.default_rng(rounds)
    for number in range(rounds):
        for file in everything(written):
            copy = tmp_path / f"{number}" / "000001"
            shutil.copytree(written, copy)
            inside = file.relative_to(written)
            mutate(copy / inside, random)
            with pytest.raises(Damaged) as raised:
                checkpoint_files.read(copy)
            message = str(raised.value)
            assert "\n" not in message
            assert str(copy) in message
            if mutate in (flip, truncate) and inside.name != checkpoint_files.MANIFEST:
                assert str(inside) in message
            shutil.rmtree(copy)


def test_another_version_is_named(written, tmp_path):
    copy = tmp_path / "000001"
    shutil.copytree(written, copy)
    set_version(copy, 99)
    with pytest.raises(
        Damaged, match="has version 99, but this hetjax reads version 1"
    ):
        checkpoint_files.read(copy)


# -- writing ---------------------------------------------------------------------------


def test_nothing_is_left_of_a_failed_write(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "_write_text", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint_files.write(tmp_path / "000001", DOCUMENT, ARRAYS)
    assert list(tmp_path.iterdir()) == []


def test_half_a_checkpoint_is_replaced(tmp_path):
    partial = checkpoint_files.partial_path(tmp_path / "000001")
    partial.mkdir()
    (partial / "state.json").write_text("{")
    checkpoint_files.write(tmp_path / "000001", DOCUMENT, ARRAYS)
    same(checkpoint_files.read(tmp_path / "000001"))
    assert [p.name for p in tmp_path.iterdir()] == ["000001"]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no second file system")
def test_a_path_on_another_file_system(tmp_path):
    folder = f"/dev/shm/hetjax-{os.getpid()}"
    (tmp_path / "link").symlink_to(folder)
    os.mkdir(folder)
    try:
        checkpoint_files.write(tmp_path / "link" / "000001", DOCUMENT, ARRAYS)
        same(checkpoint_files.read(tmp_path / "link" / "000001"))
    finally:
        shutil.rmtree(folder)
