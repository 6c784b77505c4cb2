"""Both text readers against a line-by-line oracle, and libSVM against scikit-learn.

If the oracle accepts a text, the reader returns the same values; otherwise its error
names the first line that the oracle rejects.
"""

import io
import re

import numpy as np
import pytest
from mutations import mutated
from quick import quick
from sklearn.datasets import load_svmlight_file

from hetjax.data import DataError, read_libsvm, read_xmc
from hetjax.data.readers import text_files

FEATURES, LABELS = 12, 7
FLOAT32 = 2.0**128 - 2.0**103  # larger numbers round to infinity


def number(word):
    """A finite float32, or a ValueError."""
    if b"_" in word or not abs(float(word)) < FLOAT32:
        raise ValueError(word)
    return float(word)


def pair(word, first, most):
    index, value = word.split(b":")
    if not re.fullmatch(rb"[+-]?\d+", index) or not first <= int(index) < first + most:
        raise ValueError(word)
    return int(index) - first, number(value)


def summed(pairs):
    """A row {column: value}, or a ValueError where repeated features overflow."""
    row = {}
    with np.errstate(over="ignore"):
        for index, value in pairs:
            row[index] = row.get(index, np.float32(0)) + np.float32(value)
    if not np.isfinite([*row.values()]).all():
        raise ValueError(row)
    return row


def rows_of(matrix):
    """Each row of a CSR matrix as {column: value}."""
    ends = matrix.indptr[1:-1]
    parts = np.split(matrix.indices, ends), np.split(matrix.data, ends)
    return [
        dict(zip(i.tolist(), v.tolist(), strict=True))
        for i, v in zip(*parts, strict=True)
    ]


def libsvm_line(line):
    """(label, row) of a line, None of a blank one; a ValueError of a bad one."""
    words = line.partition(b"#")[0].split()
    if not words:
        return None
    label = float(words[0])
    if b"_" in words[0] or not abs(label) <= 2**53 or label != int(label):
        raise ValueError(words[0])
    if len(words) > 1 and re.fullmatch(rb"qid:\d+", words[1]):
        words.pop(1)
    return label, summed(pair(w, 1, 2**31 - 2) for w in words[1:])


def xmc_line(line):
    """(labels, row) of a line, None of an empty one; a ValueError of a bad one."""
    if not line:
        return None
    line.decode()
    words, labels = line.split(), []
    if words and not line[:1].isspace() and b":" not in words[0]:
        labels = words.pop(0).split(b",")
        for label in labels:
            if not re.fullmatch(rb"[+-]?\d+", label) or not 0 <= int(label) < LABELS:
                raise ValueError(label)
    row = summed(pair(w, 0, FEATURES) for w in words)
    return sorted({int(label) for label in labels}), row


def judged(text, line_of):
    """(the values of the lines, None), or (None, number of the first bad line)."""
    found = []
    for index, line in enumerate(text.replace(b"\r\n", b"\n").split(b"\n")):
        try:
            found.append(line_of(line))
        except ValueError:
            return None, index + 1
    return [line for line in found if line is not None], None


VALUES = [
    b"1",
    b"-0.5",
    b".25",
    b"3.",
    b"2e-3",
    b"1E2",
    b"+4",
    b"007",
    b"3e38",
    b"1e39",
]
ODD = [b"nan", b"inf", b"", b"x", b"1_0", b"0x1", b"--1", b"1e", b"1:2"]
GAPS = [b" ", b"\t", b"  ", b" \t ", b"\v", b"\f"]
ENDS = [b"\n", b"\r\n", b" \n", b"\t\n", b"\n\n"]


def pick(rng, words):
    return words[rng.integers(len(words))]


def random_line(rng, labels, odd, comments, tidy):
    """A random line; each word is invalid with probability `odd`."""

    def word(good):
        return pick(rng, ODD) if rng.random() < odd else good

    words = [word(pick(rng, labels))]
    if comments and rng.random() < 0.1:
        words.append(b"qid:%d" % rng.integers(9))
    indices = rng.integers(1, FEATURES, size=rng.integers(5))
    for i in np.unique(indices) if tidy else indices:
        index = word(b"%d" % i)
        words.append(index + b":" + word(pick(rng, VALUES[:-1] if odd else VALUES[:8])))
    line = b"".join(w + pick(rng, GAPS) for w in words).rstrip(b" \t\v\f")
    if comments and rng.random() < 0.2:
        line += b" # a comment 3:4, caf\xc3\xa9" if rng.random() < 0.5 else b"#\xff"
    return line + pick(rng, ENDS)


def random_text(rng, labels, comments=False, tidy=False):
    odd = 0.02 if rng.random() < 0.7 else 0.0
    number = rng.integers(1, 30)
    text = b"".join(
        random_line(rng, labels, odd, comments, tidy) for _ in range(number)
    )
    if rng.random() < 0.4:
        text = mutated(text, rng, int(rng.integers(1, 3)))
    return text.rstrip(b"\n") if rng.random() < 0.2 else text


