"""Flowers102: labels and splits from MATLAB files, and errors for invalid ones."""

import numpy as np
import pytest
import scipy.io
from image_files import plainly, write_image
from official_images import FLOWERS, SPLITS, write_flowers

from hetjax.data import DataError, flowers102
from hetjax.data.columns import is_mapped


@pytest.fixture
def folder(tmp_path):
    return write_flowers(tmp_path / "flowers")


@pytest.fixture
def read(folder, tmp_path):
    def read_it(**options):
        given = {"folder": folder, "size": 8, "cache": tmp_path / "cache", **options}
        return flowers102(**given)

    return read_it


def rows(folder, numbers):
    """The pixels and classes of images by number."""
    paths = [folder / "jpg" / f"image_{number:05}.jpg" for number in numbers]
    return [plainly(path, 8) for path in paths], [FLOWERS[k - 1] - 1 for k in numbers]


@pytest.mark.parametrize("split", ["swapped", "official", None])
def test_images_and_classes(folder, read, split):
    data = read(split=split) if split else read()
    small, large = rows(folder, [2, 7, 3]), rows(folder, [6, 1, 4, 5])
    train, test = (small, large) if split == "official" else (large, small)
    for found, (x, y) in ((data.train, train), (data.test, test)):
        np.testing.assert_array_equal(found.x, x)
        np.testing.assert_array_equal(found.y, y)
        assert found.y.dtype == np.int32
        assert is_mapped(found.x)
    assert (data.num_classes, data.name) == (102, "flowers102")
    assert data.notes == (
        "2 images of trnid, the official files have 1020",
        "1 images of valid, the official files have 1020",
        "4 images of tstid, the official files have 6149",
    )


def test_both_splits_have_copies_of_their_own(read, tmp_path):
    assert [len(read(split=s).train) for s in ("swapped", "official")] == [4, 3]
    assert [len(read(split=s).train) for s in ("swapped", "official")] == [4, 3]
    assert len(list((tmp_path / "cache").glob("*.lock"))) == 2


def test_original_types_of_numbers(folder, read):
    """The published files have uint8 labels and uint16 ids; others have doubles."""
    expected = read()
    for kinds in ((np.uint8, np.uint16), (float, float)):
        labels, ids = kinds
        scipy.io.savemat(
            folder / "imagelabels.mat", {"labels": np.array([FLOWERS], labels)}
        )
        splits = {k: np.array(v, ids) for k, v in SPLITS.items()}
        scipy.io.savemat(folder / "setid.mat", splits)
        found = read()
        np.testing.assert_array_equal(found.train.y, expected.train.y)
        np.testing.assert_array_equal(found.train.x, expected.train.x)


def test_other_labels_are_noticed(folder, read):
    assert read().train.y[0] == 1
    labels = {"labels": np.array([[1] * len(FLOWERS)])}
    scipy.io.savemat(folder / "imagelabels.mat", labels)
    assert read().train.y[0] == 0


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("setid", {"trnid": [1], "valid": [2]}, "looked for tstid; it holds trnid, va"),
        ("setid", {}, "looked for trnid; it holds nothing"),
        ("setid", {**SPLITS, "valid": [8]}, r"valid has the image 8 .* 1\.\.7; do"),
        ("setid", {**SPLITS, "valid": [0]}, "valid has the image 0 at"),
        ("setid", {**SPLITS, "valid": [2]}, "the image 2 occurs twice"),
        ("setid", {**SPLITS, "valid": [3, 3]}, "the image 3 occurs twice"),
        ("setid", {**SPLITS, "valid": [1.5]}, "valid must be whole numbers"),
        ("setid", {**SPLITS, "valid": [np.nan]}, "valid must be whole numbers"),
        ("setid", {**SPLITS, "valid": "abc"}, "valid must be whole numbers"),
        ("setid", {**SPLITS, "valid": []}, r"valid must be whole .*\[0\] of"),
        ("imagelabels", {"label": [FLOWERS]}, "looked for labels; it holds label"),
        (
            "imagelabels",
            {"labels": [0] * 7},
            r"the label 0 at place 1, outside 1\.\.102",
        ),
        ("imagelabels", {"labels": [1, 103]}, "label 103 at place 2, outside"),
        ("imagelabels", b"", "cannot be read as a MATLAB file"),
        ("setid", b"MATLAB 5.0 MAT-file" * 20, "cannot be read as a MATLAB file"),
        ("setid", None, "no such file; download it"),
    ],
)
def test_what_is_wrong_with_a_matlab_file(folder, read, file, content, message):
    path = folder / f"{file}.mat"
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        scipy.io.savemat(path, content)
    with pytest.raises(DataError, match=rf"{file}\.mat: .*{message}"):
        read()


def test_missing_images_are_named(folder, read):
    for number in (4, 7):
        (folder / "jpg" / f"image_0000{number}.jpg").unlink()
    with pytest.raises(DataError, match="2 of 7 images are missing: .*4.jpg; .*7.jpg;"):
        read()


def test_an_archive_that_is_not_unpacked(folder, read):
    (folder / "jpg").rename(folder / "gone")
    with pytest.raises(DataError, match=r"jpg: no such folder; unpack 102flowers.tgz"):
        read()


def test_damaged_images_are_named(folder, read):
    (folder / "jpg" / "image_00005.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match="1 of 7 images cannot be used: .*image_00005"):
        read()


def test_more_images_than_labels_do_not_matter(folder, read):
    write_image(folder / "jpg" / "image_00008.jpg", 9, 9)
    assert len(read().train) == 4


@pytest.mark.parametrize("split", ["train", None, ""])
def test_a_split_that_is_not_there(read, split):
    with pytest.raises(ValueError, match=rf"^split={split!r}: choose one of swapped, "):
        read(split=split)
