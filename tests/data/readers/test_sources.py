"""Official data by name: the user's files, downloads from a test server, or neither."""

import functools
import hashlib
import http.server
import shutil
import tarfile
import threading
import zipfile

import numpy as np
import pooch
import pytest
from cifar_files import write_10, write_100
from idx_files import NAMES, write_folder
from news_files import write_news
from official_images import write_flowers, write_tiny

from hetjax.data import (
    DataError,
    ag_news,
    cifar10,
    cifar100,
    fashion_mnist,
    flowers102,
    mnist,
    tiny_imagenet,
)
from hetjax.data.readers import named_sets

READERS = {
    "mnist": (mnist, write_folder),
    "fashion_mnist": (fashion_mnist, write_folder),
    "cifar10": (cifar10, write_10),
    "cifar100": (cifar100, write_100),
    "flowers102": (functools.partial(flowers102, size=8), write_flowers),
    "tiny_imagenet": (functools.partial(tiny_imagenet, size=8), write_tiny),
    "ag_news": (functools.partial(ag_news, vocabulary_size=90), write_news),
}
every_source = pytest.mark.parametrize("name", READERS)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A separate cache, without the user's data and without network access."""
    monkeypatch.delenv("HETJAX_DATA", raising=False)
    monkeypatch.setenv("HETJAX_CACHE", str(tmp_path / "copies"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    for name in READERS:
        attribute = f"_{name.upper()}"
        closed = getattr(named_sets, attribute)._replace(url="http://127.0.0.1:9/")
        monkeypatch.setattr(named_sets, attribute, closed)
    return tmp_path / "cache" / "hetjax"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def served(tmp_path):
    """A folder and the address that serves its files."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serve = functools.partial(server.serve_forever, poll_interval=0.01)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def pack(folder, archive):
    """Put the content of the folder into an archive."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for file in sorted(folder.rglob("*")):
                packed.write(file, file.relative_to(folder))
        return
    with tarfile.open(archive, "w:gz") as packed:
        for file in folder.iterdir():
            packed.add(file, arcname=file.name)


@pytest.fixture
def publish(served, monkeypatch):
    """Put small files of a source on the server, with their checksums."""
    folder, url = served

    def put(name):
        source = getattr(named_sets, f"_{name.upper()}")
        write = READERS[name][1]
        # the archive holds everything, or the folder of images beside other files
        write(folder / "unpacked" / (source.archive_folder * (len(source.md5) == 1)))
        for file in source.md5:
            if (folder / "unpacked" / file).exists():
                (folder / "unpacked" / file).rename(folder / file)
            else:
                pack(folder / "unpacked", folder / file)
        shutil.rmtree(folder / "unpacked")
        md5 = {
            file: hashlib.md5((folder / file).read_bytes()).hexdigest()
            for file in source.md5
        }
        source = source._replace(url=url, md5=md5)
        monkeypatch.setattr(named_sets, f"_{name.upper()}", source)
        return folder

    return put


def same(one, other):
    for a, b in ((one.train, other.train), (one.test, other.test)):
        np.testing.assert_array_equal(a.x, b.x)
        np.testing.assert_array_equal(a.y, b.y)


@every_source
def test_own_files_are_read(tmp_path, monkeypatch, name):
    read, write = READERS[name]
    write(tmp_path / "data" / name)
    direct = read(folder=tmp_path / "data" / name)
    assert direct.name == name
    monkeypatch.setenv("HETJAX_DATA", str(tmp_path / "data"))
    same(read(), direct)


@every_source
def test_downloads_are_kept(publish, cache, name):
    read, write = READERS[name]
    folder = publish(name)
    first = read()
    write(folder / "expected")
    same(first, read(folder=folder / "expected"))
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()  # no file remains to be downloaded
    same(read(), first)
    assert first.name == name
    assert [entry.name for entry in cache.iterdir()] == [name]


@every_source
def test_a_wrong_checksum_is_an_error_and_nothing_is_kept(publish, cache, name):
    folder = publish(name)
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(DataError, match=rf"(?s){name}: looked for .*hash.*not match"):
        READERS[name][0]()
    assert not list((cache / name).iterdir())


def test_a_damaged_file_of_the_cache_is_fetched_again(publish, cache):
    publish("mnist")
    first = mnist()
    (cache / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    same(mnist(), first)


@every_source
@pytest.mark.parametrize("own", [True, False])
def test_neither_found_nor_downloaded(tmp_path, monkeypatch, name, own):
    if own:
        monkeypatch.setenv("HETJAX_DATA", str(tmp_path / "data"))
    where = f"in {tmp_path / 'data' / name}," if own else "HETJAX_DATA is not set,"
    file = next(iter(getattr(named_sets, f"_{name.upper()}").wanted))
    with pytest.raises(DataError, match=f"{name}: looked for .*{file}.*") as caught:
        READERS[name][0]()
    message = str(caught.value)
    assert where in message
    assert "127.0.0.1" in message
    assert f"into {name}/ in the folder that HETJAX_DATA names" in message


@every_source
def test_a_given_folder_without_the_files_is_an_error(tmp_path, publish, name):
    publish(name)
    with pytest.raises(DataError, match=rf"{tmp_path.name}: no file of {name} is in"):
        READERS[name][0](folder=tmp_path)


@every_source
def test_a_missing_file_in_a_user_s_folder_is_not_downloaded(tmp_path, publish, name):
    publish(name)
    read, write = READERS[name]
    write(tmp_path / "own")
    lost = next(
        file
        for file in (tmp_path / "own").iterdir()
        if ("train" in file.name and file.is_file())
        or file.name in ("data_batch_4.bin", "imagelabels.mat", "wnids.txt")
    )
    lost.unlink()
    with pytest.raises(DataError, match=lost.name.removesuffix(".gz")):
        read(folder=tmp_path / "own")


def test_an_archive_is_unpacked_whole_or_not_at_all(publish, cache, monkeypatch):
    publish("cifar10")
    extractall = tarfile.TarFile.extractall

    def killed(tar, path, **options):
        extractall(tar, path, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", killed)
        with pytest.raises(KeyboardInterrupt):
            cifar10()
    assert [entry.name for entry in (cache / "cifar10").iterdir()] == [
        "cifar-10-binary.tar.gz"
    ]

    def overtaken(tar, path, **options):
        extractall(tar, path, **options)
        extractall(tar, cache / "cifar10", **options)  # as another process would

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", overtaken)
        assert len(cifar10().train) == 9
    assert len(list((cache / "cifar10").iterdir())) == 2


def test_coarse_labels_of_cifar100(tmp_path):
    written = write_100(tmp_path)
    data = cifar100(folder=tmp_path, labels="coarse")
    np.testing.assert_array_equal(data.train.y, written[0][:, 0])


def test_own_files_may_be_repacked(tmp_path):
    write_folder(tmp_path, zipped=False, dotted=True)
    assert len(mnist(folder=tmp_path).train) == 5


def test_each_checksum_is_of_its_own_file():
    assert [f"{name}.gz" for name in NAMES] == list(named_sets._MNIST.md5)
