"""Reading XMC text: written rows are read back, and oddities are counted."""

import bz2
import lzma
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from fuzz import fuzz
from hypothesis import strategies as st
from xmc_texts import FEATURES, GOOD, LABELS, some_rows, text_of, write

from hetjax.data import DataError, read_folder, read_libsvm, read_xmc
from hetjax.data.readers import text_files

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


def dense_of(rows, features=FEATURES, labels=LABELS):
    """The oracle: the same sums in plain loops."""
    x, y = np.zeros((len(rows), features), np.float32), np.zeros((len(rows), labels))
    for row, (row_labels, pairs) in enumerate(rows):
        for index, value in pairs:
            x[row, index] += np.float32(float(value))
        y[row, row_labels] = 1
    return x, y


@pytest.mark.parametrize("misnamed", [False, True])
def test_bzip2_and_xz_are_read(tmp_path, monkeypatch, misnamed):
    """The compression is detected from the content."""
    monkeypatch.setattr(text_files, "CHUNK", 40)
    text = GOOD.encode() * 9
    names = (
        ("train.txt", "test.txt.gz") if misnamed else ("train.txt.bz2", "test.txt.xz")
    )
    for name, pack in zip(names, (bz2.compress, lzma.compress), strict=True):
        (tmp_path / name).write_bytes(pack(text))
    data = read_folder(tmp_path)
    for split in (data.train, data.test):
        np.testing.assert_array_equal(split.x.toarray(), [[0, 1, 0, 0, 0.5]] * 9)
        np.testing.assert_array_equal(split.y.toarray(), [[0, 0, 1, 1]] * 9)
    single = tmp_path / "one.bz2"
    single.write_bytes(bz2.compress(b"1 1:1\n0 2:1\n"))
    assert read_libsvm(single, single).name == "one"


