"""libSVM files with one label per row: read as written, or errors name the line."""

import gzip

import numpy as np
import pytest
from fuzz import fuzz
from hypothesis import strategies as st

from hetjax.data import DataError, read_libsvm
from hetjax.data.readers import text_files

FEATURES = 9
LABELS = ["-1", "+1", "3", "2.0", "1e1", "007", "-0", "5"]
labels = st.sampled_from(LABELS)
pairs = st.lists(
    st.tuples(st.integers(1, FEATURES), st.integers(-99, 99).map(lambda n: n / 8)),
    max_size=5,
    unique_by=lambda pair: pair[0],
)
rows = st.lists(st.tuples(labels, pairs), min_size=1, max_size=10).map(
    lambda some: [*some, ("1", [(FEATURES, 1.0)])]
)


def text_of(some, first_index=1):
    lines = [
        " ".join([label, *(f"{i - 1 + first_index}:{v}" for i, v in pairs)])
        for label, pairs in some
    ]
    return "".join(line + "\n" for line in lines).encode()


@pytest.fixture
def read(tmp_path):
    """Read a text as the training file beside a valid test file."""

    def read_text(text, **options):
        train, test = tmp_path / "train", tmp_path / "test"
        train.write_bytes(text if isinstance(text, bytes) else text.encode())
        test.write_text("+1 1:1\n-1 2:1\n")
        return read_libsvm(train, test, **options)

    return read_text


@fuzz(
    rows,
    rows,
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([1, 40, 1 << 19]),
    core=30,
    full=150,
)
def test_written_rows_are_read_back(
    tmp_path_factory, train, test, first, zipped, chunk
):
    folder = tmp_path_factory.mktemp("round")
    for name, some in (("a", train), ("b", test)):
        text = text_of(some, first)
        (folder / name).write_bytes(gzip.compress(text) if zipped else text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "CHUNK", chunk)
        data = read_libsvm(folder / "a", folder / "b", first_index=first)
    classes = sorted({float(label) for label, _ in train + test})
    assert data.num_classes == len(classes)
    for split, some in ((data.train, train), (data.test, test)):
        x = np.zeros((len(some), FEATURES), np.float32)
        for row, (_, pairs) in enumerate(some):
            for index, value in pairs:
                x[row, index - 1] = value
        np.testing.assert_array_equal(split.x.toarray(), x)
        expected = [classes.index(float(label)) for label, _ in some]
        np.testing.assert_array_equal(split.y, expected)
        assert (split.x.dtype, split.y.dtype) == (np.float32, np.int32)
        assert split.x.has_canonical_format
    assert not data.multilabel


@pytest.mark.parametrize(
    ("train", "classes", "note"),
    [
        (["+1", "-1", "1"], [1, 0, 1], "labels -1, 1 are the classes 0, 1"),
        (["2", "-1", "1"], [2, 0, 1], "labels -1, 1, 2 are the classes 0, 1, 2"),
        (["10", "9", "-1", "1.00"], [3, 2, 0, 1], "labels -1, 1, 9, 10 are the"),
    ],
)
def test_classes_are_the_labels_in_numeric_order(read, train, classes, note):
    data = read("".join(f"{label} 3:1\n" for label in train))
    assert data.train.y.tolist() == classes
    assert data.notes[0].startswith(note)
    assert (data.name, data.num_features) == ("train", 3)
    assert read("1 1:1\n", name="other").name == "other"


def test_large_labels_are_classes_of_their_own(read):
    """2^53 + 1 is not among float64's numbers."""
    large = [2**53 + 1, 2**53, -(2**63) + 1, 2**63 - 1]
    data = read("".join(f"{label} 1:1\n" for label in large))
    np.testing.assert_array_equal(data.train.y, [4, 3, 0, 5])  # test has -1 and 1


def test_many_labels_make_a_short_note(read):
    data = read("".join(f"{label} 1:1\n" for label in range(1, 101)))
    assert data.notes[0] == (
        "labels -1, 1, 2, ..., 100 are the classes 0, 1, 2, ..., 100"
    )