KINDS = {
    "libsvm": (
        lambda folder: read_libsvm(folder / "bad", folder / "good"),
        libsvm_line,
        [b"1", b"-1", b"+1", b"2.0", b"1e1", b"0", b"-0"],
        b"1 12:1\n",
        b"",
    ),
    "xmc": (
        lambda folder: read_xmc(folder / "bad", folder / "good"),
        xmc_line,
        [b"0", b"1,2", b"6", b"3,3", b"+5", b"01"],
        b"1 11:1\n",
        b"1 12 7\n",
    ),
}


@pytest.mark.parametrize("texts", quick([30, 200], 30))
@pytest.mark.parametrize("chunk", [1, 60, 1 << 19])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_or_the_first_bad_line(tmp_path, monkeypatch, kind, chunk, texts):
    read, line_of, labels, good, header = KINDS[kind]
    monkeypatch.setattr(text_files, "CHUNK", chunk)
    (tmp_path / "good").write_bytes(header + good)
    rng = np.random.default_rng(chunk)
    refused = 0
    for _ in range(texts):
        text = good + random_text(rng, labels, comments=kind == "libsvm")
        (tmp_path / "bad").write_bytes(text)
        expected, bad_line = judged(text, line_of)
        if bad_line:
            refused += 1
            message = rf"bad:{bad_line}: "
            with pytest.raises(DataError, match=message):
                read(tmp_path)
            continue
        data = read(tmp_path)
        for row, (_, values) in zip(rows_of(data.train.x), expected, strict=True):
            assert row == pytest.approx(values, rel=1e-6)
        if kind == "xmc":
            found = np.split(data.train.y.indices, data.train.y.indptr[1:-1])
            assert [f.tolist() for f in found] == [labels for labels, _ in expected]
        else:
            classes = sorted({label for label, _ in expected} | {1.0})
            assert data.train.y.tolist() == [
                classes.index(label) for label, _ in expected
            ]
    assert 0.2 * texts < refused < 0.8 * texts


@pytest.mark.parametrize("texts", quick([100, 600], 100))
def test_text_that_an_independent_parser_reads_is_read(tmp_path, texts):
    """Scikit-learn's, except that it accepts NaN and regression targets."""
    rng = np.random.default_rng(0)
    _, _, labels, good, _ = KINDS["libsvm"]
    (tmp_path / "good").write_bytes(good)
    taken = 0
    for _ in range(texts):
        text = good + random_text(rng, labels, comments=True, tidy=True)
        try:
            x, y = load_svmlight_file(
                io.BytesIO(text), n_features=FEATURES, zero_based=False
            )
        except ValueError:
            continue
        if (
            not (np.abs(x.data) < FLOAT32).all()
            or (y != np.floor(y)).any()
            or (np.abs(y) > 2**53).any()
        ):
            continue
        content = re.sub(rb"#[^\n]*", b"", text)
        if b"_" in content:  # Python's underscores in numbers
            continue
        if re.search(rb"qid(?!:\d+(\s|$))", content):  # anything that begins with qid
            continue
        taken += 1
        (tmp_path / "bad").write_bytes(text)
        data = read_libsvm(tmp_path / "bad", tmp_path / "good")
        np.testing.assert_array_equal(
            data.train.x.toarray(), x.toarray().astype(np.float32)
        )
        np.testing.assert_array_equal(
            data.train.y, np.searchsorted(np.unique([*y, 1.0]), y)
        )
    assert taken > texts / 12


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_kinds_of_mistakes_the_first_line_is_named(tmp_path, kind):
    """Each pair in both orders: no kind of mistake is checked before the others."""
    read, _, _, good, header = KINDS[kind]
    (tmp_path / "good").write_bytes(header + good)
    wrong = [b"x 1:1", b"1 a:1", b"1 1:nan", b"1 3:3e38 3:3e38", b"1 99:1", b"1 1:\xff"]
    wrong[4] = b"1 0:1" if kind == "libsvm" else wrong[4]
    for one in wrong:
        for other in wrong:
            text = b"\n".join([good[:-1], one, good[:-1], other, b""])
            (tmp_path / "bad").write_bytes(text)
            with pytest.raises(DataError, match="bad:2: "):
                read(tmp_path)


def test_queries_are_noted_and_comments_are_not(tmp_path):
    (tmp_path / "good").write_bytes(
        b"# made by hand\n1 qid:1 1:1 # one\n1\tqid:2\t2:1\n"
    )
    data = read_libsvm(tmp_path / "good", tmp_path / "good")
    assert data.train.x.toarray().tolist() == [[1, 0], [0, 1]]
    assert "train: 2 query ids ignored" in data.notes
