"""AG News: texts from CSV, tokens from a vocabulary, and errors."""

import builtins
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import same
from news_files import TEST, TRAIN, plainly, write_news

from hetjax.data import DataError, ag_news
from hetjax.data.columns import is_mapped
from hetjax.data.readers import ag_news as news

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "oil", "##s", "space"]
VOCABULARY += ["game", "team", "win", "band", "of", "cafe", "a", '"', "title", "\\"]


@pytest.fixture
def folder(tmp_path):
    return write_news(tmp_path / "news")


@pytest.fixture
def read(folder, tmp_path):
    def read_it(**options):
        return ag_news(folder=folder, cache=tmp_path / "cache", **options)

    return read_it


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in VOCABULARY))
    return path


def split_plainly(text):
    """Lower-case words, and quotes by themselves; a backslash is white space."""
    return text.lower().replace("\\", " ").replace('"', ' " ').replace("é", "e").split()


@pytest.mark.parametrize("length", [256, 7, 3])
def test_tokens_of_a_given_vocabulary(read, vocabulary, length):
    data = read(length=length, vocabulary=vocabulary)
    for split, rows in ((data.train, TRAIN), (data.test, TEST)):
        words = [split_plainly(f"{title} {rest}") for _, title, rest in rows]
        expected = [plainly(text, VOCABULARY, length) for text in words]
        np.testing.assert_array_equal(split.x, expected)
        assert split.y.tolist() == [label - 1 for label, _, _ in rows]
        assert (split.x.dtype, split.y.dtype) == (np.uint16, np.int32)
        assert is_mapped(split.x)
        assert not is_mapped(split.y)
    assert (data.num_classes, data.name) == (4, "ag_news")
    assert data.notes == (
        "train: 40 texts, the official files have 120000",
        "test: 2 texts, the official files have 7600",
    )


def test_the_vocabulary_beside_the_texts_is_used(read, folder, vocabulary):
    trained = read()
    (folder / "vocab.txt").write_text(vocabulary.read_text())
    beside = read()
    np.testing.assert_array_equal(beside.train.x, read(vocabulary=vocabulary).train.x)
    assert (beside.train.x != trained.train.x).any()


def trained(data):
    """The vocabulary that a note names."""
    return Path(data.notes[-1].removeprefix("its vocabulary is "))


def test_a_trained_vocabulary_is_kept_and_makes_the_same_tokens(read):
    data = read(length=20, vocabulary_size=90)
    tokens = trained(data).read_text().splitlines()
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(tokens) == len(set(tokens)) == 90
    assert not np.isin(np.arange(1, 2), data.train.x).any()  # no token is unknown
    words = split_plainly(f"{TRAIN[3][1]} {TRAIN[3][2]}")
    np.testing.assert_array_equal(data.train.x[3], plainly(words, tokens, 20))
    same(read(length=20, vocabulary=trained(data)), data)


def test_two_trainings_are_equal():
    rng = np.random.default_rng(0)
    letters = list("abcdefghij")
    texts = [
        " ".join("".join(rng.choice(letters, rng.integers(1, 6))) for _ in range(20))
        for _ in range(100)
    ]
    first = news.train_vocabulary(texts, 200)
    assert len(first) == 200
    assert all(news.train_vocabulary(texts, 200) == first for _ in range(5))
    assert news.train_vocabulary(texts[::-1], 200) == first
    assert news.train_vocabulary(texts[:50], 200) != first


def test_a_vocabulary_without_room_for_the_characters(read):
    with pytest.raises(ValueError, match="vocabulary_size is 20, .* alone are 4. tok"):
        read(vocabulary_size=20)


def test_a_large_vocabulary_has_larger_numbers(read, tmp_path):
    tokens = [*VOCABULARY, *(f"x{k}" for k in range(1 << 16)), "score"]
    (tmp_path / "large.txt").write_text("\n".join(tokens))
    data = read(vocabulary=tmp_path / "large.txt", length=30)
    assert data.train.x.dtype == np.int32
    assert data.train.x.max() == len(tokens) - 1


def test_a_second_start_reads_nothing(read, monkeypatch):
    first = read(length=9, vocabulary_size=90)
    monkeypatch.setattr(news, "read_texts", None)
    monkeypatch.setattr(news, "train_vocabulary", None)
    same(read(length=9, vocabulary_size=np.int64(90)), first)


def test_other_files_and_arguments_are_read_again(read, folder, vocabulary):
    first = read(length=9, vocabulary=vocabulary)
    assert read(length=np.int64(8), vocabulary=str(vocabulary)).train.x.shape[1] == 8
    vocabulary.write_text("\n".join([*VOCABULARY, "fall"]))
    second = read(length=9, vocabulary=vocabulary)
    assert (second.train.x == len(VOCABULARY)).any()
    assert not (first.train.x == len(VOCABULARY)).any()
    write_news(folder, train=TRAIN[:9])
    assert len(read(length=9, vocabulary=vocabulary).train) == 9


