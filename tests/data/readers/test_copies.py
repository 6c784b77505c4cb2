"""Parsed copies equal the text, also if it changes or several processes read it."""

import multiprocessing
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fuzz import fuzz
from hypothesis import strategies as st
from parsed_copies import BOTH, OTHER, TEST, TRAIN, arrays, described, same, the_entry
from xmc_texts import FEATURES, LABELS, some_rows, text_of, write

from hetjax.data import DataError, read_folder, read_xmc
from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.dataset_checks import check_dataset
from hetjax.data.readers import parsed_copies, text_files


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


@pytest.mark.parametrize("cache", [0, 1, "", 2.5])
def test_what_is_no_place_for_a_copy(folder, cache):
    with pytest.raises(ValueError, match=f"cache={cache!r}: pass a folder, True"):
        read_folder(folder, cache=cache)


def test_the_folder_of_the_data_may_have_the_longest_name(folder, cache):
    longest = folder.with_name("d" * 255)
    folder.rename(longest)
    first = read_folder(longest, cache=cache)
    same(read_folder(longest, cache=cache), first)
    assert len(list(cache.iterdir())) == 1


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


def rewrite(path, text):
    """Other content, with the former times of the file."""
    before = path.stat()
    path.write_bytes(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path, text):
    """Another file with the times of the first one."""
    new = path.with_name("new")
    new.write_bytes(text)
    shutil.copystat(path, new)
    new.replace(path)


CHANGES = {
    "size": lambda path: path.write_bytes(TRAIN.replace(b"2:4", b"2:44")),
    "content": lambda path: path.write_bytes(OTHER),
    "content, and times as before": lambda path: rewrite(path, OTHER),
    "another file, and times as before": lambda path: replace(path, OTHER),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_read_again(folder, cache, parsed, monkeypatch, change):
    monkeypatch.setattr(parsed_copies, "RESOLUTION", -60.0)  # times are known at once
    time.sleep(0.02)  # and the files' clock has advanced
    read_folder(folder, cache=cache)
    CHANGES[change](folder / "train.txt")
    found = read_folder(folder, cache=cache)
    assert found.train.x[0, 2] in (8, 44)
    assert parsed == 2 * BOTH
    same(read_folder(folder, cache=cache), found)
    assert parsed == 2 * BOTH
    assert len([f for f in the_entry(cache).iterdir() if f.is_dir()]) == 1


@pytest.mark.parametrize(
    ("age", "content", "noticed"),
    [
        (0, OTHER, True),
        (60, OTHER, False),
        (60, TRAIN.replace(b"2:4", b"2:8.0"), True),
    ],
)
def test_a_change_that_the_clock_of_the_files_does_not_show(
    folder, cache, monkeypatch, age, content, noticed
):
    """The change is noticed soon after an earlier change, and by the size."""
    times = [time.time_ns() - age * 10**9] * 2
    source = parsed_copies._source
    monkeypatch.setattr(
        parsed_copies, "_source", lambda p: {**source(p), "times": times}
    )
    read_folder(folder, cache=cache)
    (folder / "train.txt").write_bytes(content)
    assert (read_folder(folder, cache=cache).train.x[0, 2] == 8) == noticed


def test_files_of_the_same_content_are_not_read_again(
    folder, cache, parsed, monkeypatch
):
    monkeypatch.setattr(parsed_copies, "RESOLUTION", -60.0)
    first = read_folder(folder, cache=cache)
    (folder / "test.txt").write_bytes(TEST)
    os.utime(folder / "test.txt", ns=(1, 1))
    same(read_folder(folder, cache=cache), first)
    assert described(cache)["sources"][1]["times"][0] == 1
    monkeypatch.setattr(parsed_copies, "_sha256", None)  # the new time is known now
    same(read_folder(folder, cache=cache), first)
    assert parsed == BOTH


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
    monkeypatch.setattr(parsed_copies, "VERSION", parsed_copies.VERSION + 1)
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


def test_a_file_that_changes_while_it_is_read_is_not_kept(folder, cache, monkeypatch):
    read = text_files.chunks

    def chunks(path, skip_header):
        yield from read(path, skip_header)
        (folder / "train.txt").write_bytes(OTHER)

    with monkeypatch.context() as patch:
        patch.setattr("hetjax.data.readers.xmc.chunks", chunks)
        assert read_folder(folder, cache=cache).train.x[0, 2] == 4
    assert not (the_entry(cache) / parsed_copies.ABOUT).exists()
    assert read_folder(folder, cache=cache).train.x[0, 2] == 8


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
    assert len([f for f in the_entry(cache).iterdir() if f.is_dir()]) == 1


def test_others_wait_for_the_copy_of_one(folder, cache, parsed, monkeypatch):
    """A process that has waited looks for the copy again."""
    first = read_folder(folder, cache=cache)
    ready, look = [], parsed_copies._about

    def not_yet(place):
        ready.append(place)
        return look(place) if len(ready) > 1 else None

    monkeypatch.setattr(parsed_copies, "_about", not_yet)
    same(read_folder(folder, cache=cache), first)
    assert len(ready) == 2
    assert parsed == BOTH
