"""Converts XMC text to numbers, a quarter of a MB of whole lines at a time.

The fast parser finds all separators of a text at once. Between two of them there is a
label, a feature's index, its value or nothing; which one depends only on the two
separators and on whether there is anything between them. `decimals` converts these
words to numbers. If the fast parser is in doubt, the text is parsed again line by line:
the slow parser accepts unusual but legal text, and finds the line and cause of an
error. Both return the same numbers.
"""

import math
import re
from typing import NamedTuple, NoReturn

import numpy as np

from hetjax.data.readers import DataError
from hetjax.data.readers.decimals import decimals, integers


class Bounds(NamedTuple):
    """The indices that may occur: features from `first_index`, labels from zero on."""

    first_index: int
    features: int  # number
    labels: int  # number


class Rows(NamedTuple):
    """The rows of a text, in order: R lines with L labels and E features in all."""

    labels_per_row: np.ndarray  # [R]
    labels: np.ndarray  # [L] int32
    features_per_row: np.ndarray  # [R]
    features: np.ndarray  # [E] int32, zero-based
    values: np.ndarray  # [E] float32
    empty: np.ndarray  # [R] bool, lines without a single character


def parse(text: bytes, bounds: Bounds, path: object, first_line: int) -> Rows:
    """The rows of a text whose every line ends in a newline, or a DataError."""
    rows = _parse_at_once(text, bounds)
    return _parse_lines(text, bounds, path, first_line) if rows is None else rows


# The fast parser: kinds of separators, and roles of the word between two of them.
_NEWLINE, _BLANK, _COMMA, _COLON, _ILLEGAL = range(5)
_NOTHING, _LABEL, _INDEX, _VALUE, _EMPTY_LINE, _WRONG = range(6)
_EMPTY = 64  # added to 8 before + after if nothing is between the two separators


def _kinds() -> bytes:
    """The kind of each of the 256 bytes as a separator; `_ILLEGAL` for others."""
    kinds = bytearray([_ILLEGAL] * 256)
    for kind, members in (
        (_NEWLINE, b"\n"),
        (_BLANK, b" \t"),
        (_COMMA, b","),
        (_COLON, b":"),
    ):
        for byte in members:
            kinds[byte] = kind
    return bytes(kinds)


def _roles() -> bytes:
    """The role of a word, at 8 before + after, + _EMPTY if it has no characters."""
    roles = np.full((2, 8, 8), _WRONG, np.uint8)
    for before in (_NEWLINE, _COMMA):
        roles[0, before, (_COMMA, _BLANK, _NEWLINE)] = _LABEL
    for before in (_NEWLINE, _BLANK):
        roles[0, before, _COLON] = _INDEX
    roles[0, _COLON, (_BLANK, _NEWLINE)] = _VALUE
    roles[1, _NEWLINE, _BLANK] = _NOTHING
    roles[1, _BLANK, (_BLANK, _NEWLINE)] = _NOTHING
    roles[1, _NEWLINE, _NEWLINE] = _EMPTY_LINE
    return roles.tobytes().ljust(256, bytes([_WRONG]))


_KINDS, _ROLES = _kinds(), _roles()
_OF_NUMBERS = b"0123456789.eE+-"


class _Words(NamedTuple):
    """The M words between neighboring separators of a text."""

    starts: np.ndarray  # [M]
    widths: np.ndarray  # [M] number of bytes
    before: np.ndarray  # [M] uint8, kind of the separator before
    roles: np.ndarray  # [M] uint8


def _parse_at_once(text: bytes, bounds: Bounds) -> Rows | None:
    """The rows, or None if anything is doubtful."""
    # a newline before the first row, too, and 8 bytes after every word
    text = b"\n" + text + b"\n" * 8
    words = _words(text)
    if words.roles.max(initial=0) == _WRONG or b"/" in text:  # "/": see `decimals`
        return None
    at_label = np.flatnonzero(words.roles == _LABEL)
    at_index = np.flatnonzero(words.roles == _INDEX)
    at_value = at_index + 1  # the grammar allows nothing else after a colon
    labels = _indices(text, words, at_label, 0, bounds.labels)
    features = _indices(text, words, at_index, bounds.first_index, bounds.features)
    values = _values(text, words, at_value)
    if labels is None or features is None or values is None:
        return None
    first = np.flatnonzero(words.before == _NEWLINE)  # word of each row
    ends = np.append(first, len(words.roles))
    return Rows(
        labels_per_row=np.diff(np.searchsorted(at_label, ends)),
        labels=labels,
        features_per_row=np.diff(np.searchsorted(at_index, ends)),
        features=features,
        values=values,
        empty=words.roles[first] == _EMPTY_LINE,
    )


