"""IDX files: written arrays are read back, and errors name the fault."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from idx_files import CODES, NAMES, idx_bytes, write_folder

from hetjax.data import DataError, read_idx, read_idx_folder

arrays = st.sampled_from(list(CODES)).flatmap(
    lambda name: hnp.arrays(
        np.dtype(name), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)
    )
)


@settings(deadline=None, max_examples=200)
@given(arrays, st.booleans())
def test_written_arrays_are_read_back(tmp_path_factory, array, zipped):
    file = tmp_path_factory.mktemp("idx") / "file"
    content = idx_bytes(array)
    file.write_bytes(gzip.compress(content) if zipped else content)
    read = read_idx(file)
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype
    assert read.dtype.isnative
    assert read.flags.writeable


GOOD = idx_bytes(np.arange(12, dtype=np.int16).reshape(3, 4))
WRONG = {
    "empty": (b"", "not an IDX file: it is empty"),
    "text": (b"<!DOCTYPE html>", "not an IDX file: it begins with 0x3c21444f"),
    "type": (b"\0\0\x0a\1" + b"\0\0\0\0", "not an IDX file: it begins with 0x00000a01"),
    "little endian": (b"\3\x08\0\0" + GOOD[4:], "not an IDX file: .*0x03080000"),
    "magic cut": (GOOD[:3], "not an IDX file: it begins with 0x00000b"),
    "lengths cut": (GOOD[:11], "truncated: 11 bytes do not hold .* its 2 axes; fetch"),
    "values cut": (
        GOOD[:-1],
        r"truncated: 35 bytes, but .*promises 36, for \[3, 4\] of int16; fetch",
    ),
    "no values": (GOOD[:12], "truncated: 12 bytes, but its header promises 36"),
    "overlong": (GOOD + b"\0", "has trailing bytes: 37 bytes, but .*promises 36"),
    "huge": (b"\0\0\x08\4" + b"\xff" * 16, "truncated: 20 bytes, but its header prom"),
    "gzip cut": (gzip.compress(GOOD)[:-9], "truncated or damaged gzip"),
    "gzip of a part": (gzip.compress(GOOD[:-2]), "truncated: 34 bytes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_fault(tmp_path, case):
    content, message = WRONG[case]
    file = tmp_path / "some-idx3-ubyte"
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"some-idx3-ubyte: {message}"):
        read_idx(file)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_changed_byte_is_read_or_named(tmp_path_factory, at, byte):
    file = tmp_path_factory.mktemp("changed") / "bad.idx"
    content = bytearray(GOOD)
    content[at] = byte
    file.write_bytes(content)
    try:
        read_idx(file)
    except DataError as error:
        assert "bad.idx" in str(error)  # noqa: PT017  (either is right)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match="absent: no such file"):
        read_idx(tmp_path / "absent")
    with pytest.raises(DataError, match=f"{tmp_path.name}: cannot be read"):
        read_idx(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dotted", [True, False])
def test_a_folder_is_images_and_class_ids(tmp_path, zipped, dotted):
    arrays = write_folder(tmp_path / "digits", zipped=zipped, dotted=dotted)
    data = read_idx_folder(tmp_path / "digits")
    for split, part in ((data.train, "train"), (data.test, "t10k")):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        assert split.x.shape == (*images.shape, 1)
        assert split.x.dtype == np.float32
        assert split.y.dtype == np.int32
        np.testing.assert_array_equal(np.rint(split.x[..., 0] * 255), images)
        np.testing.assert_allclose(split.x[..., 0], images / 255, rtol=1e-7)
        np.testing.assert_array_equal(split.y, labels)
    assert (data.name, data.num_classes) == ("digits", 5)  # 4 is in the test only
    assert read_idx_folder(tmp_path / "digits", name="other").name == "other"


def test_bytes_become_zero_to_one(tmp_path):
    images = np.array([0, 255] * 60, np.uint8).reshape(5, 4, 6)
    write_folder(tmp_path, train_images=images)
    x = read_idx_folder(tmp_path).train.x
    assert set(np.unique(x)) == {0.0, 1.0}


IMAGES = np.zeros((5, 4, 6), np.uint8)
WRONG_FOLDERS = {
    "swapped": (
        {"train_images": np.arange(5, dtype=np.uint8)},
        r"train-images-idx3-ubyte.gz: images must be .* holds \[5\] of uint8",
    ),
    "of floats": (
        {"train_images": IMAGES.astype(np.float32)},
        r"train-images-.*: images must be .* \[5, 4, 6\] of float32",
    ),
    "no images": ({"train_images": IMAGES[:0]}, r"train-images-.* \[0, 4, 6\]"),
    "images as labels": (
        {"t10k_labels": IMAGES},
        r"t10k-labels-idx1-ubyte.gz: labels must be .* \[5, 4, 6\] of uint8",
    ),
    "float labels": (
        {"t10k_labels": np.zeros(3, np.float64)},
        r"t10k-labels-.*: labels must be .* \[3\] of float64",
    ),
    "negative": (
        {"t10k_labels": np.array([1, -2, 0], np.int8)},
        "t10k-labels-.*: label -2 is outside 0",
    ),
    "too few labels": (
        {"train_labels": np.zeros(4, np.uint8)},
        "train-labels-.*: 4 labels, but 5 images in train-images-idx3-ubyte.gz",
    ),
    "sizes": (
        {"t10k_images": IMAGES[:3, :3]},
        r"images of train are \[4, 6\], images of test \[3, 6\]",
    ),
}


@pytest.mark.parametrize("case", WRONG_FOLDERS)
def test_mismatches_are_named(tmp_path, case):
    changed, message = WRONG_FOLDERS[case]
    write_folder(tmp_path, **changed)
    with pytest.raises(DataError, match=message):
        read_idx_folder(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_missing_file_is_named(tmp_path, name):
    write_folder(tmp_path)
    (tmp_path / f"{name}.gz").unlink()
    with pytest.raises(DataError, match=f"looked for {name} or {name}.gz; it holds t"):
        read_idx_folder(tmp_path)
    with pytest.raises(DataError, match="absent: no such folder"):
        read_idx_folder(tmp_path / "absent")