@fuzz(
    some_rows,
    some_rows,
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 40, 9999]),
    core=30,
    full=150,
)
def test_written_rows_are_read_back(
    tmp_path_factory, train, test, header, zipped, chunk
):
    folder, both = tmp_path_factory.mktemp("round"), (train, test)
    paths = [
        write(
            folder,
            name,
            text_of(rows, (len(rows), FEATURES, LABELS) if header else None),
            zipped,
        )
        for name, rows in zip(("train.txt", "test.txt"), both, strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "CHUNK", chunk)
        data = read_xmc(*paths)
    assert data.num_features == FEATURES
    assert data.num_classes == LABELS
    for split, rows in ((data.train, train), (data.test, test)):
        x, y = dense_of(rows)
        np.testing.assert_array_equal(split.x.toarray(), x)
        np.testing.assert_array_equal(split.y.toarray(), y)
        assert split.x.dtype == split.y.dtype == np.float32
        assert split.x.has_canonical_format


def test_oddities_are_counted(read, small_chunks):
    text = "5 12 7\n1,1,2 3:1 2:4 3:0.5\n 1:1\n4:1\n5\n \n"
    data = read(text)
    expected = dense_of([([1, 2], [(3, 1.5), (2, 4)]), ([], [(1, 1)]), ([], [(4, 1)])])
    np.testing.assert_array_equal(data.train.x.toarray()[:3], expected[0])
    np.testing.assert_array_equal(data.train.y.toarray()[:3], expected[1])
    assert data.train.x.indices[:2].tolist() == [2, 3]
    assert data.notes == (
        "train: 3 rows without labels",
        "train: 2 rows without features",
        "train: 1 duplicate feature summed",
        "train: 1 duplicate label counted once",
    )


@pytest.mark.parametrize("text", ["1 0:1\n\n2 3:1\n\n\n", "2 4 3\n1 0:1\n\n2 3:1\n\n"])
def test_empty_lines_are_ignored(read, text):
    data = read(text)
    assert len(data.train) == 2
    assert data.notes == ("train: 1 empty line ignored",)


@pytest.mark.parametrize("chunk", [1, 1 << 19])
def test_empty_lines_are_rows_if_the_header_says_so(read, monkeypatch, chunk):
    monkeypatch.setattr(text_files, "CHUNK", chunk)
    data = read("4 4 3\n1 0:1\n\n2 3:1\n\n\n")
    assert np.diff(data.train.x.indptr).tolist() == [1, 0, 1, 0]
    assert data.notes[:1] == ("train: 2 rows without labels",)


def test_line_ends_marks_and_white_space(read):
    plain = read("2,3 1:1 4:0.5\n5 0:2\n").train
    for text in (
        "2,3 1:1 4:0.5\r\n5 0:2\r\n",
        "2,3\t1:1   4:0.5 \n5 0:2",
        "\ufeff2,3 1:1 4:0.5\n5 0:2",
        "\ufeff2 5 6\r\n2,3 1:1 4:0.5\r\n5 0:2\r\n\r\n",
        "2,3 1:1\v4:+.5\f\n+5 0:2e0\r\n",
    ):
        split = read(text).train
        assert (split.x != plain.x).nnz == 0
        assert (split.y != plain.y).nnz == 0


def test_features_may_count_from_one(tmp_path):
    path = write(tmp_path, "train.txt", b"1 3 2\n0,1 1:5 3:7\n", False)
    data = read_xmc(path, path, first_index=1, name="ones")
    assert data.name == "ones"
    assert data.train.x.toarray().tolist() == [[5, 0, 7]]
    assert data.train.y.toarray().tolist() == [[1, 1]]
    bad = write(tmp_path, "bad.txt", b"0 1:1\n0 0:1\n", False)
    with pytest.raises(
        DataError, match="bad.txt:2: feature 0 is outside 1..3; numbered from zero"
    ):
        read_xmc(path, bad, first_index=1)
    with pytest.raises(ValueError, match="first_index=-1"):
        read_xmc(path, path, first_index=-1)


def test_sizes_are_the_larger_of_both_files(tmp_path):
    train = write(tmp_path, "train.txt", b"4 1:1\n", False)
    test = write(tmp_path, "test.txt", b"2 9:1\n", False)
    data = read_folder(tmp_path)
    assert data.name == tmp_path.name
    assert data.train.x.shape == data.test.x.shape == (1, 10)
    assert data.train.y.shape == data.test.y.shape == (1, 5)
    swapped = read_xmc(test, train)
    assert (swapped.num_features, swapped.num_classes) == (10, 5)


def test_a_folder_s_data_set(tmp_path):
    with pytest.raises(DataError, match="train.txt or train.txt.gz; it holds nothing"):
        read_folder(tmp_path)
    write(tmp_path, "train.txt", GOOD.encode(), True)
    with pytest.raises(
        DataError, match="test.txt or test.txt.gz; it holds train.txt.gz"
    ):
        read_folder(tmp_path)
    write(tmp_path, "test.txt", GOOD.encode(), False)
    assert len(read_folder(tmp_path).train) == 1
    with pytest.raises(DataError, match="nowhere: no such folder"):
        read_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "rows", "features", "labels", "notes"),
    [
        ("bibtex", (4880, 2515), 1836, 159, ()),
        (
            "delicious",
            (12920, 3185),
            500,
            983,
            ("train: 10 rows without labels", "test: 4 rows without labels"),
        ),
        ("rcv1", (4500, 1500), 47236, 101, ()),
    ],
)
def test_real_files(name, rows, features, labels, notes):
    if not (DATA / name).is_dir():
        pytest.skip("no shared/data beside the project")
    data = read_folder(DATA / name)
    assert (len(data.train), len(data.test)) == rows
    assert (data.num_features, data.num_classes) == (features, labels)
    assert data.notes == notes
    assert data.sparse
    assert data.multilabel


def test_read_data_is_canonical_and_slim(read):
    data = read(GOOD * 100)
    for matrix in (data.train.x, data.train.y):
        assert isinstance(matrix, sp.csr_array)
        assert matrix.indices.dtype == matrix.indptr.dtype == np.int32
        for array in (matrix.data, matrix.indices):  # no views of larger arrays
            assert array.base is None or array.base.nbytes == array.nbytes
        assert matrix.data.dtype == np.float32