@pytest.mark.parametrize("name", ["train_x.npy", "test_y.npy", "vocab.txt"])
def test_a_damaged_copy_is_made_again(read, name):
    first = read(length=9, vocabulary_size=90)
    expected = np.array(first.train.x), first.test.y
    path = trained(first).with_name(name)
    del first
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=f"{name} is damaged; it is made again"):
        again = read(length=9, vocabulary_size=90)
    np.testing.assert_array_equal(again.train.x, expected[0])
    np.testing.assert_array_equal(again.test.y, expected[1])


texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=20
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 4), texts, texts), min_size=1, max_size=5))
def test_any_text_is_read(tmp_path_factory, rows):
    folder = write_news(tmp_path_factory.mktemp("news"), train=rows)
    found = news.read_texts(folder / "train.csv")
    assert found.labels.tolist() == [label - 1 for label, _, _ in rows]
    assert found.texts == [f"{a} {b}".replace("\\", " ") for _, a, b in rows]


def test_backslashes_are_line_breaks(tmp_path):
    path = tmp_path / "train.csv"
    path.write_bytes(
        b"\xef\xbb\xbf" + rb'"3","Wall St. \$5","dwindling\band ""of"" #39;s"' + b"\r\n"
    )
    (text,) = news.read_texts(path).texts
    assert text == 'Wall St.  $5 dwindling band "of" #39;s'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"1","a","b"\n"2","a"\n', ":2: 2 fields, but a row has 3: class, title"),
        (b'"1","a","b"\n"2","a","b","c"\n', ":2: 4 fields"),
        (b'"1","a","b"\n\n"1","a","b"\n', ":2: 0 fields"),
        (b'"1","a\nb","c"\n"5","a","b"\n', r":3: the class '5' is not 1\.\.4$"),
        (b'"0","a","b"\n', r":1: the class '0' is not 1\.\.4; a header"),
        (b"Class Index,Title,Description\n", ":1: the class 'Class Index' .* header"),
        (b'"1","a","b"\n"2","a","b\n"3","a","b"\n', r":2: not a row of CSV \("),
        (b'"1","a","b\n', r":1: not a row of CSV \(unexpected end of data\)"),
        (b'"1","a","b"\n"1","a","caf\xe9"\n', ":2: not UTF-8 .byte 0xe9 in column 13"),
        (b"", ": no rows, the file is empty"),
    ],
)
@pytest.mark.parametrize("file", ["train", "test"])
def test_what_is_wrong_with_a_row(folder, read, file, content, message):
    (folder / f"{file}.csv").write_bytes(content)
    with pytest.raises(DataError, match=rf"{file}\.csv{message}"):
        read(vocabulary_size=90)


def test_a_missing_file(folder, read):
    (folder / "test.csv").unlink()
    with pytest.raises(DataError, match=r"test.csv: no such file; download it"):
        read()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\n[SEP]\n", r": no token \[CLS\]; pass the vocab.txt of a BERT"),
        (b"[UNK]\n[PAD]\n[CLS]\n[SEP]\n", r":2: \[PAD\] must be in line 1"),
        (
            b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n[UNK]\n",
            r":6: .*'\[UNK\]'.* in line 2",
        ),
        (b"[PAD]\n\xff\n", ": not a text file"),
        (None, ": no such file"),
    ],
)
def test_what_is_wrong_with_a_vocabulary(read, vocabulary, content, message):
    vocabulary.unlink()
    if content is not None:
        vocabulary.write_bytes(content)
    with pytest.raises(DataError, match=f"vocab.txt{message}"):
        read(vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("length", v) for v in (2, 0, 2.5, "9", None, True, 10**9)],
        *[("vocabulary_size", v) for v in (5, 1.5, "90", True, None)],
    ],
)
def test_arguments(read, argument, value):
    with pytest.raises(ValueError, match=rf"^{argument}={value!r}: pass"):
        read(**{argument: value})


def test_a_vocabulary_is_a_path(read):
    with pytest.raises(ValueError, match="vocabulary=5: pass a string or a PathLike"):
        read(vocabulary=5)


def test_without_the_package(read, monkeypatch, tmp_path):
    imported = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "tokenizers":
            raise ModuleNotFoundError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'tokenizers: pip install "hetjax\[text\]"'):
        read()
    assert not (tmp_path / "cache").exists()


def test_nothing_is_said(read, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(vocabulary_size=90)
    assert capsys.readouterr() == ("", "")
