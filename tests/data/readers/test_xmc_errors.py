"""Errors name the file and line; no other exception is raised."""

import bz2
import gzip
import lzma
import sys

import numpy as np
import pytest
from fuzz import fuzz
from hypothesis import strategies as st
from xmc_texts import FEATURES, GOOD, LABELS, some_rows, text_of, write

from hetjax.data import DataError, read_xmc
from hetjax.data.readers import text_files

damages = st.lists(
    st.tuples(
        st.sampled_from(["flip", "delete", "insert", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.one_of(st.integers(0, 255), st.sampled_from(list(b"0159:, .-+e\n\r\t"))),
    ),
    min_size=1,
    max_size=4,
)


def damaged(content, damage):
    content = bytearray(content)
    for kind, where, byte in damage:
        at = int(where * len(content))
        if kind == "flip" and content:
            content[at] = byte
        elif kind == "delete":
            del content[at : at + 1]
        elif kind == "insert":
            content.insert(at, byte)
        elif kind == "cut":
            del content[at:]
    return bytes(content)


@fuzz(
    some_rows,
    damages,
    st.booleans(),
    st.sampled_from(["no", "in", "out"]),
    st.booleans(),
    core=60,
    full=400,
)
def test_damage_is_read_or_named(tmp_path_factory, rows, damage, header, zipped, small):
    folder = tmp_path_factory.mktemp("damage")
    text = text_of(rows, (len(rows), FEATURES, LABELS) if header else None)
    good = write(folder, "good.txt", text, False)
    if zipped == "in":
        text = gzip.compress(damaged(text, damage))
    elif zipped == "out":
        text = damaged(gzip.compress(text), damage)
    else:
        text = damaged(text, damage)
    bad = write(folder, "bad.txt", text, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "CHUNK", 8 if small else 1 << 19)
        try:
            data = read_xmc(bad, good)
        except DataError as error:
            assert "bad.txt" in str(error)  # noqa: PT017  (either is right)
        else:
            assert np.isfinite(data.train.x.data).all()
            assert data.train.x.indices.max(initial=0) < data.num_features
            assert data.train.y.indices.max(initial=0) < data.num_classes


WRONG_LINES = {
    "1 x:1": "feature 'x:1' is not index:value",
    "1 4": "feature '4' is not index:value",
    "1 4:": "feature '4:' is not index:value",
    "1 :4": "feature ':4' is not index:value",
    "1 4:1:2": "feature '4:1:2' is not index:value",
    "1 4:1_0": "feature '4:1_0' is not index:value",
    "1 1.5:1": "feature '1.5:1' is not index:value",
    "1 4:.": "feature '4:.' is not index:value",
    "1 4:-": "feature '4:-' is not index:value",
    "1 4:nan": "feature '4:nan' is not finite",
    "1 4:-inf": "feature '4:-inf' is not finite",
    "1 4:1e39": "feature '4:1e39' is not finite",
    "1 4:3e38 4:3e38": "sum of repeated features is infinite",
    "1 12:1": r"feature 12 is outside 0..11; numbered from one\? .* first_index=1",
    "1 13:1": "feature 13 is outside 0..11$",
    "1 -1:1": "feature -1 is outside 0..11$",
    "7 1:1": r"label 7 is outside 0..6; numbered from one\? .* subtract 1 from each",
    "8 1:1": "label 8 is outside 0..6$",
    "-1 1:1": "label -1 is outside 0..6",
    "1.0 1:1": "label '1.0' is not an integer",
    "a 1:1": "label 'a' is not an integer",
    "1,,2 1:1": "a label is missing in '1,,2'",
    "1, 2:1": r"a label is missing in '1,'; is there a blank after a comma\?",
    "1 2,3:1": "feature '2,3:1' is not index:value",
    "9" * 30 + " 1:1": "label '9{30}' is not an integer",
    "1 " + "9" * 5000 + ":1": r"feature '9{40}\.\.\.' is not",
    b"1 4:1 \xff": "byte 0xff in column 7",
    b"\x00\x01": "label",
}


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("line", WRONG_LINES, ids=lambda line: repr(line)[:20])
@pytest.mark.parametrize("chunk", [1, 20, 1 << 19])
def test_errors_name_the_line(read, monkeypatch, line, header, before, chunk):
    monkeypatch.setattr(text_files, "CHUNK", chunk)
    message = WRONG_LINES[line]
    content = line if isinstance(line, bytes) else line.encode()
    number = before + 1
    text = GOOD.encode() * before + content + b"\n" + GOOD.encode()
    if header:
        text, number = f"{before + 2} 12 7\n".encode() + text, number + 1
    elif "outside" in message and "-1" not in message:
        pytest.skip("without a header there are no bounds")
    message = message if header else message.partition(" 0..")[0]
    with pytest.raises(DataError, match=rf"train\.txt:{number}: .*{message}"):
        read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"train.txt: no rows, the file is empty"),
        ("\n\n", r"train.txt: no rows, the file is empty"),
        ("3 12 7\n" + 2 * GOOD, r"promises 3 rows, but there are 2"),
        ("1 12 7\n" + 2 * GOOD, r"promises 1 rows, but there are 2"),
        ("2 12 7\n", r"promises 2 rows, but there are 0"),
        ("0 12 7\n", r"train.txt:1: header of 0 rows"),
        ("2 12\n" + 2 * GOOD, r"train.txt:1: .* not a header of three numbers"),
        ("rows features labels\n" + 2 * GOOD, "train.txt:1: .* not a header of three"),
        ("2 -12 7\n" + 2 * GOOD, r"train.txt:1: header of 2 rows, -12 features"),
        ("2 12 99999999999\n" + 2 * GOOD, r"train.txt:1: header of .*2147483647"),
    ],
)
def test_wrong_files_are_named(read, text, message):
    with pytest.raises(DataError, match=message):
        read(text)


