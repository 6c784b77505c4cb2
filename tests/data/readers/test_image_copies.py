"""Copies of images: made once, renewed if sources change, never incomplete."""

import itertools
import multiprocessing
import os
import threading
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor

import filelock
import numpy as np
import pytest
from fuzz import fuzz
from hypothesis import strategies as st
from image_files import same, write_folder, write_image
from official_images import write_flowers, write_tiny

from hetjax.data import DataError, flowers102, read_image_folder, tiny_imagenet
from hetjax.data.readers import copies, images

SIZE = 8
ALL = 7  # images in the folder


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "pets")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def read(folder, cache):
    def read_it(**options):
        return read_image_folder(folder, **{"size": SIZE, "cache": cache, **options})

    return read_it


@pytest.fixture
def opened(monkeypatch):
    """The list of decoded images."""
    found, decode = [], images.decoded

    def decoded(path, size):
        found.append(path.name)
        return decode(path, size)

    monkeypatch.setattr(images, "decoded", decoded)
    return found


@pytest.fixture
def small_blocks(monkeypatch):
    """One image in each block."""
    monkeypatch.setattr(copies, "BLOCK", 3 * SIZE**2)


def folders(cache):
    return [entry for entry in cache.iterdir() if entry.is_dir()]


def file_of(cache, name):
    (folder,) = folders(cache)
    return folder / name


def test_a_second_start_decodes_nothing(read, cache, monkeypatch):
    first = read()
    monkeypatch.setattr(images, "decoded", None)
    copy = read()
    same(copy, first)
    assert [str(place) for place in (copy.train.x.filename, copy.test.x.filename)] == [
        str(file_of(cache, f"{split}_x.npy")) for split in ("train", "test")
    ]
    same(read(workers=1, name="another", verify=False), first)


def test_what_is_mapped_cannot_be_written(read):
    with pytest.raises(ValueError, match="read-only"):
        read().train.x[0] = 0


def test_other_arguments_have_other_copies(read, cache, opened):
    shapes = [read(size=size).train.x.shape for size in (SIZE, SIZE + 1)]
    assert [shape[1] for shape in shapes] == [SIZE, SIZE + 1]
    assert len(read(train="val").train) == 2
    assert len(read().train) == 5
    assert len(folders(cache)) == 3
    assert len(opened) == 2 * ALL + 4


def add(folder):
    write_image(folder / "train" / "ant" / "new.jpg", 9, 9)


def touch(folder):
    os.utime(folder / "val" / "bee" / "v1.jpg", ns=(1, 1))


def rename(folder):
    (folder / "train" / "cat" / "a.jpg").rename(folder / "train" / "ant" / "a.jpg")


def enlarge(folder):
    path = folder / "train" / "cat" / "b.JPEG"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    write_image(path, 50, 60, seed=9)
    os.utime(path, ns=times)


CHANGES = {
    "a new image": add,
    "another time": touch,
    "another name": rename,
    "another size": enlarge,
    "one image less": lambda folder: (folder / "train" / "cat" / "b.JPEG").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_images_are_read_again(folder, cache, read, opened, tmp_path, change):
    read()
    CHANGES[change](folder)
    found = read()
    assert len(opened) == ALL + len(found.train) + len(found.test)
    same(found, read(cache=tmp_path / "fresh"))
    del opened[:]
    same(read(), found)
    assert opened == []
    assert len(folders(cache)) == 1


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def flip_shape(path):
    content = path.read_bytes()
    path.write_bytes(content.replace(b"(5, 8", b"(4, 8").replace(b"(2, 8", b"(1, 8"))


DAMAGES = {
    "a flipped bit": flip,
    "a flipped bit of the header": flip_shape,
    "cut": lambda path: os.truncate(path, path.stat().st_size - 4),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(4)),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}
