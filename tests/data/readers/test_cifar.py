"""CIFAR's binary files: every pixel in its place, and errors name the fault."""

import numpy as np
import pytest
from cifar_files import write_10, write_100

from hetjax.data import DataError, read_cifar
from hetjax.data.readers import image_arrays


def check(split, records, column, num_labels):
    assert split.x.dtype == np.float32
    assert split.y.dtype == np.int32
    assert split.x.shape == (len(records), 32, 32, 3)
    np.testing.assert_array_equal(split.y, records[:, column])
    pixels = records[:, num_labels:]
    for image, row, line, color in [(0, 0, 0, 0), (1, 5, 31, 2), (2, 31, 7, 1)]:
        byte = pixels[image, 1024 * color + 32 * row + line]
        assert split.x[image, row, line, color] == np.float32(byte) / np.float32(255)
    total = pixels.reshape(len(records), 3, 1024).sum(2, dtype=np.int64)
    np.testing.assert_allclose(split.x.sum((1, 2)) * 255, total, rtol=1e-5)


@pytest.mark.parametrize("block", [1, 2, 5000])
@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar10(tmp_path, monkeypatch, block, inner):
    monkeypatch.setattr(image_arrays, "_BLOCK", block)
    written = write_10(tmp_path / inner)
    data = read_cifar(tmp_path)
    check(data.train, np.concatenate(written[:5]), 0, 1)
    check(data.test, written[5], 0, 1)
    assert (data.name, data.num_classes) == ("cifar10", 10)
    assert data.notes == (
        "train: 9 images, the official files have 50000",
        "test: 4 images, the official files have 10000",
    )


@pytest.mark.parametrize("inner", ["", "cifar-100-binary"])
@pytest.mark.parametrize(("labels", "column"), [("fine", 1), ("coarse", 0)])
def test_cifar100(tmp_path, inner, labels, column):
    written = write_100(tmp_path / inner)
    data = read_cifar(tmp_path, labels=labels, name="mine")
    check(data.train, written[0], column, 2)
    check(data.test, written[1], column, 2)
    assert (data.name, data.num_classes) == ("mine", 100 if column else 20)


def test_fine_labels_are_the_default(tmp_path):
    written = write_100(tmp_path)
    np.testing.assert_array_equal(read_cifar(tmp_path).train.y, written[0][:, 1])


def cut(folder):
    content = (folder / "data_batch_2.bin").read_bytes()
    (folder / "data_batch_2.bin").write_bytes(content[:-5])


def empty(folder):
    (folder / "data_batch_2.bin").write_bytes(b"")


def missing(folder):
    (folder / "data_batch_3.bin").unlink()
    (folder / "test_batch.bin").unlink()


def wrong_label(folder):
    content = bytearray((folder / "data_batch_3.bin").read_bytes())
    content[2 * 3073] = 10
    (folder / "data_batch_3.bin").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "data_batch_2.bin: 3068 bytes are not a whole number of images of 3073"),
        (empty, "data_batch_2.bin: 0 bytes are not a whole"),
        (missing, "data_batch_3.bin, test_batch.bin missing; unpack all"),
        (wrong_label, r"data_batch_3.bin: image 2 has the fine label 10, outside 0..9"),
        (write_100, "holds both CIFAR-10 and CIFAR-100"),
    ],
)
@pytest.mark.parametrize("block", [1, 5000])
def test_errors_name_the_fault(tmp_path, monkeypatch, damage, message, block):
    monkeypatch.setattr(image_arrays, "_BLOCK", block)
    write_10(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=message):
        read_cifar(tmp_path)


def test_both_labels_of_cifar100_are_checked(tmp_path):
    write_100(tmp_path)
    content = bytearray((tmp_path / "test.bin").read_bytes())
    content[3074] = 20
    (tmp_path / "test.bin").write_bytes(content)
    with pytest.raises(DataError, match="test.bin: image 1 has the coarse label 20"):
        read_cifar(tmp_path)


def test_folders_without_cifar_are_named(tmp_path):
    with pytest.raises(DataError, match="looked for data_batch_1.bin .* or train.bin"):
        read_cifar(tmp_path)
    with pytest.raises(DataError, match="absent: no such folder"):
        read_cifar(tmp_path / "absent")


def test_unknown_labels_are_an_error(tmp_path):
    write_10(tmp_path)
    with pytest.raises(ValueError, match="labels is 'coarse'; cifar10 has fine"):
        read_cifar(tmp_path, labels="coarse")
    write_100(tmp_path / "100")
    with pytest.raises(ValueError, match="cifar100 has coarse and fine"):
        read_cifar(tmp_path / "100", labels="both")
