"""The real data sets, if HETJAX_DATA names a folder that has them."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from hetjax.data import (
    ag_news,
    cifar10,
    cifar100,
    fashion_mnist,
    flowers102,
    mnist,
    read_libsvm,
    tiny_imagenet,
)
from hetjax.data.readers import named_sets

DATA = os.environ.get("HETJAX_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="HETJAX_DATA is not set")


def folder(name):
    """A data set's folder; the test is skipped if there is none."""
    place = Path(DATA or "", name)
    if not place.is_dir():
        pytest.skip(f"no {name} in HETJAX_DATA")
    return place


def check_sizes(data, per_class_train, per_class_test):
    for split, per_class in (
        (data.train, per_class_train),
        (data.test, per_class_test),
    ):
        assert split.x.dtype == np.float32
        assert (split.x.min(), split.x.max()) == (0, 1)
        np.testing.assert_array_equal(np.bincount(split.y), per_class)


def test_mnist():
    folder("mnist")
    data = mnist()
    assert data.train.x.shape == (60_000, 28, 28, 1)
    assert data.test.x.shape == (10_000, 28, 28, 1)
    # the usual mean and deviation for normalization
    assert data.train.x.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert data.train.x.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)
    assert data.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.num_classes == 10


def test_fashion_mnist():
    folder("fashion_mnist")
    data = fashion_mnist()
    check_sizes(data, np.full(10, 6000), np.full(10, 1000))
    assert data.train.x.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert data.train.x.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_checksums_are_those_of_the_original_files(name):
    """Only for original files; a repacked copy has another checksum."""
    source, same = getattr(named_sets, f"_{name.upper()}"), []
    for file, md5 in source.md5.items():
        found = folder(name) / file
        if found.is_file() and hashlib.md5(found.read_bytes()).hexdigest() == md5:
            same.append(file)
    if not same:
        pytest.skip("all files are repacked")
    assert "t10k-labels-idx1-ubyte.gz" in same
    assert "train-labels-idx1-ubyte.gz" in same


def test_cifar10():
    folder("cifar10")
    data = cifar10()
    check_sizes(data, np.full(10, 5000), np.full(10, 1000))
    mean = data.train.x.mean((0, 1, 2), dtype=np.float64)
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=5e-5)
    assert data.train.y[:4].tolist() == [6, 9, 9, 4]  # frog, truck, truck, deer
    assert data.notes == ()


def test_cifar100():
    folder("cifar100")
    data = cifar100()
    check_sizes(data, np.full(100, 500), np.full(100, 100))
    assert data.notes == ()


def test_flowers102(tmp_path):
    folder("flowers102")
    data = flowers102(size=16, cache=tmp_path)
    assert (len(data.train), len(data.test)) == (6149, 2040)
    np.testing.assert_array_equal(np.bincount(data.test.y), np.full(102, 20))
    assert data.notes == ()


def test_tiny_imagenet(tmp_path):
    folder("tiny_imagenet")
    data = tiny_imagenet(cache=tmp_path)
    np.testing.assert_array_equal(np.bincount(data.train.y), np.full(200, 500))
    np.testing.assert_array_equal(np.bincount(data.test.y), np.full(200, 50))
    assert data.notes == ()


def test_ag_news(tmp_path):
    folder("ag_news")
    data = ag_news(length=64, cache=tmp_path)
    np.testing.assert_array_equal(np.bincount(data.train.y), np.full(4, 30_000))
    np.testing.assert_array_equal(np.bincount(data.test.y), np.full(4, 1900))
    assert data.train.x.max() == 30_521


def test_a9a():
    """The counts on LIBSVM's page and in the Adult data's documentation."""
    place = folder("libsvm_a9a")
    data = read_libsvm(place / "a9a.gz", place / "a9a.t.gz")
    assert np.bincount(data.train.y).tolist() == [24720, 7841]
    assert np.bincount(data.test.y).tolist() == [12435, 3846]
    assert data.num_features == 123
    assert set(data.train.x.data) == {1.0}
    assert data.notes == ("labels -1, 1 are the classes 0, 1",)