def test_oddities_are_noted(read):
    data = read("3 1:1 1:2\n\n  \n 4\t2:1 \r\n5\n\n")
    assert data.train.x.toarray().tolist() == [[3, 0], [0, 1], [0, 0]]
    assert data.train.y.tolist() == [2, 3, 4]
    assert data.notes == (
        "labels -1, 1, 3, 4, 5 are the classes 0, 1, 2, 3, 4",
        "test: labels -1, 1 do not occur in train",
        "train: 1 row without features",
        "train: 1 duplicate feature summed",
        "train: 2 blank lines ignored",
    )


WRONG_LINES = {
    "1 x:1": "feature 'x:1' is not index:value",
    "1 4": "feature '4' is not index:value",
    "1 4:1 qid:7": "feature 'qid:7' is not index:value",
    "1 qid:x 4:1": "feature 'qid:x' is not index:value",
    "1 4:1 // why": "feature '//' is not index:value",
    "1 4:nan": "feature '4:nan' is not finite",
    "1 4:3e38 4:3e38": "sum of repeated features is infinite",
    "1 0:1": r"feature 0 is outside 1.*; .* pass first_index=0",
    "1 -3:1": "feature -3 is outside 1",
    "4:1": "must begin with its label, but this one begins with '4:1'",
    " 4:1": "must begin with its label, but this one begins with '4:1'",
    "1,2 4:1": "'1,2' is several labels; use read_xmc",
    "a 4:1": "label 'a' is not an integer",
    "0.5 4:1": "label '0.5' is not an integer; are these regression targets",
    "nan 4:1": "label 'nan' is not an integer",
    "inf 4:1": "label 'inf' is not an integer",
    "1e300 4:1": "label '1e300' is not an integer",
    "9007199254740993.0 4:1": "label '9007199254740993.0' is not an integer",
    "9223372036854775808 4:1": "label '9223372036854775808' is beyond 64 bits",
    "1_0 4:1": "label '1_0' is not an integer",
    b"\xff 4:1": "byte 0xff in column 1",
    b"1 4:1 \xff": "byte 0xff in column 7",
}


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("chunk", [1, 20, 1 << 19])
@pytest.mark.parametrize("line", WRONG_LINES, ids=lambda line: repr(line)[:20])
def test_errors_name_the_line(read, monkeypatch, line, before, chunk):
    monkeypatch.setattr(text_files, "CHUNK", chunk)
    content = line if isinstance(line, bytes) else line.encode()
    text = b"1 2:1 5:.5\n" * before + content + b"\n-1 1:1\n"
    with pytest.raises(DataError, match=rf"train:{before + 1}: .*{WRONG_LINES[line]}"):
        read(text)


def test_indices_below_the_first_name_their_line(read):
    text = "1 5:1\n\n-1 7:1\n1 6:1 3:1\n"
    with pytest.raises(DataError, match="train:4: feature 3 is outside 4"):
        read(text, first_index=4)


@pytest.mark.parametrize("text", ["", "\n\n", "  \n"])
def test_files_without_rows_are_named(read, text):
    with pytest.raises(DataError, match="train: no rows, the file is empty"):
        read(text)


def test_other_errors(tmp_path, read):
    good = tmp_path / "good"
    good.write_text("1 1:1\n")
    with pytest.raises(DataError, match="absent: no such file"):
        read_libsvm(good, tmp_path / "absent")
    (tmp_path / "bare").write_text("1\n2\n")
    with pytest.raises(DataError, match="bare: there are no features"):
        read_libsvm(tmp_path / "bare", tmp_path / "bare")
    with pytest.raises(ValueError, match="first_index=-1"):
        read("1 1:1\n", first_index=-1)


@fuzz(
    rows,
    st.lists(
        st.tuples(
            st.floats(0, 1, exclude_max=True),
            st.one_of(st.integers(0, 255), st.sampled_from(list(b"0159:, .-+e\n\r\t"))),
        ),
        min_size=1,
        max_size=4,
    ),
    core=60,
    full=300,
)
def test_damage_is_read_or_named(tmp_path_factory, some, damage):
    folder = tmp_path_factory.mktemp("damage")
    content = bytearray(text_of(some))
    for where, byte in damage:
        content[int(where * len(content))] = byte
    (folder / "bad").write_bytes(content)
    (folder / "good").write_text("1 1:1\n")
    try:
        data = read_libsvm(folder / "bad", folder / "good")
    except DataError as error:
        assert "bad" in str(error)  # noqa: PT017  (either is right)
    else:
        assert np.isfinite(data.train.x.data).all()
        assert data.train.y.max() < data.num_classes