def _words(text: bytes) -> _Words:
    """The words of a text that is padded by a newline before and 8 after it."""
    buffer = np.frombuffer(text, np.uint8)[:-8]
    # separators, and other bytes up to the comma: these are in no number
    found = buffer <= ord(",")
    found |= buffer == ord(":")
    if b"+" in text:
        found &= buffer != ord("+")
    separators = np.flatnonzero(found)
    kinds = np.frombuffer(buffer.take(separators).tobytes().translate(_KINDS), np.uint8)
    starts = separators[:-1] + 1
    widths = separators[1:] - starts
    pairs = 8 * kinds[:-1] + kinds[1:] + _EMPTY * (widths == 0).view(np.uint8)
    roles = np.frombuffer(pairs.tobytes().translate(_ROLES), np.uint8)
    return _Words(starts, widths, kinds[:-1], roles)


def _indices(
    text: bytes, at: _Words, chosen: np.ndarray, first: int, number: int
) -> np.ndarray | None:
    """The words as indices [n] int32, counted from `first`; None if any is invalid."""
    found = integers(text, at.starts.take(chosen), at.widths.take(chosen))
    if found is None:
        return None
    found -= first
    if found.size and (found.min() < 0 or found.max() >= number):
        return None
    return found.astype(np.int32)


def _values(text: bytes, at: _Words, chosen: np.ndarray) -> np.ndarray | None:
    """These words as numbers [n] float32; None if one is not a finite number."""
    starts, widths = at.starts.take(chosen), at.widths.take(chosen)
    if b"-" in text:
        negative = np.frombuffer(text, np.uint8).take(starts) == ord("-")
        values, unread = decimals(text, starts + negative, widths - negative)
        values[negative] *= -1
    else:
        values, unread = decimals(text, starts, widths)
    places = starts[unread].tolist(), (starts + widths)[unread].tolist()
    words = [text[start:stop] for start, stop in zip(*places, strict=True)]
    if b"".join(words).strip(_OF_NUMBERS):  # `float` accepts names and underscores
        return None
    try:
        values[unread] = list(map(float, words))
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    return values if np.isfinite(values[unread]).all() else None


# The slow parser.
_INTEGER = re.compile(rb"[+-]?0*\d{1,18}")


def _parse_lines(text: bytes, bounds: Bounds, path: object, first_line: int) -> Rows:
    """The rows, parsed one by one; a DataError names the line."""
    lines = text.split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=first_line):
        try:
            rows.append(_parse_line(line, bounds))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    labels, pairs = [row[0] for row in rows], [row[1] for row in rows]
    features = [pair[0] for row in pairs for pair in row]
    values = [pair[1] for row in pairs for pair in row]
    return Rows(
        labels_per_row=np.array([len(row) for row in labels], np.int64),
        labels=np.array([label for row in labels for label in row], np.int32),
        features_per_row=np.array([len(row) for row in pairs], np.int64),
        features=np.array(features, np.int32),
        values=np.array(values, np.float64).astype(np.float32),
        empty=np.array([not line for line in lines], bool),
    )


def _parse_line(
    line: bytes, bounds: Bounds
) -> tuple[list[int], list[tuple[int, float]]]:
    """The labels and (feature, value) pairs of a row; a ValueError if it is invalid."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} in column {error.start + 1}"
        _fail(f"not a text file ({found}); damaged, or packed in an unknown way?")
    words = line.split()  # at any white space
    labels = []
    if words and not line[:1].isspace() and b":" not in words[0]:
        labels = _labels(words.pop(0), bounds)
    return labels, [_feature(word, bounds) for word in words]


def _labels(words: bytes, bounds: Bounds) -> list[int]:
    parts = words.split(b",")
    if b"" in parts:
        _fail(
            f"a label is missing in {_shown(words)}; is there a blank after a comma? "
            "Separate labels by commas alone: 1,2"
        )
    return [_label(word, bounds) for word in parts]


def _label(word: bytes, bounds: Bounds) -> int:
    if not _INTEGER.fullmatch(word):
        _fail(f"label {_shown(word)} is not an integer")
    label, number = int(word), bounds.labels
    if not 0 <= label < number:
        hint = "; numbered from one? labels count from zero: subtract 1 from each"
        _fail(f"label {label} is outside 0..{number - 1}{hint * (label == number)}")
    return label


def _feature(word: bytes, bounds: Bounds) -> tuple[int, float]:
    """The zero-based index and the value of one `index:value`."""
    index_text, _, value_text = word.partition(b":")
    try:
        value = float(value_text)
    except ValueError:
        value = None
    if value is None or b"_" in value_text or not _INTEGER.fullmatch(index_text):
        _fail(f"feature {_shown(word)} is not index:value")
    if not math.isfinite(value) or abs(value) >= 2.0**128 - 2.0**103:
        _fail(f"feature {_shown(word)} is not finite in float32")
    index, first = int(index_text), bounds.first_index
    if not first <= index < first + bounds.features:
        hint = "; numbered from one? then pass first_index=1" if not first else ""
        hint = hint if index == bounds.features else ""
        last = first + bounds.features - 1
        _fail(f"feature {index} is outside {first}..{last}{hint}")
    return index - first, value


def _fail(message: str) -> NoReturn:
    raise ValueError(message)


def _shown(word: bytes) -> str:
    """A word of the file for a message, truncated if it is long."""
    text = word.decode(errors="replace")
    return repr(text if len(text) <= 40 else text[:40] + "...")
