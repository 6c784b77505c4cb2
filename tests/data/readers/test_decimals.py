"""Numbers read eight digits at a time: equal to `float` and `int`, or unread."""

import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hetjax.data import DataError
from hetjax.data.readers import sparse_text
from hetjax.data.readers.decimals import decimals, integers

INTEGER = re.compile(rb"\d{1,16}")
DECIMAL = re.compile(rb"\d+\.?\d*|\.\d+")
digits = st.text("0123456789", max_size=18)
# any byte but "/", which the reader excludes
odd = st.sampled_from([bytes([byte]) for byte in range(256) if byte != ord("/")])
words = st.one_of(
    digits.map(str.encode),
    st.builds(lambda a, b: f"{a}.{b}".encode(), digits, digits),
    st.builds(lambda a, x, b: a.encode() + x + b.encode(), digits, odd, digits),
    st.lists(odd, max_size=18).map(b"".join),
)


def places(texts, behind=b"5" * 8):
    """A text of these words, separated by digits, and their places."""
    widths = np.array([len(t) for t in texts], np.int64)
    starts = np.cumsum(widths + 1) - widths - 1
    return b"7".join(texts) + behind, starts, widths


def is_easy(word):
    """A decimal of up to 15 digits and 16 characters."""
    return bool(DECIMAL.fullmatch(word)) and len(word.replace(b".", b"")) <= 15


@settings(deadline=None, max_examples=500)
@given(st.lists(words, min_size=1, max_size=8))
@example([b"1.2345678.9", b"1.234567.8", b"12.3.4567890"])
@example([b".", b"", b"0.", b".0", b"00000000", b"1.2.3", b"1" * 15 + b"."])
@example(
    [b"0.123456", b"12345.6789", b"1234567.89012345", b"12345678.9", b"." + b"9" * 15]
)
def test_decimals_are_those_of_float(texts):
    values, unread = decimals(*places(texts))
    assert unread.tolist() == [i for i, t in enumerate(texts) if not is_easy(t)]
    for word, value in zip(texts, values.tolist(), strict=True):
        assert not is_easy(word) or value == float(word)


@settings(deadline=None, max_examples=500)
@given(st.lists(words, min_size=1, max_size=3))
@example([b"0", b"99999999", b"100000000", b"9" * 16])
def test_integers_are_those_of_int(texts):
    found = integers(*places(texts))
    if all(INTEGER.fullmatch(t) for t in texts):
        assert found is not None
        assert found.tolist() == [int(t) for t in texts]
    else:
        assert found is None


@pytest.mark.parametrize("width", range(1, 17))
@pytest.mark.parametrize("digit", b"09")
def test_every_width(width, digit):
    word = bytes([digit]) * width
    found = integers(*places([word, b"1"]))
    assert found is not None
    assert found.tolist() == [int(word), 1]
    for at in range(width):
        pointed = word[:at] + b"." + word[at:-1]
        values, unread = decimals(*places([pointed, b"1"]))
        assert values[1] == 1
        if is_easy(pointed):
            assert not unread.size
            assert values[0] == float(pointed)
        else:
            assert unread.tolist() == [0]


@pytest.mark.parametrize(
    "word", [b"?", b"1?5", b"?15", b"15?", b"1.5?2345678", b"12345678?1", b"0.25?-3"]
)
@pytest.mark.parametrize("role", [b"%s 3:1", b"0,%s 3:1", b"0 %s:1", b"0 3:%s"])
def test_every_byte_is_read_as_line_by_line_or_not_at_all(word, role):
    bounds = sparse_text.Bounds(0, 1000, 1000)
    for byte in range(256):
        text = role % word.replace(b"?", bytes([byte])) + b"\n"
        fast = sparse_text._parse_at_once(text, bounds)
        try:
            slow = sparse_text._parse_lines(text, bounds, "file", 1)
        except DataError:
            assert fast is None
            continue
        for a, b in zip(fast or slow, slow, strict=True):
            np.testing.assert_array_equal(a, b)


def test_no_numbers_at_all():
    none = np.zeros(0, np.int64)
    values, unread = decimals(b"0" * 8, none, none)
    assert values.size == unread.size == 0
    found = integers(b"0" * 8, none, none)
    assert found is not None
    assert found.size == 0