def test_headers_must_agree_and_one_serves_both(tmp_path):
    train = write(tmp_path, "train.txt", b"1 12 7\n0 1:1\n", False)
    other = write(tmp_path, "other.txt", b"1 12 8\n0 1:1\n", False)
    with pytest.raises(DataError, match="other.txt:1: .*12 features and 8 labels"):
        read_xmc(train, other)
    bare = write(tmp_path, "bare.txt", b"0 1:1\n0 12:1\n", False)
    with pytest.raises(DataError, match="bare.txt:2: feature 12 is outside"):
        read_xmc(train, bare)
    with pytest.raises(DataError, match="bare.txt:2: feature 12 is outside"):
        read_xmc(bare, train)


def test_unreadable_files_are_named(tmp_path):
    good = write(tmp_path, "good.txt", GOOD.encode(), False)
    with pytest.raises(DataError, match="missing.txt: no such file"):
        read_xmc(tmp_path / "missing.txt", good)
    with pytest.raises(DataError, match=f"{tmp_path.name}: cannot be read"):
        read_xmc(good, tmp_path)
    zipped = gzip.compress(GOOD.encode() * 1000)
    for content in (zipped[:-9], zipped[:30], zipped + b"rubbish"):
        bad = write(tmp_path, "bad.txt.gz", content, False)
        with pytest.raises(DataError, match="bad.txt.gz: truncated or damaged gzip"):
            read_xmc(good, bad)


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress])
def test_damage_of_other_compressions_is_named(tmp_path, pack):
    good = write(tmp_path, "good.txt", GOOD.encode(), False)
    packed = pack(GOOD.encode() * 1000)
    kind = "bzip2" if pack is bz2.compress else "xz"
    for content in (packed[:-9], packed[:30], packed[:40] + bytes(99)):
        bad = write(tmp_path, "bad.txt", content, False)
        with pytest.raises(DataError, match=f"bad.txt: truncated or damaged {kind}"):
            read_xmc(good, bad)


def test_zstandard_is_refused_as_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "compression.zstd", None)  # as before Python 3.14
    good = write(tmp_path, "good.txt", GOOD.encode(), False)
    packed = write(tmp_path, "a.txt.zst", b"\x28\xb5\x2f\xfd" + bytes(9), False)
    with pytest.raises(DataError, match="by Zstandard, .*: unpack it .zstd -d a.txt.z"):
        read_xmc(good, packed)


def test_files_without_any_label_or_feature_are_named(tmp_path):
    no_label = write(tmp_path, "a.txt", b" 1:1\n", False)
    no_feature = write(tmp_path, "b.txt", b"1\n", False)
    with pytest.raises(DataError, match="a.txt: there are no labels"):
        read_xmc(no_label, no_label)
    with pytest.raises(DataError, match="b.txt: there are no features"):
        read_xmc(no_feature, no_feature)


@pytest.mark.parametrize("content", [GOOD + "1" * 5000 + "\n" + GOOD, "1" * 5000])
def test_an_endless_line_does_not_fill_memory(read, monkeypatch, content):
    monkeypatch.setattr(text_files, "CHUNK", 16)
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1000)
    line = 1 + content.count("\n", 0, 3000)
    with pytest.raises(DataError, match=f"train.txt:{line}: line too long"):
        read(content)