DAMAGED = [copies.ABOUT, "train_x.npy", "test_x.npy"]
SENSELESS = {(copies.ABOUT, "a flipped bit of the header")}  # it has none


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("name", "damage"), sorted({*itertools.product(DAMAGED, DAMAGES)} - SENSELESS)
)
def test_damaged_copies_are_noticed_and_made_anew(read, cache, opened, name, damage):
    first = read()
    expected = np.array(first.train.x), np.array(first.test.x)
    path = file_of(cache, name)
    del first  # a map of the damaged file
    DAMAGES[damage](path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = read()
    np.testing.assert_array_equal(again.train.x, expected[0])
    np.testing.assert_array_equal(again.test.x, expected[1])
    (warning,) = caught
    assert "it is made again" in str(warning.message)
    assert warning.filename == __file__
    assert len(opened) == 2 * ALL
    read()
    assert len(opened) == 2 * ALL
    assert len(folders(cache)) == 1


@fuzz(
    st.integers(0, 2),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 255),
    core=15,
    full=60,
)
def test_no_damage_changes_a_result(tmp_path_factory, which, where, byte):
    place = tmp_path_factory.mktemp("damage")
    folder = write_folder(place / "pets")
    first = read_image_folder(folder, size=3, cache=place / "cache")
    expected = np.array(first.train.x), np.array(first.test.x)
    del first
    written = file_of(place / "cache", "").iterdir()
    victim = sorted(written, key=lambda file: file.name)[which]
    content = bytearray(victim.read_bytes())
    content[int(where * len(content))] = byte
    victim.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = read_image_folder(folder, size=3, cache=place / "cache")
    np.testing.assert_array_equal(again.train.x, expected[0])
    np.testing.assert_array_equal(again.test.x, expected[1])


@pytest.mark.usefixtures("small_blocks")
def test_which_blocks_of_a_large_copy_are_compared(read, cache, monkeypatch):
    """Three of six, of which five begin with the end of an image; or all."""
    monkeypatch.setattr(copies, "SAMPLED", 3)
    read()
    path, row = file_of(cache, "train_x.npy"), 3 * SIZE**2
    end = path.stat().st_size - 4 * row - 1  # of the first image
    content = path.read_bytes()

    def is_noticed(image, **options):
        damaged = bytearray(content)
        damaged[end + image * row] ^= 1
        path.write_bytes(damaged)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            monkeypatch.setattr(copies, "_write", stop)
            try:
                read(**options)
            except Stopped:
                return bool(caught)
        return False

    assert [is_noticed(k) for k in range(5)] == [True] * 5
    monkeypatch.setattr(copies, "WHOLE", 1)
    assert [is_noticed(k) for k in range(5)] == [False, True, False, False, True]
    assert [is_noticed(k, verify=True) for k in range(5)] == [True] * 5
    monkeypatch.setattr(copies, "WHOLE", 10**9)
    assert [is_noticed(k, verify=False) for k in range(5)] == [False] * 5
    for damaged, what in ((content[:-1], "damaged"), (content[1:] + b"x", "")):
        path.write_bytes(damaged)
        with pytest.raises(Stopped), pytest.warns(UserWarning, match=what):
            read(verify=False)


