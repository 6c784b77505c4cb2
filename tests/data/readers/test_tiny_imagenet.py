"""Tiny ImageNet: classes by id, annotations of the validation images, gray images."""

import numpy as np
import pytest
from image_files import plainly
from official_images import write_tiny

from hetjax.data import DataError, tiny_imagenet


@pytest.fixture
def folder(tmp_path):
    return write_tiny(tmp_path / "tiny")


@pytest.fixture
def read(folder, tmp_path):
    def read_it(**options):
        return tiny_imagenet(folder=folder, cache=tmp_path / "cache", **options)

    return read_it


@pytest.mark.parametrize("size", [64, 16])
def test_images_and_classes(folder, read, size):
    data = read(size=size)
    train = [
        folder / "train" / name / "images" / f"{name}_{k}.JPEG"
        for name in ("n01", "n02", "n10")
        for k in range(2)
    ]
    np.testing.assert_array_equal(data.train.x, [plainly(p, size) for p in train])
    assert data.train.y.tolist() == [0, 0, 1, 1, 2, 2]
    gray = data.train.x[1::2]
    assert (gray == gray[..., :1]).all()
    test = [folder / "val" / "images" / f"val_{k}.JPEG" for k in (0, 2, 1)]
    np.testing.assert_array_equal(data.test.x, [plainly(p, size) for p in test])
    assert data.test.y.tolist() == [2, 1, 2]
    assert (data.num_classes, data.name) == (3, "tiny_imagenet")
    assert data.notes == (
        "3 classes, the official files have 200",
        "6 training images, the official files have 100000",
        "3 test images, the official files have 10000",
    )


def test_the_size_is_that_of_the_originals(read):
    assert read().train.x.shape == (6, 64, 64, 3)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("wnids.txt", "\n", ": no lines, the file is empty"),
        ("wnids.txt", b"n01\n\xff\xfe", ": not a text file"),
        (
            "val/val_annotations.txt",
            "val_0.JPEG n01\n",
            ":1: looked for a file name, a",
        ),
        ("val/val_annotations.txt", "\n../a.JPEG\tn01\n", ":2: looked for a file name"),
        ("val/val_annotations.txt", "val_0.JPEG\tn03\n", ":1: 'n03' is not in wnids"),
        ("val/val_annotations.txt", "", ": no lines, the file is empty"),
        ("val/val_annotations.txt", None, ": no such file"),
    ],
)
def test_what_is_wrong_with_a_list(folder, read, file, text, message):
    (folder / file).unlink()
    if text is not None:
        content = text if isinstance(text, bytes) else text.encode()
        (folder / file).write_bytes(content)
    with pytest.raises(DataError, match=rf"{file}{message}.*unpack tiny-imagenet-200"):
        read()


def test_missing_images(folder, read):
    path = folder / "val" / "images" / "val_2.JPEG"
    path.rename(path.with_name("val_3.JPEG"))
    with pytest.raises(DataError, match="1 of 3 images are missing: val.images.val_2"):
        read()


def test_a_class_without_a_folder(folder, read):
    place = folder / "train" / "n02" / "images"
    place.rename(place.with_name("pictures"))
    with pytest.raises(DataError, match=r"n02.images: looked for .jpg"):
        read()
