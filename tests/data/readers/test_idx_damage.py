"""Damaged IDX files are read, or raise a one-line DataError that names the file."""

import gzip
import struct

import numpy as np
import pytest
from idx_files import NAMES, idx_bytes, write_folder
from mutations import mutated, mutations

from hetjax.data import DataError, read_idx, read_idx_folder

GOOD = idx_bytes(np.arange(60, dtype=np.int16).reshape(3, 4, 5))


def read_or_named(read, name):
    """The result of a read, or None after a one-line error that names the file."""
    try:
        return read()
    except DataError as error:
        assert name in str(error)  # noqa: PT017  (either is right)
        assert "\n" not in str(error)  # noqa: PT017
        return None


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_read_or_named(tmp_path, seed):
    file = tmp_path / "bad.idx"
    refused = 0
    for _, content in mutations(GOOD, seed, 200):
        file.write_bytes(content)
        array = read_or_named(lambda: read_idx(file), "bad.idx")
        refused += array is None
    assert refused > 100  # otherwise the mutations do no damage


def header(code, *lengths):
    return bytes([0, 0, code, len(lengths)]) + struct.pack(
        f">{len(lengths)}I", *lengths
    )


HEADERS = [
    header(8, 0, 2**32 - 1, 2**32 - 1, 2**32 - 1),
    header(14, 2**32 - 1, 0, 2**32 - 1, 2**32 - 1),
    header(8, *[1] * 65) + b"\1",
    header(8, *[0] * 255),
    header(8, *[2**32 - 1] * 64),
    header(14, *[2**32 - 1] * 2) + b"\0" * 64,
    header(8, 2**31, 2**31),
]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("content", HEADERS, ids=lambda c: c[:12].hex())
def test_an_impossible_header_is_named(tmp_path, content, zipped):
    file = tmp_path / "bad.idx"
    file.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(DataError, match="bad.idx: "):
        read_idx(file)


def test_trailing_bytes_are_counted(tmp_path):
    file = tmp_path / "bad.idx"
    file.write_bytes(gzip.compress(GOOD + bytes(100)))
    message = f"has trailing bytes: {len(GOOD) + 100} bytes, but .*{len(GOOD)}"
    with pytest.raises(DataError, match=message):
        read_idx(file)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("which", range(4))
def test_a_damaged_file_of_a_folder_is_read_or_named(tmp_path, seed, which):
    rng = np.random.default_rng((seed, which))
    arrays = write_folder(tmp_path, zipped=False)
    good = idx_bytes(list(arrays.values())[which])
    for _ in range(60):
        (tmp_path / NAMES[which]).write_bytes(mutated(good, rng, 2))
        data = read_or_named(lambda: read_idx_folder(tmp_path), tmp_path.name)
        if data is not None:
            for split in (data.train, data.test):
                assert len(split.x) == len(split.y) > 0
                assert 0 <= split.y.min() <= split.y.max() < data.num_classes


def test_labels_too_large_for_any_model_are_named(tmp_path):
    write_folder(tmp_path, t10k_labels=np.array([0, 2**31 - 1, 1], np.int32))
    with pytest.raises(
        DataError, match="t10k-labels-.*: label 2147483647 is outside 0"
    ):
        read_idx_folder(tmp_path)