@pytest.mark.parametrize(
    ("reader", "write"), [(flowers102, write_flowers), (tiny_imagenet, write_tiny)]
)
@pytest.mark.usefixtures("small_blocks")
def test_official_images_are_compared_as_verify_says(reader, write, tmp_path, cache):
    where = {"folder": write(tmp_path / "official"), "size": SIZE, "cache": cache}
    expected = np.array(reader(**where).train.x)
    path = file_of(cache, "train_x.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert (reader(**where, verify=False).train.x != expected).sum() == 1
    with pytest.warns(UserWarning, match="train_x"):
        again = reader(**where, verify=True)
    np.testing.assert_array_equal(again.train.x, expected)


class Stopped(Exception):
    """Raised by a test to stop at a certain point."""


def stop(*_, **__):
    raise Stopped


def refuse(*_, **__):
    raise OSError(28, "No space left on device")


def interrupted(number, error):
    """A decoder that fails after some images, not because of an image."""
    count, decode = itertools.count(), images.decoded

    def decoded(path, size):
        if next(count) >= number:
            raise error
        return decode(path, size)

    return decoded


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("error", [KeyboardInterrupt, Stopped, MemoryError])
@pytest.mark.parametrize("number", [0, 3, ALL - 1])
def test_an_interrupted_pass_leaves_nothing(read, cache, monkeypatch, number, error):
    with monkeypatch.context() as patch:
        patch.setattr(images, "decoded", interrupted(number, error))
        with pytest.raises(error):
            read()
    assert folders(cache) == []
    assert len(read().train) == 5


def test_too_little_memory_is_not_the_fault_of_an_image(read, monkeypatch):
    def fitted(image, size):
        raise MemoryError

    monkeypatch.setattr(images, "_fitted", fitted)
    with pytest.raises(MemoryError):
        read()


@pytest.mark.usefixtures("small_blocks")
def test_what_a_killed_process_leaves_is_no_copy(read, cache, monkeypatch, opened):
    """The process is killed before it removes anything."""
    with monkeypatch.context() as patch:
        patch.setattr(copies.Path, "rename", stop)
        patch.setattr(copies.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Stopped):
            read()
    (left,) = folders(cache)
    assert left.suffix == ".partial"
    read()
    assert len(opened) == 2 * ALL
    assert left not in folders(cache)


FAILURES = {
    "no folder": lambda cache, patch: cache.write_text("a file"),
    "a full disk": lambda cache, patch: patch.setattr(copies, "check_space", refuse),
    "no renaming": lambda cache, patch: patch.setattr(copies.Path, "rename", refuse),
    "no locks": lambda cache, patch: patch.setattr(copies.filelock, "FileLock", refuse),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_where_nothing_can_be_written(read, cache, monkeypatch, failure):
    with monkeypatch.context() as patch:
        FAILURES[failure](cache, patch)
        with pytest.raises(DataError, match=r"no copy can be written.*cache=\.\.\."):
            read()
    if cache.is_dir():  # no files of the copy remain
        assert folders(cache) == []
        assert len(read().train) == 5


def test_too_little_space_is_said_before_all_work(read, monkeypatch, opened):
    free = ALL * 3 * SIZE**2 - 1
    usage = copies.shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(copies.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(DataError, match="needs 1.34e-06 GB, and 1.34e-06 GB are free"):
        read()
    assert opened == []
    monkeypatch.setattr(
        copies.shutil, "disk_usage", lambda folder: usage._replace(free=free + 1)
    )
    assert len(read().train) == 5


def test_a_copy_is_used_where_nothing_can_be_written(read, monkeypatch, opened):
    first = read()
    monkeypatch.setattr(copies.filelock, "FileLock", refuse)
    monkeypatch.setattr(copies.Path, "mkdir", refuse)
    same(read(), first)
    assert len(opened) == ALL


def test_images_that_change_while_they_are_read(folder, read, cache, monkeypatch):
    decode = images.decoded

    def decoded(path, size):
        touch(folder)
        return decode(path, size)

    with monkeypatch.context() as patch:
        patch.setattr(images, "decoded", decoded)
        with pytest.raises(DataError, match="changed during reading; start"):
            read()
    assert folders(cache) == []
    assert len(read().train) == 5


def test_the_memory_does_not_hold_all(tmp_path, cache, monkeypatch):
    number, size = 300, 48
    for k in range(number):
        write_image(tmp_path / "many" / "train" / "a" / f"{k}.png", 2, 2, seed=k)
    write_image(tmp_path / "many" / "val" / "a" / "0.png", 2, 2)
    monkeypatch.setattr(copies, "BLOCK", 4 * 3 * size**2)
    monkeypatch.setattr(images, "tqdm", _Bar)
    tracemalloc.start()
    try:
        data = read_image_folder(tmp_path / "many", size=size, cache=cache, workers=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    all_bytes = data.train.x.nbytes
    assert all_bytes == number * 3 * size**2  # 2 MB, and a few blocks are 0.1 MB
    assert peak < all_bytes / 2


class _Bar:
    """A progress bar without objects, for counting memory."""

    def __init__(self, **_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def update(self, number):
        pass


def test_several_threads_at_once(read, opened, tmp_path):
    barrier = threading.Barrier(4)

    def read_it(_):
        barrier.wait()
        return read()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they may warn that they wait
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(read_it, range(4)))
    assert len(opened) == ALL  # by one of them
    for data in found:
        same(data, read(cache=tmp_path / "fresh"))


def test_who_waits_for_another_process_says_so_and_uses_its_copy(
    read, monkeypatch, opened, tmp_path
):
    lock = filelock.FileLock

    class Busy(lock):
        def acquire(self, timeout=None, **options):
            if timeout == 0:
                raise filelock.Timeout(self.lock_file)
            monkeypatch.setattr(copies.filelock, "FileLock", lock)
            read()  # as the other process
            return super().acquire(timeout, **options)

    monkeypatch.setattr(copies.filelock, "FileLock", Busy)
    with pytest.warns(UserWarning, match="another process is making this copy") as w:
        found = read()
    assert w[0].filename == __file__
    assert len(opened) == ALL
    same(found, read(cache=tmp_path / "fresh"))


def _read_in_a_process(folder, cache, barrier, results):
    barrier.wait()
    data = read_image_folder(folder, size=SIZE, cache=cache)
    results.put((np.array(data.train.x), np.array(data.test.x)))


@pytest.mark.full
def test_several_processes_at_once(folder, cache, read, tmp_path):
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
    expected = read(cache=tmp_path / "fresh")
    for train, test in found:
        np.testing.assert_array_equal(train, expected.train.x)
        np.testing.assert_array_equal(test, expected.test.x)
    assert len(folders(cache)) == 1
