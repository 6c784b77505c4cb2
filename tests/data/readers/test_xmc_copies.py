"""Parsed copies equal the text, also if it changes or several processes read it."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fuzz import fuzz
from hypothesis import strategies as st
from xmc_texts import FEATURES, LABELS, TEST, TRAIN, some_rows, text_of, write

from hetjax.data import DataError, read_folder, read_xmc
from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.dataset_checks import check_dataset
from hetjax.data.readers import copies, text_files

OTHER = TRAIN.replace(b"2:4", b"2:8")  # of the same size
BOTH = ["train.txt", "test.txt"]


def arrays(data):
    return {
        f"{s}_{a}_{part}": getattr(getattr(getattr(data, s), a), part)
        for s in ("train", "test")
        for a in ("x", "y")
        for part in ("data", "indices", "indptr")
    }


def same(one, other):
    for a, b in zip(arrays(one).values(), arrays(other).values(), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert a.x.shape == b.x.shape
        assert a.y.shape == b.y.shape
    assert one.num_classes == other.num_classes
    assert one.name == other.name
    assert one.notes == other.notes


def the_entry(cache):
    (entry,) = [place for place in cache.iterdir() if place.is_dir()]
    return entry


@fuzz(some_rows, some_rows, st.booleans(), st.booleans(), core=15, full=60)
def test_a_copy_is_as_the_text(tmp_path_factory, train, test, header, zipped):
    folder = tmp_path_factory.mktemp("copies")
    size = (FEATURES, LABELS)
    for name, rows in (("train.txt", train), ("test.txt", test)):
        text = text_of(rows, (len(rows), *size) if header else None)
        write(folder, name, text, zipped)
    fresh = read_folder(folder, cache=False)
    same(read_folder(folder, cache=folder / "cache"), fresh)
    copy = read_folder(folder, cache=folder / "cache")
    same(copy, fresh)
    assert copy.train.x.has_canonical_format


def test_a_copy_is_not_parsed_and_not_copied_into_memory(folder, cache, parsed):
    first = read_folder(folder, cache=cache)
    assert parsed == BOTH
    copy = read_folder(folder, cache=cache)
    assert parsed == BOTH
    same(copy, first)
    assert copy.notes
    for array in arrays(copy).values():
        while isinstance(array.base, np.ndarray):
            array = array.base
        assert isinstance(array, np.memmap)


@pytest.mark.parametrize("cache", ["", 2.5])
def test_what_is_no_place_for_a_copy(folder, cache):
    with pytest.raises(ValueError, match=f"cache={cache!r}: pass "):
        read_folder(folder, cache=cache)


def test_the_folder_of_the_data_may_have_the_longest_name(folder, cache):
    longest = folder.with_name("d" * 255)
    folder.rename(longest)
    first = read_folder(longest, cache=cache)
    same(read_folder(longest, cache=cache), first)
    assert the_entry(cache).is_dir()


def test_numpys_numbers_are_numbers(folder, cache):
    same(
        read_folder(folder, first_index=np.int64(0), cache=cache),
        read_folder(folder, cache=cache),
    )


def test_a_name_is_no_part_of_a_copy(folder, cache, parsed):
    assert read_folder(folder, cache=cache, name="one").name == "one"
    assert read_folder(folder, cache=cache, name="two").name == "two"
    assert read_folder(folder, cache=cache).name == "data"
    assert parsed == BOTH


def test_copies_are_used_as_arrays_in_memory_are(folder, cache):
    first, copy = (read_folder(folder, cache=cache) for _ in range(2))
    check_dataset(copy)
    rows = np.array([3, 0, 1])
    expected = first.train.x.toarray()[rows]
    for data in (first, copy):
        np.testing.assert_array_equal(data.train.take(rows).x.toarray(), expected)
        batch = make_batch(data.train, rows, make_buckets(data.train, 4))
        np.testing.assert_array_equal(batch.x.todense()[:3], expected)
        data.train.x.data[:] *= 2  # writing into it does not change the file
        data.train.x.sum_duplicates()
    same(first, copy)
    same(read_folder(folder, cache=cache), read_folder(folder, cache=False))


def rewrite(path):
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(OTHER)
    os.utime(path, ns=times)


CHANGES = {
    "size": lambda path: path.write_bytes(TRAIN.replace(b"2:4", b"2:44")),
    "content": lambda path: path.write_bytes(OTHER),
    "content, not its time": rewrite,
}


def test_a_copy_is_found_however_the_path_is_written(
    folder, cache, parsed, tmp_path, monkeypatch
):
    monkeypatch.chdir(folder)
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    for written in (folder, ".", tmp_path / "link", folder / ".." / folder.name):
        read_folder(written, cache=cache)
    assert parsed == BOTH


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_read_again(folder, cache, parsed, change):
    read_folder(folder, cache=cache)
    time.sleep(0.02)  # the files' clock has advanced
    CHANGES[change](folder / "train.txt")
    found = read_folder(folder, cache=cache)
    assert found.train.x[0, 2] in (8, 44)
    assert parsed == 2 * BOTH
    same(read_folder(folder, cache=cache), found)
    assert parsed == 2 * BOTH
    assert the_entry(cache).is_dir()


def test_other_arguments_have_other_copies(folder, cache, parsed):
    read_folder(folder, cache=cache)
    with pytest.raises(DataError, match="feature 0 is outside 1..12"):
        read_folder(folder, cache=cache, first_index=1)
    (folder / "test.txt").write_bytes(b"0 1:1\n")
    first, second = (read_folder(folder, cache=cache, first_index=i) for i in (0, 1))
    assert first.train.x[0, 2] == second.train.x[0, 1] == 4
    paths = folder / "train.txt", folder / "test.txt"
    swapped = read_xmc(*paths[::-1], cache=cache)
    assert len(swapped.test) == len(first.train)


def test_a_copy_of_another_version_is_not_used(folder, cache, parsed, monkeypatch):
    read_folder(folder, cache=cache)
    monkeypatch.setattr(copies, "VERSION", copies.VERSION + 1)
    read_folder(folder, cache=cache)
    assert parsed == 2 * BOTH


def test_errors_are_those_of_the_text(folder, cache):
    read_folder(folder, cache=cache)
    (folder / "train.txt").write_bytes(TRAIN + b"1 x:1\n")
    with pytest.raises(DataError, match="train.txt:7: feature 'x:1'"):
        read_folder(folder, cache=cache)
    (folder / "train.txt").write_bytes(b"1 1:1\n")
    missing = folder / "missing.txt"
    with pytest.raises(DataError, match="missing.txt: no such file"):
        read_xmc(folder / "train.txt", missing, cache=cache)


def test_a_file_that_changes_while_it_is_read_is_named(folder, cache, monkeypatch):
    read = text_files.chunks

    def chunks(path):
        yield from read(path)
        (folder / "train.txt").write_bytes(OTHER + b"\n")

    with monkeypatch.context() as patch:
        patch.setattr("hetjax.data.readers.sparse_text.chunks", chunks)
        with pytest.raises(DataError, match="changed during reading"):
            read_folder(folder, cache=cache)
    assert read_folder(folder, cache=cache).train.x[0, 2] == 8


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [copies.ABOUT, "train_x_data.npy"])
def test_damaged_copies_are_made_again(folder, cache, parsed, name):
    first = read_folder(folder, cache=False)
    read_folder(folder, cache=cache)
    flip(the_entry(cache) / name)
    with pytest.warns(UserWarning, match=f"{name} is damaged; it is made again"):
        same(read_folder(folder, cache=cache), first)
    assert parsed == 3 * BOTH
    same(read_folder(folder, cache=cache), first)
    assert parsed == 3 * BOTH


def test_what_cannot_be_written_costs_the_copy_alone(
    folder, cache, parsed, monkeypatch
):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(copies.Path, "rename", refuse)
        with pytest.warns(UserWarning, match="no copy can be written.*cache=False"):
            first = read_folder(folder, cache=cache)
    assert parsed == BOTH  # once
    same(read_folder(folder, cache=cache), first)


@pytest.mark.parametrize("cache", [None, True, False])
def test_which_files_have_a_copy(folder, tmp_path, monkeypatch, cache):
    monkeypatch.setenv("HETJAX_CACHE", str(tmp_path / "own"))
    read_folder(folder, cache=cache)
    assert (tmp_path / "own" / "read").exists() == (cache is True)
    monkeypatch.setattr(text_files, "LARGE", len(TRAIN) + len(TEST))
    read_folder(folder, cache=cache)
    assert (tmp_path / "own" / "read").exists() == (cache is not False)


def test_several_threads_at_once(folder, cache, parsed):
    barrier = threading.Barrier(4)

    def read(_):
        barrier.wait()
        return read_folder(folder, cache=cache)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(read, range(4)))
    assert parsed == BOTH  # by one of them
    for data in found:
        same(data, read_folder(folder, cache=False))


def _read_in_a_process(folder, cache, barrier, results):
    barrier.wait()
    data = read_folder(folder, cache=cache)
    results.put((data.notes, data.train.x.toarray(), data.test.y.toarray()))


@pytest.mark.full
def test_several_processes_at_once(folder, cache):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    arguments = folder, cache, barrier, results
    processes = [
        context.Process(target=_read_in_a_process, args=arguments) for _ in range(3)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    expected = read_folder(folder, cache=False)
    for notes, x, y in found:
        assert notes == expected.notes
        np.testing.assert_array_equal(x, expected.train.x.toarray())
        np.testing.assert_array_equal(y, expected.test.y.toarray())
    assert the_entry(cache).is_dir()
